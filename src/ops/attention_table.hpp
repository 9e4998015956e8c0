// What the tables of attention operations share: facts of head dims and features.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/reasons.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright {

inline constexpr int kMaxHeadDim = 1 << 14;  // of kernels that take any

// Facts in words: the head dims, and which of all features a kernel has not.
template <typename Facts, typename Feature>
std::vector<Limit> limits_of(const Facts& facts, std::span<const Feature> all_features) {
  std::vector<Limit> limits = {{"head_dim", facts.head_dims.empty()
                                                ? "at most " + std::to_string(kMaxHeadDim)
                                                : names_of(facts.head_dims)}};
  for (const Feature feature : all_features) {
    if (std::ranges::find(facts.features, feature) == facts.features.end()) {
      limits.push_back({std::string(name(feature)), "none"});
    }
  }
  return limits;
}

template <typename Problem>
std::int64_t value_dim_of(const Problem& problem) {
  return problem.value_dim == 0 ? problem.head_dim : problem.value_dim;
}

inline std::optional<Reason> size_reason(const AttentionProblem& problem) {
  return size_range_reason({{"batch", problem.batch},
                            {"q_len", problem.q_len},
                            {"kv_len", problem.kv_len},
                            {"heads", problem.heads},
                            {"kv_heads", problem.kv_heads},
                            {"head_dim", problem.head_dim},
                            {"value_dim", value_dim_of(problem)}});
}

template <typename Row, typename Problem>
std::optional<Reason> head_dim_reason(const Row& kernel, const Problem& problem) {
  const HeadDims dims{static_cast<int>(problem.head_dim), static_cast<int>(value_dim_of(problem))};
  if (kernel.facts.head_dims.empty()) {
    return std::max(dims.qk, dims.v) <= kMaxHeadDim
               ? std::nullopt
               : std::optional(takes_reason(kernel.info, "q", "head_dim " + name(dims),
                                            "at most " + std::to_string(kMaxHeadDim)));
  }
  if (std::ranges::find(kernel.facts.head_dims, dims) != kernel.facts.head_dims.end()) {
    return std::nullopt;
  }
  return takes_reason(kernel.info, "q", "head_dim " + name(dims), names_of(kernel.facts.head_dims));
}

// The first feature that the problem asks for and the kernel has not. An operation's given_for()
// has the words for what asks for a feature.
template <typename Row, typename Problem, typename Feature>
std::optional<Reason> feature_reason(const Row& kernel, const Problem& problem,
                                     std::span<const Feature> all_features,
                                     std::string_view (*given_for)(Feature)) {
  for (const Feature feature : all_features) {
    if (problem.asks_for(feature) &&
        std::ranges::find(kernel.facts.features, feature) == kernel.facts.features.end()) {
      return Reason{
          ErrorCode::unsupported, std::string(name(feature)),
          std::string(given_for(feature)) + ", kernel " + kernel.info.name + " takes none"};
    }
  }
  return std::nullopt;
}

// A block's index must fit 31 bits, also with a block for each 16 x 16 elements of O; and a tile's
// number, which counts splits as well, must fit the 28 bits of a ticket. `batch` is that of q: 1
// where it is packed.
template <typename Row, typename Problem>
std::optional<Reason> launch_reason(const Row& kernel, const Problem& problem, std::int64_t batch,
                                    int splits) {
  constexpr double kMaxRows = 1 << 28;
  const double rows = static_cast<double>(batch) * static_cast<double>(problem.heads) *
                      static_cast<double>(problem.q_len);
  if (kernel.info.device != DeviceKind::cuda || rows * splits <= kMaxRows) {
    return std::nullopt;
  }
  return Reason{ErrorCode::unsupported, "q",
                "has " + std::to_string(batch) + " x " + std::to_string(problem.q_len) + " x " +
                    std::to_string(problem.heads) + " rows (batch, seqlen, heads)" +
                    (splits == 1 ? ", a launch takes at most 2^28"
                                 : " in " + std::to_string(splits) +
                                       " parts of the keys, a launch takes at most 2^28 of both "
                                       "together")};
}

}  // namespace tilewright
