// What the launches of dsv4_decode's configs have in common.
#pragma once

#include <algorithm>
#include <array>

#include "cuda/attention/dsv4_decode/launch.hpp"
#include "cuda/attention/dsv4_decode/tiles.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"

namespace tilewright::cuda::dsv4 {

// The map of q, whose loads bring 64 dims of an item's rows.
inline CUtensorMap map_of_q(const Params& p, const ItemShape& shape) {
  const bool is_packed = p.packed_q.cu_seqlens != nullptr;
  const auto bytes = [](std::int64_t elements, int size) {
    return static_cast<std::uint64_t>(size > 1 ? elements : kDims) * sizeof(Element);
  };
  const int batch = is_packed ? 1 : p.batch;
  return encode_tensor_map(
      p.q, {.size = {kDims, static_cast<std::uint64_t>(p.heads),
                     static_cast<std::uint64_t>(p.q_len), static_cast<std::uint64_t>(batch)},
            .stride_bytes = {bytes(p.q_stride.head, p.heads), bytes(p.q_stride.seq, p.q_len),
                             bytes(p.q_stride.batch, batch)},
            .box = {kBlockDims, static_cast<std::uint32_t>(shape.tile_heads),
                    static_cast<std::uint32_t>(shape.tile_tokens), 1},
            .swizzle = TmaSwizzle::b128});
}

inline Launch launch_of(const Params& p, const Dsv4Details& details) {
  const auto& [plan, at] = details;
  auto* const workspace = static_cast<char*>(p.workspace);
  Launch launch{
      .shape = plan.shape,
      .is_packed = p.packed_q.cu_seqlens != nullptr,
      .knows_tokens = p.packed_q.cu_seqlens == nullptr || plan.shape.is_by_token,
      .items = Divisor(static_cast<int>(plan.items)),
      .most_parts = plan.most_parts,
      .units = static_cast<int>(plan.units()),
      .whole_units = plan.deal.whole,
      .last_units = Divisor(std::max(static_cast<int>(plan.units()) - plan.deal.whole, 1)),
      .shares = Divisor(plan.deal.shares),
      .are_clusters = plan.cluster > 1 && !plan.spreads,
      .other_shares = Divisor(std::max(plan.deal.shares - 1, 1)),
      .q_len = p.q_len,
      .o = reinterpret_cast<float4*>(workspace + at.o),
      .statistics = reinterpret_cast<float4*>(workspace + at.statistics),
      .records = plan.merges() ? reinterpret_cast<ItemRecord*>(workspace + at.items) : nullptr,
      .first_pair_slot = static_cast<int>(plan.part_slots()),
      .pair_slots = plan.pair_slots};
  const std::array scopes = {&p.window, &p.compressed};
  for (std::size_t i = 0; i < scopes.size(); ++i) {
    if (scopes[i]->rows != nullptr) {
      launch.page_size[i] = Divisor(scopes[i]->page_size);
      launch.ring[i] = Divisor(std::max(scopes[i]->ring, 1));
    }
  }
  return launch;
}

}  // namespace tilewright::cuda::dsv4
