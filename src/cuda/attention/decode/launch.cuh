// Compiles and launches one config of the decode kernel.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>

#include "common/ceil_div.hpp"
#include "cuda/attention/decode/decode.cuh"
#include "cuda/attention/decode/launch.hpp"
#include "cuda/common/epoch.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"

namespace tilewright::cuda {
namespace decode {

// Q as (D, heads, tokens, batch): a load brings a row tile's heads and tokens.
inline TensorMapSpec query_map_spec(const Params& p, const DecodeShape& shape, TmaSwizzle swizzle) {
  const bool is_packed = p.packed_q.cu_seqlens != nullptr;
  TensorMapSpec spec =
      tile_map_spec(is_packed ? 1 : p.batch, p.heads, p.q_len, p.head_dim,
                    {.batch = p.q_stride.batch, .seq = p.q_stride.head, .head = p.q_stride.seq},
                    shape.tile_heads, swizzle);
  spec.box[2] = static_cast<std::uint32_t>(shape.tile_tokens);
  return spec;
}

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

template <int kIndex, typename Element>
void launch_config(const Params& p, const DecodeDetails& details, Stream stream) {
  using Config = ConfigOf<kIndex, Element>;
  constexpr DecodeConfig C = Config::C;
  constexpr TmaSwizzle kSwizzle =
      Config::Tiles::kBoxColumns == 64 ? TmaSwizzle::b128 : TmaSwizzle::b64;
  const auto& [plan, at] = details;
  DecodeShape shape = decode_shape(p.heads, p.kv_heads, C.bc);
  shape.is_causal = p.causal;
  shape.window = p.window;
  shape.is_invariant = p.batch_invariant;
  shape.most_tokens = plan.most_tokens;
  const int page_size = p.rows.page_size;
  const auto cache_map = [&](const void* base, const OuterStrides& stride, int head_dim) {
    TensorMapSpec spec =
        tile_map_spec(p.rows.cache_rows, page_size > 0 ? page_size : p.rows.capacity, p.kv_heads,
                      head_dim, stride, plan.box_rows, kSwizzle);
    spec.promotion_bytes = 128;
    return encode_tensor_map(base, spec);
  };
  const TensorMaps maps{.q = encode_tensor_map(p.q, query_map_spec(p, shape, kSwizzle)),
                        .k = cache_map(p.k_cache, p.k_stride, C.head_dim),
                        .v = cache_map(p.v_cache, p.v_stride, C.value_dim)};

  constexpr std::size_t kSmem_bytes = sizeof(SharedStorage<Config>);
  const int most_workers = C.in_clusters ? active_clusters<decode<kIndex, Element>>(
                                               plan.cluster, Config::kThreads, kSmem_bytes)
                                         : plan.workers;
  const Workers workers{
      .count = std::min(plan.workers, most_workers),
      .cluster = plan.cluster,
      .merge_tiles = p.batch_invariant ? 0 : 10 + plan.slot_rows / (2 * plan.cluster)};

  auto* const workspace = static_cast<char*>(p.workspace);
  const Launch launch{.shape = shape,
                      .workers = workers,
                      .boxes = cache_boxes(page_size, plan.box_rows),
                      .slot_rows = plan.slot_rows,
                      .o = reinterpret_cast<float*>(workspace + at.o),
                      .row_max = reinterpret_cast<float*>(workspace + at.row_max),
                      .row_sum = reinterpret_cast<float*>(workspace + at.row_sum),
                      .counters = reinterpret_cast<std::uint64_t*>(workspace + at.counters),
                      .epoch = next_epoch()};
  launch_with<decode<kIndex, Element>>({.cluster = plan.cluster, .may_start_early = true},
                                       workers.count * plan.cluster, Config::kThreads, kSmem_bytes,
                                       stream, p, maps, launch);
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
