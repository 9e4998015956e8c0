// Compiles and launches one config of the prefill kernel.
#pragma once

#include <algorithm>

#include "common/ceil_div.hpp"
#include "cuda/attention/prefill/launch.hpp"
#include "cuda/attention/prefill/prefill.cuh"
#include "cuda/attention/prefill/prefill_e4m3.cuh"
#include "cuda/attention/prefill/prefill_rows.cuh"
#include "cuda/common/epoch.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"

namespace tilewright::cuda {
namespace prefill {

template <typename Config>
FlashTensorMaps maps_of(const Params& p, const PrefillPlan& plan) {
  constexpr auto C = Config::C;
  constexpr TmaSwizzle kSwizzle =
      Config::Tiles::kBoxColumns == 64 ? TmaSwizzle::b128 : TmaSwizzle::b64;
  constexpr bool kIsE4m3 = C.coded_bytes() > 0;
  const auto rows_map = [&](const void* base, int head_dim, const OuterStrides& stride) {
    return encode_tensor_map(
        base, tile_map_spec(p.packed_q.cu_seqlens != nullptr ? 1 : p.batch, p.q_len, p.heads,
                            head_dim, stride, kWarpgroupRows, kSwizzle));
  };
  const auto cache_map = [&](const void* base, int head_dim, const OuterStrides& stride) {
    const int page_rows = p.rows.page_size > 0 ? p.rows.page_size : p.rows.capacity;
    return encode_tensor_map(
        base, tile_map_spec(p.rows.cache_rows, page_rows, p.kv_heads, head_dim, stride,
                            plan.box_rows, kIsE4m3 ? TmaSwizzle::none : kSwizzle, kIsE4m3 ? 1 : 2));
  };
  FlashTensorMaps maps{};
  if (plan.copies_rows) {  // the kernel prefetches K's and V's maps all the same
    maps.q = maps.k = maps.v = rows_map(p.q, C.head_dim, p.q_stride);
  } else {
    maps.k = cache_map(p.k_cache, C.head_dim, p.k_stride);
    maps.v = cache_map(p.v_cache, C.value_dim, p.v_stride);
    // TMA does not bring queries of 8 bits, either.
    maps.q = p.dtype == DType::e4m3 ? maps.k : rows_map(p.q, C.head_dim, p.q_stride);
  }
  if (p.statistics.max == nullptr) {
    maps.o = rows_map(p.o, C.value_dim, p.o_stride);
  }
  return maps;
}

template <typename Config, typename Storage, auto kKernel>
void launch_kernel(const Params& p, const PrefillPlan& plan, Stream stream) {
  constexpr auto C = Config::C;
  Launch launch{.schedule = {},
                .boxes = cache_boxes(p.rows.page_size, plan.box_rows),
                .kv_heads = Divisor(p.kv_heads),
                .others_tokens = plan.others_tokens,
                .joins = plan.joins};
  FlashSchedule& schedule = launch.schedule;
  schedule.row_tiles = ceil_div(p.q_len, C.br());
  schedule.section = plan.section;
  schedule.group = p.heads / p.kv_heads;
  schedule.splits = plan.splits;
  schedule.split_tiles = kMinPrefillSplit / C.bc;
  schedule.tickets = {.word = static_cast<std::uint64_t*>(p.workspace), .epoch = next_epoch()};
  Params tiles = p;
  std::int64_t most_tiles = 0;
  if (p.packed_q.cu_seqlens != nullptr) {
    tiles.heads *= plan.splits;
    most_tiles = (p.q_len + std::int64_t{plan.sequences} * (C.br() - 1)) / C.br() * tiles.heads;
  } else {
    schedule.heads = p.batch * p.heads;
    schedule.tiles = schedule.row_tiles * schedule.heads * schedule.splits;
    most_tiles = schedule.tiles;
  }
  const int blocks = static_cast<int>(std::min<std::int64_t>(most_tiles, p.multiprocessors));
  launch_with<kKernel>({.may_start_early = true}, blocks, Config::kThreads, sizeof(Storage), stream,
                       tiles, maps_of<Config>(p, plan), launch);
}

template <int kIndex, typename Element>
void launch_config(const Params& p, const PrefillPlan& plan, Stream stream) {
  if (p.cache_dtype == DType::e4m3) {
    using Config = CodedConfigOf<kIndex, Element>;
    launch_kernel<Config, CodedStorage<Config>, prefill_e4m3<kIndex, Element>>(p, plan, stream);
  } else if (plan.copies_rows) {
    using Config = RowsConfigOf<kIndex, Element>;
    launch_kernel<Config, RowsStorage<Config>, prefill_rows<kIndex, Element>>(p, plan, stream);
  } else {
    using Config = ConfigOf<kIndex, Element>;
    launch_kernel<Config, SharedStorage<Config>, prefill<kIndex, Element>>(p, plan, stream);
  }
}

}  // namespace prefill

template <int kIndex>
void launch_prefill_config(const AttentionWithKvCacheParams& p, const PrefillPlan& plan,
                           Stream stream) {
  if (p.dtype == DType::fp16) {
    prefill::launch_config<kIndex, cute::half_t>(p, plan, stream);
  } else {
    prefill::launch_config<kIndex, cute::bfloat16_t>(p, plan, stream);
  }
}

}  // namespace tilewright::cuda
