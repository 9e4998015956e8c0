// Compiles and launches one config of the decode kernel.
#pragma once

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
  const int page_size = p.rows.page_size;
  const auto cache_map = [&](const void* base, const OuterStrides& stride, int head_dim) {
    return encode_tensor_map(
        base, tile_map_spec(p.rows.cache_rows, page_size > 0 ? page_size : p.rows.capacity,
                            p.kv_heads, head_dim, stride, plan.box_rows, kSwizzle));
  };
  const TensorMaps maps{.q = encode_tensor_map(p.q, query_map_spec(p, shape, kSwizzle)),
                        .k = cache_map(p.k_cache, p.k_stride, C.head_dim),
                        .v = cache_map(p.v_cache, p.v_stride, C.value_dim)};

  auto* const workspace = static_cast<char*>(p.workspace);
  auto* const counters = reinterpret_cast<std::uint64_t*>(workspace + at.counters);
  const Launch launch{.shape = shape,
                      .workers = plan.workers,
                      .box_rows = plan.box_rows,
                      .page_boxes = Divisor(page_size > 0 ? page_size / plan.box_rows : 1),
                      .slot_rows = plan.slot_rows,
                      .o = reinterpret_cast<float*>(workspace + at.o),
                      .row_max = reinterpret_cast<float*>(workspace + at.row_max),
                      .row_sum = reinterpret_cast<float*>(workspace + at.row_sum),
                      .item_counters = counters,
                      .group_counters = counters + plan.slots,
                      .epoch = next_epoch()};
  launch_with<decode<kIndex, Element>>({.may_start_early = true}, plan.workers, Config::kThreads,
                                       sizeof(SharedStorage<Config>), stream, p, maps, launch);
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
