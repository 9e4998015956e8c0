// Attention problems for the GPU tests: shapes, memory layouts, inputs, and what is expected.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "reference/attention.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::test {

// The order of a (B, N, H, D) tensor in memory.
enum class MemoryOrder { dense, heads_first, padded_rows, broadcast_kv };

enum class Inputs { normal, large, constant, rising };

struct Problem {
  std::int64_t batch = 1;
  std::int64_t q_len = 1;
  std::int64_t kv_len = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
  bool causal = false;
  MemoryOrder order = MemoryOrder::dense;
  Inputs inputs = Inputs::normal;
  std::optional<float> scale = std::nullopt;
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const Problem& problem);

// Host inputs of a problem, and outputs filled with NaN bytes.
struct ProblemTensors {
  explicit ProblemTensors(const Problem& problem);

  AttentionTensors views();

  reference::HostTensor q, k, v, o, lse;
};

struct Expected {
  reference::AttentionResult exact;
  double rounded_max_abs = 0;  // the largest error of the BF16-rounded reference
};

// Computed once per problem and kept: the kernels share it.
const Expected& expected_of(const Problem& problem);

// The random problems that every kernel is held against, as far as it takes their head dim: 200 of
// up to 700 queries and keys at 64 and 128, some at 256, and a few larger ones.
std::vector<Problem> random_problems();

// Small problems around tile edges, and the special cases; few enough for the sanitizers.
std::vector<Problem> small_problems();

AttentionOptions options_of(const Problem& problem, std::string_view kernel);

}  // namespace tilewright::test
