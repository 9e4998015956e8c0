// The options that commands share, and what their values mean.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <limits>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/timer.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::cli {

// For an option's check(): refuses text that is no number of type T, and numbers for which `holds`
// is false, with "is TEXT, must be WHAT".
template <typename T>
CLI::Validator number(
    const std::string& what, bool (*holds)(T) = [](T) { return true; }) {
  return {[what, holds](const std::string& text) -> std::string {
            T value{};
            const char* const end = text.data() + text.size();
            const auto [rest, error] = std::from_chars(text.data(), end, value);
            const bool is_right = error == std::errc{} && rest == end && holds(value);
            return is_right ? "" : fmt::format("is {}, must be {}", text, what);
          },
          /*validator_desc=*/""};
}

// Accepts 1 to 2^30 - 1, which every size of a tensor must be.
CLI::Validator tensor_size();

// Accepts FP32 numbers that are finite and at least 0.
CLI::Validator non_negative_float();

// Adds an option for a size of a tensor: an integer, or an optional one.
template <typename Integer>
CLI::Option* add_size(CLI::App& app, const std::string& name, Integer& value,
                      const std::string& help) {
  return app.add_option(name, value, help)->check(tensor_size())->type_name("N");
}

// "a, b or c"
std::string one_of(const std::vector<std::string_view>& names);

// An option's values with their names.
template <typename T>
using Names = std::vector<std::pair<std::string_view, T>>;

inline const Names<DType> kFloats = {
    {"bf16", DType::bf16}, {"fp16", DType::fp16}, {"fp32", DType::fp32}};

inline const Names<DType> kFloatsAndE4m3 = {
    {"bf16", DType::bf16}, {"fp16", DType::fp16}, {"fp32", DType::fp32}, {"e4m3", DType::e4m3}};

inline const Names<ScaleLayout> kScaleLayouts = {{"linear", ScaleLayout::linear},
                                                 {"swizzled", ScaleLayout::swizzled}};

template <typename T>
std::string_view name_in(const Names<T>& names, const T& value) {
  return std::ranges::find(names, value, &std::pair<std::string_view, T>::second)->first;
}

// Adds an option for one of these values. `names` must stay.
template <typename T>
CLI::Option* add_named(CLI::App& app, const std::string& option, T& value, const Names<T>& names,
                       const std::string& help) {
  const auto find = [&names](const std::string& text) {
    return std::ranges::find(names, text, &std::pair<std::string_view, T>::first);
  };
  return app
      .add_option_function<std::string>(
          option, [&value, find](const std::string& text) { value = find(text)->second; }, help)
      ->check([&names, find](const std::string& text) -> std::string {
        const auto keys = names | std::views::keys;
        return find(text) != names.end()
                   ? ""
                   : fmt::format("is '{}', must be {}", text, one_of({keys.begin(), keys.end()}));
      })
      ->default_str(std::string(name_in(names, value)));
}

// Adds a flag with all of its names. It takes no value, or one that says on or off, as its
// environment variable does; a name after a "!" is its negation and takes no value.
CLI::Option* add_switch(CLI::App& app, const std::string& names, bool& value,
                        const std::string& help);

// Throws UsageError if a negation, --no-FLAG, has a value.
void check_negations(int argc, const char* const* argv);

// What the runner is told.
struct RunOptions {
  const CLI::App* command = nullptr;
  std::string kernel_option;
  std::vector<std::string> kernels = {"auto"};
  std::string device;  // empty: not given
  DType dtype = DType::bf16;
  std::uint64_t seed = 0;
  bool check = false;
  double check_limit_gflop = std::numeric_limits<double>::infinity();
  TimingOptions timing;
  std::string json_path;
  bool resume = false;
  bool all_must_run = true;  // or else it is enough that one kernel runs one case
};

// Adds all options but the limit and resume, which only the sweep has. Each but --json can also be
// given as an environment variable; the command line overrides that.
void add_run_options(CLI::App& app, const std::string& kernel_option, const std::string& dtype_help,
                     RunOptions& options, const Names<DType>& dtypes = kFloats);

// Parses "cpu", "cuda" or "cuda:1"; nothing if `text` is empty. Throws UsageError.
std::optional<Device> parse_device(const std::string& text);

}  // namespace tilewright::cli
