#include "cli/runner.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "cli/commands.hpp"
#include "cli/report.hpp"
#include "cli/results_file.hpp"

namespace tilewright::cli {
namespace {

using Kernels = std::vector<const KernelInfo*>;
using Cases = std::vector<std::unique_ptr<Case>>;

constexpr double kGiga = 1e9;

// ---- Choosing kernels

// Why a kernel cannot run a case on its device, which may also be missing.
std::optional<std::string> why_not(const Case& c, const KernelInfo& kernel, Device device) {
  try {
    const std::optional<Reason> reason = c.why_not(kernel, device);
    return reason ? std::optional(reason->argument + ": " + reason->message) : std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

// All kernels of a device that can run one of the cases. If there is none, the error has the reason
// of the device's fastest kernel for the first case.
Kernels runnable_kernels(Device device, const Cases& cases) {
  Kernels runnable;
  std::string reason = "the device has no kernels of this operation";
  for (const KernelInfo* const kernel : cases.front()->kernels()) {
    if (kernel->device != device.kind) {
      continue;
    }
    if (std::ranges::any_of(cases, [&](const auto& c) { return !why_not(*c, *kernel, device); })) {
      runnable.push_back(kernel);
    } else {
      reason = why_not(*cases.front(), *kernel, device).value_or("");
    }
  }
  if (runnable.empty()) {
    throw Error(ErrorCode::unsupported, "kernel",
                fmt::format("none can run {}: {}", cases.front()->label(), reason));
  }
  return runnable;
}

const KernelInfo* named_kernel(const std::string& option, const std::string& kernel_name,
                               const Case& c) {
  const KernelInfo* const kernel = c.find(kernel_name);
  if (kernel == nullptr) {
    std::vector<std::string> known;
    for (const KernelInfo* const each : c.kernels()) {
      known.push_back(each->name);
    }
    throw UsageError(option, fmt::format("is '{}', must be auto, all or some of {}", kernel_name,
                                         fmt::join(known, ",")));
  }
  return kernel;
}

// The kernels with the names asked for. "all" stands for every kernel that can run one of the cases
// on the device asked for (or the default one), "auto" for the fastest of these.
Kernels chosen_kernels(const RunOptions& options, const Cases& cases) {
  const auto runnable = [&] {
    const Device standard{cuda_device_count() > 0 ? DeviceKind::cuda : DeviceKind::cpu, 0};
    return runnable_kernels(parse_device(options.device).value_or(standard), cases);
  };
  Kernels chosen;
  for (const std::string& each : options.kernels) {
    if (each == "all") {
      const Kernels all = runnable();
      chosen.insert(chosen.end(), all.begin(), all.end());
    } else {
      chosen.push_back(each == "auto" ? runnable().back()
                                      : named_kernel(options.kernel_option, each, *cases.front()));
    }
  }
  return chosen;
}

Table table_of(const Kernels& kernels, const Cases& cases) {
  std::size_t kernel_width = 8;
  for (const KernelInfo* const kernel : kernels) {
    kernel_width = std::max(kernel_width, kernel->name.size());
  }
  std::size_t case_width = 44;
  for (const auto& c : cases) {
    case_width = std::max(case_width, c->label().size());
  }
  return {kernel_width, case_width};
}

// ---- Running them

// Tensors of one case, made when the first kernel needs them.
using OpenTensors = std::map<DeviceKind, std::unique_ptr<CaseTensors>>;

class Runner {
 public:
  // The table's header is the first thing that is printed, and only if the file can be written.
  Runner(const RunOptions& options, Kernels kernels, const Cases& cases)
      : options_(options),
        kernels_(std::move(kernels)),
        total_(cases.size() * kernels_.size()),
        results_(options.json_path, options.resume),
        table_(table_of(kernels_, cases)),
        progress_(total_) {
    table_.print_header();
  }

  // Runs every kernel on one case.
  void run(Case& c) {
    OpenTensors tensors;
    for (const KernelInfo* const kernel : kernels_) {
      progress_.show(done_, fmt::format("{} {}", kernel->name, c.label()));
      run_kernel(*kernel, c, tensors);
      ++done_;
    }
  }

  // Prints what was left out and returns the exit code.
  int finish() const;

 private:
  void run_kernel(const KernelInfo& kernel, Case& c, OpenTensors& tensors);
  Outcome outcome_of(const KernelInfo& kernel, Device device, Case& c, OpenTensors& tensors);
  void report(const KernelInfo& kernel, const Case& c, const Outcome& outcome);
  void run_copy(const KernelInfo& kernel, Device device, const Case& c, const Timing& timing);
  std::string reproducing_command(const KernelInfo& kernel, const Case& c) const;
  const MachineDescription& describe(Device device);
  Machine& machine(Device device);

  const RunOptions& options_;
  Kernels kernels_;
  std::size_t total_;
  ResultsFile results_;
  Table table_;
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

Machine& Runner::machine(Device device) {
  std::unique_ptr<Machine>& machine = machines_[device.kind];
  if (!machine) {
    machine = open_machine(device);
  }
  return *machine;
}

const MachineDescription& Runner::describe(Device device) {
  const auto [entry, is_new] = descriptions_.try_emplace(device.kind);
  if (is_new) {
    try {
      entry->second = description_of(machine(device));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::no_device) {
        throw;
      }
      entry->second = description_of(*open_cpu_machine());  // the machine that has no such device
    }
  }
  return entry->second;
}

void Runner::run_kernel(const KernelInfo& kernel, Case& c, OpenTensors& tensors) {
  const Device device = parse_device(options_.device).value_or(Device{kernel.device, 0});
  const MachineDescription& description = describe(device);
  if (results_.contains(c.to_json(), c.impl(kernel), description.gpu)) {
    ++resumed_;
    return;
  }
  try {
    const Outcome outcome = outcome_of(kernel, device, c, tensors);
    results_.append(result_line(c, c.impl(kernel), outcome, description));
    report(kernel, c, outcome);
    if (outcome.timing && c.compares_with_copy()) {
      run_copy(kernel, device, c, *outcome.timing);
    }
  } catch (const std::exception&) {
    progress_.clear();
    fmt::print(stderr, "FAILED {} {}\n  reproduce: {}\n", kernel.name, c.label(),
               reproducing_command(kernel, c));
    throw;
  }
}

Outcome Runner::outcome_of(const KernelInfo& kernel, Device device, Case& c, OpenTensors& tensors) {
  Outcome outcome;
  outcome.reason = why_not(c, kernel, device);
  if (outcome.reason) {
    return outcome;
  }
  try {
    std::unique_ptr<CaseTensors>& here = tensors[device.kind];
    if (!here) {
      here = c.make_tensors(machine(device));
    }
    if (options_.check && c.flops() <= options_.check_limit_gflop * kGiga) {
      outcome.check = here->check(kernel);
    }
    if (outcome.is_wrong()) {  // the time of a wrong result is worth nothing
      outcome.reason = "wrong result: " + outcome.check->failure;
    } else {
      outcome.timing = measure(machine(device), here->launch(kernel), options_.timing);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) {
      throw;
    }
    outcome.reason = error.what();
  }
  return outcome;
}

void Runner::report(const KernelInfo& kernel, const Case& c, const Outcome& outcome) {
  progress_.clear();
  table_.print(kernel.name, c, outcome, c.note(kernel));
  if (outcome.reason) {
    fmt::print("  reproduce: {}\n", reproducing_command(kernel, c));
  }
  ran_ += outcome.reason ? 0 : 1;
  wrong_ += outcome.is_wrong() ? 1 : 0;
  unsupported_ += outcome.reason && !outcome.is_wrong() ? 1 : 0;
  unchecked_ += outcome.timing && !outcome.check ? 1 : 0;
}

void Runner::run_copy(const KernelInfo& kernel, Device device, const Case& c,
                      const Timing& timing) {
  Outcome copy;
  const auto half = static_cast<std::size_t>(c.bytes() / 2);
  copy.timing = measure_copy(machine(device), half, options_.timing);
  results_.append(result_line(c, "copy", copy, describe(device)));
  table_.print("copy", c, copy);
  fmt::print("{}: {:.1f} % of the copy's bandwidth\n", kernel.name,
             100 * copy.timing->median_us / timing.median_us);
}

std::string Runner::reproducing_command(const KernelInfo& kernel, const Case& c) const {
  const std::string device = options_.device.empty() ? "" : " --device " + options_.device;
  return fmt::format("{} {} --kernel {}{}{}", options_.command->get_parent()->get_name(),
                     c.arguments(), kernel.name, device, options_.check ? " --check" : "");
}

int Runner::finish() const {
  progress_.clear();
  if (resumed_ > 0) {
    fmt::print("{} of {} were in {} already\n", resumed_, total_, options_.json_path);
  }
  if (options_.check && unchecked_ > 0) {
    fmt::print("{} not checked: above --check-limit, {} GFLOP\n", unchecked_,
               options_.check_limit_gflop);
  }
  if (wrong_ > 0) {
    fmt::print("{} of {} gave a wrong result\n", wrong_, total_);
    return kMismatch;
  }
  const bool nothing_ran = ran_ + resumed_ == 0;
  return unsupported_ > 0 && (options_.all_must_run || nothing_ran) ? kUnsupported : kPass;
}

}  // namespace

int run_cases(const RunOptions& options, std::vector<std::unique_ptr<Case>> cases) {
  if (options.resume && options.json_path.empty()) {
    throw UsageError("--resume", "needs --json FILE, the file to resume");
  }
  Runner runner(options, chosen_kernels(options, cases), cases);
  for (std::unique_ptr<Case>& c : cases) {
    runner.run(*c);
    c.reset();
  }
  return runner.finish();
}

int run_case(const RunOptions& options, std::unique_ptr<Case> c) {
  std::vector<std::unique_ptr<Case>> cases;
  cases.push_back(std::move(c));
  return run_cases(options, std::move(cases));
}

}  // namespace tilewright::cli
