// The problems that are checked and timed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tilewright/attention_kernels.hpp"

namespace tilewright::cli {

using AttentionKernel = Kernel<Attention>;

// The command line's value for a side of the window without a limit.
inline constexpr std::int64_t kNoWindow = -1;

struct AttentionCase {
  AttentionProblem problem;    // value_dim is given
  std::optional<float> scale;  // 1 / sqrt(head_dim) when absent
  Window window{};
  float softcap = 0;
  std::uint64_t seed = 0;  // of the random inputs

  AttentionOptions options(std::string_view kernel) const {
    return {.causal = problem.causal,
            .window = window,
            .scale = scale,
            .softcap = softcap,
            .kernel = kernel};
  }
};

// Nominal floating-point operations of one call: 2 B H (D + Dv) for each pair of a query and a key.
// A causal mask leaves half of all Nq Nk pairs; with a window only pairs that are seen count.
double flops(const AttentionCase& c);

// Bytes that must cross the memory bus at least once: q, k, v and o.
double compulsory_bytes(const AttentionProblem& problem);

// "bf16 b4 q4096 kv4096 h16/16 d128 causal", "... d192/128 full window softcap sinks"
std::string label(const AttentionProblem& problem);

// The arguments of `tilewright attention` that give exactly this case, whatever the environment
// says.
std::string arguments(const AttentionCase& c);

// Every head dim, sequence length and mask of a sweep with the same number of tokens (batch x
// length) and of columns (heads x head dim) throughout.
struct Sweep {
  std::vector<std::int64_t> head_dims = {64, 128, 256};
  std::vector<std::int64_t> seqlens = {512, 1024, 2048, 4096, 8192, 16384};
  std::vector<bool> causal = {false, true};
  std::int64_t tokens = 16384;
  std::int64_t hidden = 2048;
  DType dtype = DType::bf16;
};

// Sequence lengths innermost. The sizes must divide: see the command's checks.
std::vector<AttentionProblem> problems(const Sweep& sweep);

}  // namespace tilewright::cli
