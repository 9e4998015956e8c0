// Runs kernels on cases: checks, times, prints, writes results lines, and remembers the worst.
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
  // `total` measurements are to come. `program` is what the reproducing commands call.
  Runner(const RunOptions& options, std::string program, std::size_t total);

  // Every kernel on one case. A CUDA error is thrown on, after the command that reproduces it.
  void run(const AttentionCase& c, const std::vector<const AttentionKernel*>& kernels);

  // Says what was left out and returns the exit code: kMismatch after a wrong result, kUnsupported
  // where nothing could run or, with `all_must_run`, something could not.
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
