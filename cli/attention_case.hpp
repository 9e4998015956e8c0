// An attention problem as a case of the runner.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/case.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::cli {

// The command line's value for a side of the window without a limit.
inline constexpr std::int64_t kNoWindow = -1;

// `sizes` has dtype, sizes with value_dim, and sinks; the rest of the problem follows from
// `options`. The inputs are normally distributed and depend on the sizes and the seed alone.
std::unique_ptr<Case> make_attention_case(const AttentionProblem& sizes,
                                          const AttentionOptions& options, std::uint64_t seed);

}  // namespace tilewright::cli
