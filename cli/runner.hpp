// Runs kernels on cases: checks and times them, prints, writes results lines, keeps the worst.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/case_tensors.hpp"
#include "cli/options.hpp"
#include "cli/report.hpp"
#include "cli/results_file.hpp"

namespace tilewright::cli {

class Runner {
 public:
  // `total` is the number of measurements. Commands that reproduce a failure call `program`.
  Runner(const RunOptions& options, std::string program, std::size_t total);

  // Runs every kernel on one case. Prints the command that repeats a CUDA error, and rethrows it.
  void run(const AttentionCase& c, const std::vector<const AttentionKernel*>& kernels);

  // Prints what was left out and returns the exit code: kMismatch after a wrong result,
  // kUnsupported if nothing could run or, with `all_must_run`, something could not.
  int finish(bool all_must_run);

 private:
  struct OpenCase;  // one case's tensors, made when the first kernel needs them

  void run_kernel(const AttentionKernel& kernel, OpenCase& open_case);
  Outcome outcome_of(const AttentionKernel& kernel, Device device, OpenCase& open_case);
  void report(const AttentionKernel& kernel, const AttentionCase& c, const Outcome& outcome);
  std::string reproducing_command(const AttentionKernel& kernel, const AttentionCase& c) const;
  const MachineDescription& describe(Device device);
  Machine& machine(Device device);

  RunOptions options_;
  std::string program_;
  std::optional<Device> wanted_device_;
  std::size_t total_;
  ResultsFile results_;
  ProgressBar progress_;
  std::map<DeviceKind, std::unique_ptr<Machine>> machines_;
  std::map<DeviceKind, MachineDescription> descriptions_;

  std::size_t done_ = 0;
  std::size_t resumed_ = 0;
  std::size_t ran_ = 0;
  std::size_t wrong_ = 0;
  std::size_t unsupported_ = 0;
  std::size_t unchecked_ = 0;
};

}  // namespace tilewright::cli
