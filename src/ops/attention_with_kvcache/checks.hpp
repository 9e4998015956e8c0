// The checks of a call of attention_with_kvcache(), besides those of attention_checks.hpp.
#pragma once

#include <cstdint>

#include "ops/attention_checks.hpp"
#include "tilewright/attention_with_kvcache.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

inline constexpr std::int64_t kMaxTreeTokens = 64;  // of a sequence; a mask has so many bits

// Checks a call as far as it can be before a kernel is selected. Reads no data.
void check_arguments(const AttentionWithKvCacheTensors& tensors,
                     const AttentionWithKvCacheOptions& options);

// Checks that addresses and strides are aligned as the kernel's loads and stores need it.
void check_alignment(const AttentionWithKvCacheTensors& tensors, const KernelInfo& kernel);

// Checks the values of lengths, tables and indices. If they are on a GPU, it copies them from
// there, after the stream's work.
void check_values(const AttentionWithKvCacheTensors& tensors,
                  const AttentionWithKvCacheOptions& options, Stream stream);

// Of tensors that check_arguments() has passed:

// the number of sequences,
std::int64_t batch_size(const AttentionWithKvCacheTensors& tensors);

// and the most keys that a sequence can have.
std::int64_t capacity_of(const AttentionWithKvCacheTensors& tensors);

}  // namespace tilewright
