// Which keys a row of a row tile sees.
#pragma once

#include "cuda/attention/blocks/cap_and_mask.cuh"
#include "cuda/attention/decode/config.cuh"

namespace tilewright::cuda {
namespace decode {

// The keys of a warp's step or, where keys are the rows of MMAs, of its share of a tile.
inline constexpr int kStepKeys = 16;

// Bit i says whether row `row` of the part's row tile sees key key0 + i: the keys of a range and,
// of the sequence's last ones, those whose bits the tree mask sets. A row that does not exist sees
// none.
__device__ inline std::uint32_t seen_keys(const Params& p, const Launch& launch, const Part& part,
                                          int row, int key0) {
  const int token = part.token0 + row / launch.shape.tile_heads;
  if (token >= part.lengths.q_len) {
    return 0;
  }
  const CacheKeys keys = launch.shape.keys_of(part.lengths);
  const int tree_key = key0 - keys.diagonal;  // of the step's first key
  std::uint32_t seen = first_bits(keys.end(token) - key0) & ~first_bits(keys.first(token) - key0);
  if (p.tree.bits != nullptr && tree_key > -kStepKeys) {
    const std::uint64_t bits = p.tree.bits[part.sequence * p.tree.batch_stride +
                                           (part.lengths.q_start + token) * p.tree.seq_stride];
    seen &= tree_key >= 0 ? static_cast<std::uint32_t>(tree_key < 64 ? bits >> tree_key : 0)
                          : static_cast<std::uint32_t>(bits << -tree_key) | first_bits(-tree_key);
  }
  return seen & first_bits(kStepKeys);
}

}  // namespace decode
}  // namespace tilewright::cuda
