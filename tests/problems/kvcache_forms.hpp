// Problems of attention over KV caches in other forms, whose results must be the same.
#pragma once

#include "problems/kvcache_problem.hpp"

namespace tilewright::test {

struct KvCacheForm {
  KvCacheProblem problem;
  KvCacheHostTensors tensors;
};

// The same problem in caches without pages, whose slots hold the same keys and values.
KvCacheForm without_pages(const KvCacheProblem& problem, KvCacheHostTensors& tensors);

// The same problem without shared prefixes: each sequence's own slots hold all of its keys. Its
// descales must not be the sequences'.
KvCacheForm without_prefixes(const KvCacheProblem& problem, KvCacheHostTensors& tensors);

// A call's sequence b by itself, in a batch of one, which is not packed. Its tensors are views of
// the call's: outputs go where the call writes them. The sequence must have new tokens, and share
// no prefix.
AttentionWithKvCacheTensors alone(const KvCacheProblem& problem,
                                  const AttentionWithKvCacheTensors& tensors, std::size_t b);

}  // namespace tilewright::test
