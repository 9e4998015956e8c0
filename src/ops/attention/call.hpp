// A call of attention(), as far as other operations have parts in common with it.
#pragma once

#include "ops/attention/params.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright {

AttentionProblem problem_of(const AttentionTensors& tensors, const AttentionOptions& options);

AttentionParams params_of(const AttentionTensors& tensors, const AttentionOptions& options,
                          const AttentionProblem& problem);

}  // namespace tilewright
