// Compiles and launches one config of the flash kernel.
#pragma once

#include <algorithm>

#include "cuda/attention/blocks/dense_schedule.hpp"
#include "cuda/attention/flash/flash.cuh"
#include "cuda/attention/flash/launch.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"

namespace tilewright::cuda {
namespace flash {

template <int kIndex, typename Element, ProblemKind kKind>
void launch_config(const AttentionParams& p, const FlashPlan& plan, void* ticket, Stream stream) {
  using Config = ConfigOf<kIndex, Element>;
  constexpr FlashConfig C = Config::C;
  const auto map = [&](const void* base, bool is_packed, int seqlen, int heads, int head_dim,
                       const OuterStrides& stride, int rows) {
    return encode_tensor_map(
        base, tile_map_spec(is_packed ? 1 : p.batch, seqlen, heads, head_dim, stride, rows,
                            Config::Tiles::kBoxColumns == 64 ? TmaSwizzle::b128 : TmaSwizzle::b64));
  };
  const bool packs_q = p.packed_q.cu_seqlens != nullptr;
  const bool packs_k = p.kv_lengths.cu_seqlens != nullptr;
  TensorMaps maps{
      .q = map(p.q, packs_q, p.q_len, p.heads, C.head_dim, p.q_stride, kWarpgroupRows),
      .k = map(p.k, packs_k, p.kv_len, p.kv_heads, C.head_dim, p.k_stride, C.bc / C.cluster),
      .v = map(p.v, packs_k, p.kv_len, p.kv_heads, C.value_dim, p.v_stride, C.bc / C.cluster),
      .o = {}};
  if (p.statistics.max == nullptr) {
    maps.o = map(p.o, packs_q, p.q_len, p.heads, C.value_dim, p.o_stride, kWarpgroupRows);
  }

  const auto [schedule, most_tiles] = dense_schedule(p, plan, C, ticket);
  const int clusters =
      static_cast<int>(std::min<std::int64_t>(most_tiles, p.multiprocessors / C.cluster));
  constexpr std::size_t kSmem_bytes = sizeof(SharedStorage<Config>);
  launch_with<flash<kIndex, Element, kKind>>({.cluster = C.cluster}, clusters * C.cluster,
                                             Config::kThreads, kSmem_bytes, stream, p, maps,
                                             schedule);
}

}  // namespace flash

template <int kIndex>
void launch_flash_config(const AttentionParams& p, const FlashPlan& plan, void* ticket,
                         Stream stream) {
  const auto launch_as = [&](auto element) {
    using Element = decltype(element);
    switch (kind_of(p)) {
      case ProblemKind::plain:
        return flash::launch_config<kIndex, Element, ProblemKind::plain>(p, plan, ticket, stream);
      case ProblemKind::uncapped:
        return flash::launch_config<kIndex, Element, ProblemKind::uncapped>(p, plan, ticket,
                                                                            stream);
      case ProblemKind::any:
        return flash::launch_config<kIndex, Element, ProblemKind::any>(p, plan, ticket, stream);
    }
  };
  if constexpr (kFlashConfigs[kIndex].takes_fp16) {
    if (p.dtype == DType::fp16) {
      return launch_as(cute::half_t{});
    }
  }
  launch_as(cute::bfloat16_t{});
}

}  // namespace tilewright::cuda
