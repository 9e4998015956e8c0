// The problems that kernels are held against.
#pragma once

#include <vector>

#include "problems/problem.hpp"

namespace tilewright::test {

// BF16 without any feature, for every kernel that takes the head dim: 200 of up to 700 queries and
// keys at 64 and 128, some at 256, and a few larger ones.
std::vector<Problem> random_problems();

// 2,400 of up to 300 queries and keys a sequence, a few longer: all features, head dims and both
// 16-bit dtypes in random combinations.
std::vector<Problem> feature_problems();

// More query tiles than a GPU has SMs, so that a block takes several, some of them without a key:
// causal, with used lengths, packed.
std::vector<Problem> many_tile_problems();

// Small problems around tile edges, and the special cases; few enough for the sanitizers.
std::vector<Problem> small_problems();

// The like of it with features.
std::vector<Problem> small_feature_problems();

// NaN and infinities in q, k and sinks: with and without splits, with every mask, and
// un-normalised. Those without sinks are for every kernel.
std::vector<Problem> special_problems();

}  // namespace tilewright::test
