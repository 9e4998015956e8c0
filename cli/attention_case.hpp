// An attention problem as a case of the runner.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/attention_features.hpp"
#include "cli/case.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::cli {

// `sizes` has dtype and sizes with value_dim; the rest of the problem follows from the features.
// The inputs are normally distributed and depend on the sizes and the seed alone.
std::unique_ptr<Case> make_attention_case(const AttentionProblem& sizes,
                                          const AttentionFeatures& features, std::uint64_t seed);

}  // namespace tilewright::cli
