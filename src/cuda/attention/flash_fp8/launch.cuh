// Compiles and launches one config of the kernel flash_fp8.
#pragma once

#include <algorithm>

#include "cuda/attention/blocks/dense_schedule.hpp"
#include "cuda/attention/blocks/fp8_maps.hpp"
#include "cuda/attention/flash_fp8/flash_fp8.cuh"
#include "cuda/attention/flash_fp8/launch.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"

namespace tilewright::cuda {
namespace flash_fp8 {

template <typename Config>
TensorMaps tensor_maps(const AttentionFp8Params& p) {
  constexpr FlashConfig C = Config::C;
  constexpr TmaSwizzle kSwizzle = C.head_dim == 64 ? TmaSwizzle::b64 : TmaSwizzle::b128;
  const int q_batch = p.packed_q.cu_seqlens != nullptr ? 1 : p.batch;
  const int k_batch = p.kv_lengths.cu_seqlens != nullptr ? 1 : p.batch;
  TensorMaps maps{
      .q = encode_tensor_map(p.q, tile_map_spec(q_batch, p.q_len, p.heads, C.head_dim, p.q_stride,
                                                kWarpgroupRows, kSwizzle, 1)),
      .keys = {},
      .v = encode_tensor_map(p.v, transposed_values(p, k_batch)),
      .o = {}};
  for (int parity = 0; parity < 2; ++parity) {
    const KeyRows keys = every_other_key(p, k_batch, parity, C.bc / 2, kSwizzle);
    maps.keys[parity] = encode_tensor_map(keys.base, keys.spec);
  }
  if (p.statistics.max == nullptr) {
    maps.o = encode_tensor_map(p.o, tile_map_spec(q_batch, p.q_len, p.heads, C.value_dim,
                                                  p.o_stride, kWarpgroupRows, TmaSwizzle::b128));
  }
  return maps;
}

template <int kIndex, typename Output, bool kIsPlain, bool kSumsRounded>
void launch_config(const AttentionFp8Params& p, const FlashPlan& plan, void* ticket,
                   Stream stream) {
  using Config = ConfigOf<kIndex, Output, kSumsRounded>;
  const auto [schedule, most_tiles] = dense_schedule(p, plan, Config::C, ticket);
  const auto blocks = static_cast<int>(std::min<std::int64_t>(most_tiles, p.multiprocessors));
  launch<flash_fp8<kIndex, Output, kIsPlain, kSumsRounded>>(blocks, Config::kThreads,
                                                            sizeof(SharedStorage<Config>), stream,
                                                            p, tensor_maps<Config>(p), schedule);
}

// A plain problem. At D = 256 turns limit the speed, which the sums of rounded weights would make
// longer.
template <int kIndex, typename Output>
void launch_plain(const AttentionFp8Params& p, const FlashPlan& plan, void* ticket, Stream stream) {
  constexpr bool kMaySumRounded = kFp8Configs[kIndex].head_dim < 256;
  if (kMaySumRounded && p.lse == nullptr) {
    launch_config<kIndex, Output, true, kMaySumRounded>(p, plan, ticket, stream);
  } else {
    launch_config<kIndex, Output, true, false>(p, plan, ticket, stream);
  }
}

}  // namespace flash_fp8

template <int kIndex>
void launch_fp8_config(const AttentionFp8Params& p, const FlashPlan& plan, void* ticket,
                       Stream stream) {
  const auto launch_as = [&](auto output) {
    using Output = decltype(output);
    constexpr bool kMaySplit =
        flash_fp8::ConfigOf<kIndex, Output, false>::template may_split<true>();
    if constexpr (kFp8Configs[kIndex].use == FlashUse::larger_plain) {
      flash_fp8::launch_plain<kIndex, Output>(p, plan, ticket, stream);
    } else if (kind_of(p) == ProblemKind::plain &&
               (kMaySplit || p.descale_rows != block_descales::kBlockRows)) {
      flash_fp8::launch_plain<kIndex, Output>(p, plan, ticket, stream);
    } else {
      flash_fp8::launch_config<kIndex, Output, false, false>(p, plan, ticket, stream);
    }
  };
  if (p.dtype == DType::fp16) {
    launch_as(cute::half_t{});
  } else {
    launch_as(cute::bfloat16_t{});
  }
}

}  // namespace tilewright::cuda
