// Compiles and launches one config of the decode kernel.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "common/ceil_div.hpp"
#include "cuda/attention/decode/decode.cuh"
#include "cuda/attention/decode/decode_swapped.cuh"
#include "cuda/attention/decode/launch.hpp"
#include "cuda/common/epoch.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"

namespace tilewright::cuda {
namespace decode {

// How many clusters of so many blocks run at the same time. The answer is kept for each device.
template <auto kKernel>
int active_clusters(int cluster, int threads, std::size_t smem_bytes) {
  constexpr int kMaxDevices = 64;
  static std::array<std::array<std::atomic<int>, kMaxDecodeCluster + 1>, kMaxDevices> known{};
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  std::atomic<int>& kept = known[device % kMaxDevices][cluster];
  int count = device < kMaxDevices ? kept.load(std::memory_order_relaxed) : 0;
  if (count == 0) {
    allow_smem<kKernel>(smem_bytes);
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cluster);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = smem_bytes;
    config.attrs = &attribute;
    config.numAttrs = 1;
    check(cudaOccupancyMaxActiveClusters(&count, kKernel, &config),
          "cudaOccupancyMaxActiveClusters");
    kept.store(count, std::memory_order_relaxed);
  }
  return count;
}

// The bytes that a load which misses in L2 brings there. With 256, an H100 reads rows of as many
// bytes 3 % faster, and shorter ones slower (step 39 of the worklog). An H200 read slower with 256
// (step 2); its memory has a wider bus.
inline int promotion_bytes(int row_bytes) {
  constexpr int kBusOfH100_bits = 5120;
  int device = 0;
  int bus_bits = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, device),
        "cudaDeviceGetAttribute");
  return row_bytes >= 256 && bus_bits <= kBusOfH100_bits ? 256 : 128;
}

// The map of a cache, whose loads bring box_rows rows in the layout that the kernel reads. TMA
// moves bytes: to it, two E4M3 values are one of 16 bits.
template <typename Config, typename Tile>
CUtensorMap cache_map(const Params& p, const void* base, const OuterStrides& stride, int box_rows) {
  constexpr TmaSwizzle kSwizzle = Tile::kBox_bytes == 128 ? TmaSwizzle::b128 : TmaSwizzle::b64;
  constexpr int kValues = 2 / Config::kCache_bytes;  // in 16 bits
  const int page_size = p.rows.page_size;
  TensorMapSpec spec = tile_map_spec(
      p.rows.cache_rows, page_size > 0 ? page_size : p.rows.capacity, p.kv_heads,
      Tile::kRow_bytes / 2,
      {.batch = stride.batch / kValues, .seq = stride.seq / kValues, .head = stride.head / kValues},
      box_rows, kSwizzle);
  spec.promotion_bytes = promotion_bytes(Tile::kRow_bytes);
  return encode_tensor_map(base, spec);
}

// The map of queries, whose loads bring 64 columns of a row tile's rows, in the layout of an
// operand.
inline CUtensorMap query_map(const Params& p, const DecodeShape& shape) {
  const bool is_packed = p.packed_q.cu_seqlens != nullptr;
  const int batch = is_packed ? 1 : p.batch;
  const auto bytes = [&](std::int64_t elements, int size) {  // no load steps over a size of 1
    return static_cast<std::uint64_t>(size > 1 ? elements : p.head_dim) * 2;
  };
  return encode_tensor_map(
      p.q, {.size = {static_cast<std::uint64_t>(p.head_dim), static_cast<std::uint64_t>(p.heads),
                     static_cast<std::uint64_t>(p.q_len), static_cast<std::uint64_t>(batch)},
            .stride_bytes = {bytes(p.q_stride.head, p.heads), bytes(p.q_stride.seq, p.q_len),
                             bytes(p.q_stride.batch, batch)},
            .box = {64, static_cast<std::uint32_t>(int{shape.tile_heads}),
                    static_cast<std::uint32_t>(int{shape.tile_tokens}), 1},
            .swizzle = TmaSwizzle::b128});
}

template <int kIndex, typename Element, typename CacheElement, bool kIsInvariant>
constexpr auto kernel_of() {
  if constexpr (kDecodeConfigs[kIndex].swaps) {
    return decode_swapped<kIndex, Element, CacheElement, kIsInvariant>;
  } else {
    return decode<kIndex, Element, CacheElement, kIsInvariant>;
  }
}

