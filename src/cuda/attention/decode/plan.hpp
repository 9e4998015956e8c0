// How the decode kernel runs a problem: decided on the host, from shapes and the number of SMs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cuda/attention/decode/configs.hpp"
#include "cuda/attention/decode/schedule.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright::cuda {

struct DecodePlan {
  int config;   // of kDecodeConfigs
  int cluster;  // blocks of a worker
  int workers;
  int merge_tiles;     // key tiles that a block computes in the time that a merge of parts takes
  int box_rows;        // keys that a load brings
  int slot_rows;       // rows of a partial result
  int most_tokens;     // a sequence with more new tokens is another launch's
  bool next_may_join;  // the next launch may run beside this one
  bool loads_boxes;    // by TMA; or else row by row
  std::int64_t slots;  // partial results in the workspace
};

// The most marks that a block leaves beside a partial result: of each pass and warp.
inline constexpr int kMostMarks = 12;

// What lies where in the workspace, in bytes from its start.
struct DecodeWorkspace {
  std::size_t tickets;     // of further shares, 8 bytes
  std::size_t marks;       // (slots, cluster, kMostMarks) 8 bytes each
  std::size_t statistics;  // (slots, slot_rows, Dv / 4, 2) FP32: m and l, with some columns
  std::size_t o;           // (slots, slot_rows, Dv) FP32
  std::size_t bytes;
};

// What a Plan of this kernel has.
struct DecodeDetails {
  DecodePlan plan;
  DecodeWorkspace at;
};

// Are the problem's caches loaded by TMA, or else row by row? A lane asks for a box in some 40
// cycles: small boxes are slower than copies. A row must be in swizzles of 64 bytes or more.
bool loads_boxes(const AttentionWithKvCacheProblem& problem);

// Does this config have the problem's head dims, and take its caches?
bool takes(const DecodeConfig& config, const AttentionWithKvCacheProblem& problem);

// The config for `problem` on a GPU of `sms` SMs: the one whose row tiles have the fewest rows that
// hold a sequence's, or else the most; or one with fewer rows, where that is estimated to be faster
// (docs/worklog/decode.md, "The plan"). Nothing if there is none.
std::optional<int> best_decode_config(const AttentionWithKvCacheProblem& problem, int sms);

// The schedule's shape of a problem with so many heads, in row tiles of `tile_rows`; its masks are
// left to the caller.
DecodeShape decode_shape(int heads, int kv_heads, int tile_rows);

// The most units that a problem can have in this config, from its shapes.
std::int64_t most_units(const AttentionWithKvCacheProblem& problem, const DecodeConfig& config);

// The workspace of a plan.
DecodeWorkspace decode_workspace(const DecodePlan& plan, std::int64_t value_dim);

// The plan on a GPU of `sms` SMs in `config`.
DecodeDetails plan_decode(const AttentionWithKvCacheProblem& problem, int sms, int config);

}  // namespace tilewright::cuda
