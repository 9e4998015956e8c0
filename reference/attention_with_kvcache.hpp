// The test oracle of tilewright::attention_with_kvcache(), in float64.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/attention.hpp"
#include "tilewright/attention_with_kvcache.hpp"

namespace tilewright::reference {

// Where a sequence's key lies: in row `row` of the caches' entry `entry`, or, if the call appends
// it, in row `row` of entry `entry` of k and v (0 where they are packed).
struct KeyPlace {
  bool is_new;
  std::int64_t entry;
  std::int64_t row;
};

// A sequence of a call.
struct CachedSequence {
  std::int64_t batch;        // its entry in q; 0 where q is packed
  std::int64_t first_query;  // its first row there
  std::int64_t query_count;
  std::vector<KeyPlace> keys;  // new ones last
};

std::int64_t sequence_count(const AttentionWithKvCacheTensors& tensors);
CachedSequence sequence_of(const AttentionWithKvCacheTensors& tensors, std::int64_t b);

// The sequence that holds a key of sequence b: another one where it is of a shared prefix.
std::int64_t holder_of(const AttentionWithKvCacheTensors& tensors, std::int64_t b,
                       std::int64_t position);

// The place in the caches of a sequence's key, also of one that the call appends.
KeyPlace slot_of(const AttentionWithKvCacheTensors& tensors, std::int64_t b, std::int64_t position);

// The keys, by their numbers, that query i of sequence b sees.
std::vector<std::int64_t> seen_keys(const AttentionWithKvCacheTensors& tensors,
                                    const AttentionWithKvCacheOptions& options,
                                    const CachedSequence& sequence, std::int64_t b, std::int64_t i);

// Computes the problem on host tensors as they are before the call; results are as of attention().
AttentionResult attention_with_kvcache(const AttentionWithKvCacheTensors& tensors,
                                       const AttentionWithKvCacheOptions& options,
                                       Rounding rounding = Rounding::exact);

// Writes k and v to the caches, as the call must.
void append_new_rows(const AttentionWithKvCacheTensors& tensors);

}  // namespace tilewright::reference