template <int kIndex, typename Element, typename CacheElement, bool kIsInvariant>
void launch_config(const Params& p, const DecodeDetails& details, Stream stream) {
  using Config = ConfigOf<kIndex, Element, CacheElement, kIsInvariant>;
  static_assert(Config::kPasses * Config::kConsumerWarps <= kMostMarks);
  constexpr auto kKernel = kernel_of<kIndex, Element, CacheElement, kIsInvariant>();
  constexpr std::size_t kSmem_bytes = sizeof(SharedStorage<Config>);
  const auto& [plan, at] = details;
  DecodeShape shape = decode_shape(p.heads, p.kv_heads, Config::kRows);
  shape.is_causal = p.causal;
  shape.window = p.window;
  shape.is_invariant = kIsInvariant;
  shape.most_tokens = plan.most_tokens;
  TensorMaps maps{};
  if (plan.loads_boxes) {
    maps.k = cache_map<Config, typename Config::TileK>(p, p.k_cache, p.k_stride, plan.box_rows);
    maps.v = cache_map<Config, typename Config::TileV>(p, p.v_cache, p.v_stride, plan.box_rows);
  }
  if constexpr (Config::C.swaps && !Config::kIsE4m3) {
    maps.q = query_map(p, shape);
  }

  const int most_workers =
      plan.cluster > 1 ? active_clusters<kKernel>(plan.cluster, Config::kThreads, kSmem_bytes)
                       : plan.workers;
  const Workers workers{.count = Divisor(std::min(plan.workers, most_workers)),
                        .cluster_log2 = std::countr_zero(static_cast<unsigned>(plan.cluster)),
                        .merge_tiles = plan.merge_tiles,
                        .may_take = Config::kMayTake && plan.cluster == 1};

  auto* const workspace = static_cast<char*>(p.workspace);
  const std::uint64_t epoch = next_epoch();
  const Launch launch{.shape = shape,
                      .workers = workers,
                      .next_may_join = plan.next_may_join,
                      .loads_boxes = plan.loads_boxes,
                      .boxes = cache_boxes(p.rows.page_size, plan.box_rows),
                      .rows = cache_boxes(p.rows.page_size, 1),
                      .slot_rows = plan.slot_rows,
                      .slots = {.o = reinterpret_cast<float4*>(workspace + at.o),
                                .statistics = reinterpret_cast<float2*>(workspace + at.statistics),
                                .marks = reinterpret_cast<std::uint64_t*>(workspace + at.marks),
                                .mark = mark_of(epoch)},
                      .tickets = reinterpret_cast<std::uint64_t*>(workspace + at.tickets),
                      .epoch = epoch};
  launch_with<kKernel>({.cluster = plan.cluster, .may_start_early = true},
                       workers.count << workers.cluster_log2, Config::kThreads, kSmem_bytes, stream,
                       p, maps, launch);
}

template <int kIndex, typename Element, typename CacheElement>
void launch_config(const Params& p, const DecodeDetails& details, Stream stream) {
  if (p.batch_invariant) {
    launch_config<kIndex, Element, CacheElement, true>(p, details, stream);
  } else {
    launch_config<kIndex, Element, CacheElement, false>(p, details, stream);
  }
}

template <int kIndex, typename Element>
void launch_config(const Params& p, const DecodeDetails& details, Stream stream) {
  if constexpr (takes_e4m3(kDecodeConfigs[kIndex])) {
    if (p.cache_dtype == DType::e4m3) {
      launch_config<kIndex, Element, std::uint8_t>(p, details, stream);
      return;
    }
  }
  launch_config<kIndex, Element, Element>(p, details, stream);
}

}  // namespace decode

template <int kIndex>
void launch_decode_config(const AttentionWithKvCacheParams& p, const DecodeDetails& details,
                          Stream stream) {
  if (p.dtype == DType::fp16) {
    decode::launch_config<kIndex, cute::half_t>(p, details, stream);
  } else {
    decode::launch_config<kIndex, cute::bfloat16_t>(p, details, stream);
  }
}

}  // namespace tilewright::cuda
