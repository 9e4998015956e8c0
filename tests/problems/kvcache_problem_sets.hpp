// The problems of attention over KV caches that kernels are held against.
#pragma once

#include <cstdint>
#include <vector>

#include "problems/kvcache_problem.hpp"

namespace tilewright::test {

// What a kernel takes: problems are made of it.
struct KvCacheChoices {
  std::vector<DType> dtypes;
  std::vector<HeadDims> head_dims;
  std::vector<KvCacheFeature> features;
};

// All that the kernel's facts allow, of these head dims if it takes any.
KvCacheChoices choices_of(const Kernel<AttentionWithKvCache>& kernel);

// `count` problems: decode, a few tokens, chunks; up to some hundred keys, now and then thousands;
// all features in random combinations, pages and layouts.
std::vector<KvCacheProblem> random_kvcache_problems(const KvCacheChoices& choices, int count,
                                                    std::uint64_t seed = 1);

// Edges, few enough for the sanitizers: no keys, one key, ends at pages' ends, tails, pages of one
// key and of 256, long sequences of one token, many sequences, trees that see little.
std::vector<KvCacheProblem> small_kvcache_problems(const KvCacheChoices& choices);

}  // namespace tilewright::test
