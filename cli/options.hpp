// The options that commands share, and what their values mean.
#pragma once

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cli/cases.hpp"
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

// Adds a flag with all of its names. It takes no value, or one that says on or off, as its
// environment variable does; a name after a "!" is its negation and takes no value.
CLI::Option* add_switch(CLI::App& app, const std::string& names, bool& value,
                        const std::string& help);

// Throws UsageError if a negation, --no-FLAG, has a value.
void check_negations(int argc, const char* const* argv);

struct RunOptions {
  std::vector<std::string> kernels;
  std::string device;  // empty: not given
  std::string dtype = "bf16";
  std::uint64_t seed = 0;
  bool check = false;
  double check_limit_gflop = std::numeric_limits<double>::infinity();
  TimingOptions timing;
  std::string json_path;
  bool resume = false;
};

// Adds all options but the limit and resume, which only the sweep has. Each can also be given as an
// environment variable; the command line overrides that.
void add_run_options(CLI::App& app, const std::string& kernel_option, RunOptions& options);

// Adds those of them that say how to measure.
void add_measurement_options(CLI::App& app, RunOptions& options);

// The functions below throw UsageError, which names the option.

DType parse_dtype(const std::string& text);

// The value of --scale-layout.
ScaleLayout parse_scale_layout(const std::string& text);

// Parses "cpu", "cuda" or "cuda:1"; nothing if `text` is empty.
std::optional<Device> parse_device(const std::string& text);

// The first GPU, or the CPU if there is none.
Device default_device();

// The device a kernel runs on: the one asked for, or the first of its kind.
Device device_for(const KernelInfo& kernel, std::optional<Device> wanted);

// Why a kernel cannot run a problem on its device, which may also be missing.
std::optional<std::string> why_not(const AttentionKernel& kernel, const AttentionProblem& problem,
                                   Device device);

// The kernels with the names asked for. "all" stands for every kernel that can run one of the
// problems on the device asked for (or the default one), "auto" for the fastest of these. Throws
// unsupported if there is none.
std::vector<const AttentionKernel*> choose_kernels(const std::string& option,
                                                   const std::vector<std::string>& names,
                                                   std::optional<Device> wanted,
                                                   const std::vector<AttentionProblem>& problems);

}  // namespace tilewright::cli
