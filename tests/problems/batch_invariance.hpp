// A sequence's rows must be the same bits in every batch that it is computed in.
#pragma once

#include <functional>

#include "problems/problem.hpp"

namespace tilewright::test {

// Computes a problem on host tensors and leaves the results in them.
using Run = std::function<void(const Problem& problem, HostTensors& tensors)>;

// Runs `alone`, a problem of one sequence and dense memory, by itself and at several places among
// other sequences of batches of several sizes. Packed sequences (where alone.q_lens and kv_lens are
// given) have other lengths than their neighbours.
void expect_batch_invariant(const Problem& alone, const Run& run);

}  // namespace tilewright::test
