// Attention of new tokens over KV caches: O = softmax(scale * Q K^T + mask) V, where K and V lie in
// caches, whole or in pages, of which each sequence uses as many rows as it is long. Any number of
// new tokens, from one (decode) to thousands (prefill in chunks), mixed in one call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tilewright/attention.hpp"
#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// Shapes: B sequences, Nq new tokens of each, H query heads, Hk key/value heads, D head dim of q
// and keys, Dv of values and o (mostly the same).
//   q        (B, Nq, H, D), or (Tq, H, D) with cu_seqlens_q, which is as of AttentionTensors
//   o        the same with Dv; the dtype of q, but bf16 where q is e4m3 (see below)
//   lse      (B, H, Nq), or (H, Tq), fp32, natural log, as of AttentionTensors
//   k_cache  (R, capacity, Hk, D): contiguous, row b (or cache_batch_idx[b]) is sequence b's; or,
//            with block_table, (pages, page_size, Hk, D)
//   v_cache  the same with Dv
// The head dimension is contiguous; every other stride is free, in elements: caches laid out as
// (pages, Hk, page_size, D), or with K and V of a page one after the other, are views. H is a
// multiple of Hk. Caches have the dtype of q, or e4m3 (see below).
//
//   cache_seqlens    (B) int32: sequence b's keys that are in the cache already. They are the
//                    rows [0, cache_seqlens[b]) of its cache
//   block_table      (B, max_pages) int32: position p of sequence b lies in row p % page_size of
//                    page block_table[b, p / page_size]. Entries beyond the sequence's length may
//                    be anything. Its last dimension is contiguous
//   cache_batch_idx  (B) int32: the row of the caches that is sequence b's, if it is not b. Not
//                    together with block_table
//   leftpad_k        (B) int32: no query of sequence b sees keys before this one. A value from 0 to
//                    the sequence's length
//   prefix_groups, prefix_seqlens
//                    (G + 1) and (G) int32: prefixes that sequences share. Group g is the sequences
//                    [prefix_groups[g], prefix_groups[g + 1]) of the batch, all groups together are
//                    the batch, and a group may be empty. The first prefix_seqlens[g] keys of each
//                    of its sequences are the same. They count in each sequence's length, but are
//                    read where the group's first sequence has them, and with its descales: what
//                    the others' tables and caches have there may be anything. The cache holds
//                    them before the call, and every new token of the group sees all of them. Not
//                    together with leftpad_k or a window
//   k, v             new rows, (B, Nn, Hk, D) and (B, Nn, Hk, Dv) of the cache's dtype, or, with
//                    cu_seqlens_q, (Tq, Hk, D) and (Tq, Hk, Dv). The call writes them to the
//                    positions cache_seqlens[b] and on before it attends, and they count as keys
//   sinks, row_max, row_sum   as of AttentionTensors
//
// Sequence b has Nk keys: cache_seqlens[b], and its new rows if k and v are given. A mask's
// diagonal ends at the bottom right: new token i stands at key i + Nk - Nq. Keys that no query sees
// may be anything, even NaN.
//
//   tree_mask        (B, Nq) or, with cu_seqlens_q, (Tq) int64, where a sequence has at most 64 new
//                    tokens: bit j of token i says whether it sees token j's key. The keys of the
//                    new tokens are the last Nq of the sequence; a token sees all keys before them
//                    that leftpad_k lets it see. Not together with causal or a window
//
// E4M3 caches hold values divided by a descale: key = k_descale * byte. k_descale and v_descale are
// fp32 of shape (1): one for all; of shape (B, Hk); or of the caches' shape without the head
// dimension: one for each row and head. Absent, they are 1. Over such caches q may be E4M3 too:
// query = q_descale * byte, with q_descale fp32 of shape (1), or of shape (B, Hk), one for all
// query heads of a key/value head; absent it is 1. On a GPU, E4M3 queries are taken where no prefix
// is shared; and prefill takes no descales of rows, with which decode runs any number of tokens. A
// NaN in a query makes its row's results NaN; in an E4M3 cache it counts as 480 there. Over E4M3
// caches decode needs BF16 queries below 2^67, and descales of V's rows below 2^47.
//
// On CPU tensors the values of lengths, tables and indices are checked. On CUDA tensors they are
// checked only if options.check_values is set. Without it, a length beyond the capacity counts as
// the capacity, one below 0 as 0, and a padding or a prefix out of range as the nearest in range.
// Where a page or a row of the caches is out of range, zeros are read, and new rows are not
// written. The results mean nothing then, but no access strays.
struct AttentionWithKvCacheTensors {
  ConstTensorView q;
  TensorView k_cache;  // written only where k and v are given
  TensorView v_cache;
  TensorView o;
  ConstTensorView cache_seqlens;
  std::optional<ConstTensorView> block_table = std::nullopt;
  std::optional<ConstTensorView> cache_batch_idx = std::nullopt;
  std::optional<ConstTensorView> leftpad_k = std::nullopt;
  std::optional<ConstTensorView> prefix_groups = std::nullopt;
  std::optional<ConstTensorView> prefix_seqlens = std::nullopt;
  std::optional<ConstTensorView> cu_seqlens_q = std::nullopt;
  std::optional<ConstTensorView> k = std::nullopt;
  std::optional<ConstTensorView> v = std::nullopt;
  std::optional<ConstTensorView> q_descale = std::nullopt;
  std::optional<ConstTensorView> k_descale = std::nullopt;
  std::optional<ConstTensorView> v_descale = std::nullopt;
  std::optional<ConstTensorView> tree_mask = std::nullopt;
  std::optional<ConstTensorView> sinks = std::nullopt;
  std::optional<TensorView> lse = std::nullopt;
  std::optional<TensorView> row_max = std::nullopt;
  std::optional<TensorView> row_sum = std::nullopt;
};

