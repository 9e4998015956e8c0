// The options of attention's commands that say what a query sees and how scores are bent.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/case.hpp"
#include "tilewright/attention.hpp"

namespace tilewright::cli {

// The command line's value for a side of the window without a limit.
inline constexpr std::int64_t kNoWindow = -1;

struct AttentionFeatures {
  bool causal = false;
  std::int64_t window_left = kNoWindow;
  std::int64_t window_right = kNoWindow;
  float softcap = 0.0f;
  bool sinks = false;
  std::optional<float> scale = std::nullopt;

  Window window() const;
};

void add_attention_features(CLI::App& command, AttentionFeatures& features);

// The options that give exactly these features, whatever the environment says.
std::string feature_arguments(const AttentionFeatures& features);

// Adds those that are on, the causal mask aside, to the `case` object of results lines.
void add_features(const AttentionFeatures& features, Json& object);

// "causal window softcap sinks", or "full ..."
std::string feature_label(const AttentionFeatures& features);

// How many pairs of a query and a key count as work, as the race counts them: half of all under a
// causal mask with as many queries as keys, else the pairs that are seen.
double attention_pairs(std::int64_t q_len, std::int64_t kv_len, const AttentionFeatures& features);

}  // namespace tilewright::cli
