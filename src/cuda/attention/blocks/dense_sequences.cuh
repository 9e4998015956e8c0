// The sequences of dense attention, as the scheduler of tiles asks for them.
#pragma once

#include <climits>

#include "cuda/attention/blocks/flash_tiles.cuh"
#include "ops/attention/params.hpp"

namespace tilewright::cuda {
namespace flash {

class DenseSequences {
 public:
  __device__ explicit DenseSequences(const AttentionParams& p) : p_(p) {}

  __device__ const AttentionParams& params() const { return p_; }

  __device__ int kv_len(int sequence) const {
    if (p_.kv_lengths.used != nullptr) {
      return p_.kv_lengths.used[sequence];
    }
    const int* const starts = p_.kv_lengths.cu_seqlens;
    return starts != nullptr ? starts[sequence + 1] - starts[sequence] : p_.kv_len;
  }

  __device__ static constexpr bool has_tiles(int) { return true; }
  __device__ static constexpr bool keeps_rows_together() { return false; }

  template <typename Config>
  __device__ void write_keys(FlashTile& tile, const FlashSchedule& s, const Config& config,
                             int sequence, int row0, int q_len, int split) const {
    const int* const starts = p_.kv_lengths.cu_seqlens;
    const int kv_len = this->kv_len(sequence);
    tile.kv_batch = starts ? 0 : sequence;
    tile.kv_start = starts ? starts[sequence] : 0;
    tile.q_len = q_len;
    tile.kv_len = kv_len;
    const VisibleKeys keys(q_len, kv_len, p_.causal, p_.window);
    write_key_tiles(tile, keys, config, row0, q_len, s.splits, split, s.split_tiles);
    tile.seen_end =
        starts || p_.kv_lengths.used ? kv_len : INT_MAX;  // beyond p.kv_len, TMA reads zeros
  }

 private:
  const AttentionParams& p_;
};

}  // namespace flash
}  // namespace tilewright::cuda