// As of AttentionOptions, where nothing else is said.
struct AttentionWithKvCacheOptions {
  bool causal = false;
  Window window{};
  std::optional<float> scale = std::nullopt;
  float softcap = 0.0f;
  // A row's result depends on its own sequence alone: not on the rest of the batch, nor on its
  // place there, nor on which pages hold its keys.
  bool batch_invariant = false;
  // Copies the lengths, tables and indices from the GPU to check their values. This waits for the
  // stream and cannot be captured in a CUDA graph. It is for debugging.
  bool check_values = false;
  // The most new tokens of a sequence, where q is packed, and the most keys, new rows included. The
  // call is planned for them: results are right where a sequence has more, but may take longer. 0:
  // the host does not know. Not looked at where the call is batch-invariant.
  std::int64_t max_seqlen_q = 0;
  std::int64_t max_seqlen_k = 0;
  // A name of a kernel or variant, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// The bytes of workspace that attention_with_kvcache() needs. It depends on shapes, dtypes and
// devices, never on data. Throws what the call would throw, the workspace check aside.
std::size_t attention_with_kvcache_workspace_bytes(const AttentionWithKvCacheTensors& tensors,
                                                   const AttentionWithKvCacheOptions& options = {});

// Computes o and, where given, the row statistics, and appends k and v, where given. On CUDA
// tensors the work is queued on `stream` and the call returns at once; it neither allocates nor
// synchronises and can be captured in a CUDA graph. A graph may be replayed with other lengths,
// tables and indices in the same tensors. On CPU tensors the results are there on return. Throws
// tilewright::Error, with nothing written, when an argument is wrong or no kernel can run the
// problem.
void attention_with_kvcache(const AttentionWithKvCacheTensors& tensors,
                            const AttentionWithKvCacheOptions& options = {},
                            Workspace workspace = {}, Stream stream = nullptr);

}  // namespace tilewright
