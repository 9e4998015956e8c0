// What a problem of attention over KV caches must give.
#pragma once

#include "problems/kvcache_problem.hpp"

namespace tilewright::test {

// Expects outputs near the float64 oracle's, within the limits of expectation.hpp, and nothing
// written but outputs' rows and the slots of new rows, which hold these bit for bit.
void expect_right(const KvCacheProblem& problem, const KvCacheHostTensors& result);

// Expects the same bits in all outputs; with_caches: in the caches, too.
void expect_same_bits(KvCacheHostTensors& a, KvCacheHostTensors& b, bool with_caches = true);

}  // namespace tilewright::test
