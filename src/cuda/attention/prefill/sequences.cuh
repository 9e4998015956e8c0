// The sequences of a call over KV caches, as the scheduler of tiles asks for them.
#pragma once

#include "common/divisor.hpp"
#include "cuda/attention/blocks/flash_tiles.cuh"
#include "cuda/attention/blocks/sequence_lengths.hpp"

namespace tilewright::cuda {
namespace prefill {

using Params = AttentionWithKvCacheParams;

// kv_batch is the sequence's row of caches without pages.
struct CacheTile : FlashTile {
  int sequence;
  int leftpad;

  __device__ VisibleKeys visible_keys(const Params& p) const {
    return {q_len, kv_len, p.causal, p.window, leftpad};
  }
};

// A tile over E4M3 caches. The descales are those of its sequence and KV head.
struct CodedTile : CacheTile {
  float scale;        // of its scores, with those of queries and keys
  float value_scale;  // the values' descale
};

// The keys of a sequence are split evenly; splits have at least the schedule's split_tiles.
// Packed sequences of at most `others_tokens` new tokens have no tiles: they are another launch's.
// Of packed sequences that are split, params().heads is heads * splits, and head
// split * heads + h is split `split` of head h.
class CacheSequences {
 public:
  __device__ CacheSequences(const Params& p, int others_tokens)
      : p_(p), others_tokens_(others_tokens) {}

  __device__ const Params& params() const { return p_; }

  __device__ int kv_len(int sequence) const { return lengths_of(p_, sequence).kv_len; }

  __device__ bool has_tiles(int q_len) const { return q_len > others_tokens_; }

  // Where all rows see the same keys, these come from L2 but for the first.
  __device__ bool keeps_rows_together() const { return !p_.causal; }

  template <typename Config>
  __device__ void write_keys(CacheTile& tile, const FlashSchedule& s, const Config& config,
                             int sequence, int row0, int q_len, int split) const {
    if (s.splits > 1 && p_.packed_q.cu_seqlens != nullptr) {
      const int heads = p_.heads / s.splits;
      split = tile.head / heads;
      tile.out_batch = split;
      write_head(tile, s, tile.head % heads);
    }
    const SequenceLengths lengths = lengths_of(p_, sequence);
    tile.sequence = sequence;
    tile.kv_batch = cache_row_of(p_, sequence);
    tile.kv_start = 0;
    tile.q_len = q_len;
    tile.kv_len = lengths.kv_len;
    tile.leftpad = lengths.leftpad;
    tile.seen_end = lengths.kv_len;
    const VisibleKeys keys(q_len, lengths.kv_len, p_.causal, p_.window, lengths.leftpad);
    const int tiles = ceil_div(lengths.kv_len, config.bc);
    write_key_tiles(tile, keys, config, row0, q_len, s.splits, split,
                    max(ceil_div(tiles, s.splits), s.split_tiles));
  }

 private:
  const Params& p_;
  int others_tokens_;
};

// The same over E4M3 caches. `kv_heads` is the number of KV heads, as a divisor.
class CodedSequences : public CacheSequences {
 public:
  __device__ CodedSequences(const Params& p, int others_tokens, const Divisor& kv_heads)
      : CacheSequences(p, others_tokens), kv_heads_(kv_heads) {}

  template <typename Config>
  __device__ void write_keys(CodedTile& tile, const FlashSchedule& s, const Config& config,
                             int sequence, int row0, int q_len, int split) const {
    const Params& p = params();
    // In memory all splits of a head have the same descales.
    const int kv_head = tile.kv_head - tile.kv_head / kv_heads_ * p.kv_heads;
    tile.scale = p.scale * descale_of(p.q_descale, sequence, kv_head) *
                 descale_of(p.k_descale, sequence, kv_head);
    tile.value_scale = descale_of(p.v_descale, sequence, kv_head);
    CacheSequences::write_keys(tile, s, config, sequence, row0, q_len, split);
  }

 private:
  __device__ static float descale_of(const Descales& descales, int sequence, int kv_head) {
    return descales.data != nullptr
               ? descales.data[sequence * descales.stride.batch + kv_head * descales.stride.head]
               : 1.0f;
  }

  const Divisor& kv_heads_;
};

}  // namespace prefill
}  // namespace tilewright::cuda
