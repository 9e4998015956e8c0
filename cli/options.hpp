// The options that commands share, and what their values mean.
#pragma once

#include <CLI/CLI.hpp>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "cli/cases.hpp"
#include "cli/timer.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::cli {

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

// Adds all but the limit and resume, which are the sweep's. Each can also be given as an
// environment variable; the command line wins.
void add_run_options(CLI::App& app, const std::string& kernel_option, RunOptions& options);

// Those of them that say how to measure, whatever it is.
void add_measurement_options(CLI::App& app, RunOptions& options);

// The functions below throw UsageError, which names the option.

void check_timing(const TimingOptions& options);

// Between 1 and 2^30 - 1, as every size of a tensor.
void check_size(const std::string& option, std::int64_t value);

DType parse_dtype(const std::string& text);

// Of --scale-layout.
ScaleLayout parse_scale_layout(const std::string& text);

// "cpu", "cuda" or "cuda:1"; nothing where `text` is empty.
std::optional<Device> parse_device(const std::string& text);

// The first GPU, or the CPU where there is none.
Device default_device();

// The device a kernel runs on: the one asked for, or the first of its kind.
Device device_for(const KernelInfo& kernel, std::optional<Device> wanted);

// Why a kernel cannot run a problem there, a missing device included.
std::optional<std::string> why_not(const KernelInfo& kernel, const AttentionProblem& problem,
                                   Device device);

// The kernels of those names. "all" stands for every kernel that can run one of the problems on the
// device asked for (or the default one), "auto" for the fastest of these. Throws unsupported where
// there is none.
std::vector<const KernelInfo*> choose_kernels(const std::string& option,
                                              const std::vector<std::string>& names,
                                              std::optional<Device> wanted,
                                              const std::vector<AttentionProblem>& problems);

}  // namespace tilewright::cli
