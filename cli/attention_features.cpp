#include "cli/attention_features.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "cli/options.hpp"

namespace tilewright::cli {
namespace {

std::optional<std::int64_t> window_side(std::int64_t value) {
  return value == kNoWindow ? std::nullopt : std::optional(value);
}

Json side_of_window(std::int64_t value) { return value == kNoWindow ? Json() : Json(value); }

void add_window_side(CLI::App& command, const std::string& option, const std::string& environment,
                     std::int64_t& value, const std::string& help) {
  command.add_option(option, value, help)
      ->check(number<std::int64_t>("a whole number from 0 to 2^63 - 1, or -1: no limit",
                                   [](std::int64_t side) { return side >= kNoWindow; }))
      ->envname(environment)
      ->type_name("N");
}

bool has_window(const AttentionFeatures& features) {
  return features.window_left != kNoWindow || features.window_right != kNoWindow;
}

}  // namespace

Window AttentionFeatures::window() const {
  return {.left = window_side(window_left), .right = window_side(window_right)};
}

void add_attention_features(CLI::App& command, AttentionFeatures& features) {
  add_switch(command, "--causal,!--no-causal", features.causal,
             "Query i sees keys up to i + kv-seqlen - seqlen (default: all)")
      ->envname("CAUSAL");
  add_window_side(command, "--window-left", "WINDOW_LEFT", features.window_left,
                  "Keys that a query sees to its left (default: -1, all)");
  add_window_side(command, "--window-right", "WINDOW_RIGHT", features.window_right,
                  "Keys that a query sees to its right (default: -1, all)");
  command.add_option("--softcap", features.softcap, "Bends scores s to C tanh(s / C); 0: not")
      ->check(non_negative_float())
      ->envname("SOFTCAP")
      ->type_name("C")
      ->capture_default_str();
  add_switch(command, "--sinks,!--no-sinks", features.sinks,
             "A random sink logit for each head (default: none)")
      ->envname("SINKS");
  command.add_option("--scale", features.scale, "Of Q K^T (default: 1 / sqrt(headdim))")
      ->check(non_negative_float())
      ->envname("SCALE")
      ->type_name("FLOAT");
}

std::string feature_arguments(const AttentionFeatures& f) {
  std::string text = fmt::format(
      "--{}causal --window-left {} --window-right {} --softcap {} --{}sinks", f.causal ? "" : "no-",
      f.window_left, f.window_right, f.softcap, f.sinks ? "" : "no-");
  if (f.scale) {
    text += fmt::format(" --scale {}", *f.scale);
  }
  return text;
}

void add_features(const AttentionFeatures& f, Json& object) {
  if (f.scale) {
    object["scale"] = *f.scale;
  }
  if (has_window(f)) {
    object["window"] = {side_of_window(f.window_left), side_of_window(f.window_right)};
  }
  if (f.softcap > 0) {
    object["softcap"] = f.softcap;
  }
  if (f.sinks) {
    object["sinks"] = true;
  }
}

std::string feature_label(const AttentionFeatures& f) {
  return fmt::format("{}{}{}{}", f.causal ? "causal" : "full", has_window(f) ? " window" : "",
                     f.softcap > 0 ? " softcap" : "", f.sinks ? " sinks" : "");
}

double attention_pairs(std::int64_t q_len, std::int64_t kv_len, const AttentionFeatures& f) {
  if (!has_window(f) && (!f.causal || q_len == kv_len)) {
    const double all = static_cast<double>(q_len) * static_cast<double>(kv_len);
    return f.causal ? all / 2 : all;
  }
  const Window window = f.window();
  const std::int64_t all = q_len + kv_len;
  const std::int64_t left = std::min(window.left.value_or(all), all);
  const std::int64_t right = f.causal ? 0 : std::min(window.right.value_or(all), all);
  double seen = 0;
  for (std::int64_t i = 0; i < q_len; ++i) {
    const std::int64_t here = i + kv_len - q_len;
    const std::int64_t first = std::max<std::int64_t>(here - left, 0);
    const std::int64_t end = std::min(here + right + 1, kv_len);
    seen += static_cast<double>(std::max<std::int64_t>(end - first, 0));
  }
  return seen;
}

}  // namespace tilewright::cli
