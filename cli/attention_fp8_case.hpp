// A problem of attention on FP8 as a case of the runner.
#pragma once

#include <cstdint>
#include <memory>

#include "cli/attention_features.hpp"
#include "cli/case.hpp"
#include "tilewright/attention_fp8_kernels.hpp"

namespace tilewright::cli {

// `sizes` has the sizes; o is bf16. The inputs are normally distributed and depend on the sizes and
// the seed alone; they are quantised on the host. If incoherent, q and k are rotated, descales are
// of 128 rows, and v is transposed; otherwise descales are of sequences and key/value heads.
std::unique_ptr<Case> make_attention_fp8_case(const AttentionProblem& sizes,
                                              const AttentionFeatures& features, bool incoherent,
                                              std::uint64_t seed);

}  // namespace tilewright::cli
