// How the prefill kernel runs a problem: decided on the host, from shapes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "cuda/attention/blocks/split_params.hpp"
#include "cuda/attention/decode/plan.hpp"
#include "cuda/attention/prefill/e4m3_configs.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright::cuda {

struct PrefillPlan {
  int config;    // of kPrefillConfigs, or of kPrefillE4m3Configs
  int section;   // heads of a section: FlashSchedule has the order of tiles
  int box_rows;  // keys that a TMA load brings; 1 where rows are copied
  bool copies_rows;
  int sequences;      // of packed ones, how many may have tokens
  int others_tokens;  // sequences of at most so many tokens run in decode; 0: none does
  int splits;         // pieces of the keys, each computed by blocks of its own
  bool joins;         // runs beside the launch before, which has other sequences or other keys
};

// What a Plan of this kernel has.
struct PrefillDetails {
  PrefillPlan plan;
  std::size_t bytes;   // of the workspace: a ticket of 8 bytes; behind it decode's, and the splits
  SplitPlaces splits;  // if there are several
  DecodeDetails decode;  // if sequences run there
};

// Where decode's workspace begins in that of this kernel, in bytes.
inline constexpr std::size_t kPrefillDecodeAt = 256;

// The keys that a split has at least. How many each has depends on the lengths in memory.
inline constexpr int kMinPrefillSplit = 1024;

// The config for `problem`; nothing if none has its head dims.
std::optional<int> prefill_config(const AttentionWithKvCacheProblem& problem);

// Row `config` of kPrefillE4m3Configs for E4M3 caches, else of kPrefillConfigs.
const PrefillConfig& prefill_tiles(const AttentionWithKvCacheProblem& problem, int config);

// Are a page's rows too few for TMA, so that they are copied one by one? Those of E4M3 are not.
bool copies_rows(const AttentionWithKvCacheProblem& problem);

// Where they are not copied, pages have a multiple of so many rows, since TMA writes a page's rows
// to a multiple of 128 bytes.
std::int64_t prefill_page_rows(const AttentionWithKvCacheProblem& problem);

bool prefill_loads(const AttentionWithKvCacheProblem& problem);

// A sequence with at most so many new tokens runs in decode. Its own number decides, not its
// neighbours'.
int most_decode_tokens(const AttentionWithKvCacheProblem& problem);

// May a sequence have more new tokens than that, and may one have no more, as far as the host
// knows? A single packed sequence counts as one that is not packed, unless the call is
// batch-invariant.
bool may_have_chunks(const AttentionWithKvCacheProblem& problem);
bool may_have_few_tokens(const AttentionWithKvCacheProblem& problem);

// The keys of the largest box that divides a page and a key tile.
int largest_box(std::int64_t page_size, int bc);

// The plan for all sequences in `config`, on a GPU of `sms` SMs.
PrefillDetails plan_prefill(const AttentionWithKvCacheProblem& problem, int sms, int config);

// The same where sequences of at most most_decode_tokens() run in decode, or all do.
PrefillDetails plan_chunks(const AttentionWithKvCacheProblem& problem, int sms);

}  // namespace tilewright::cuda
