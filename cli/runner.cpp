#include "cli/runner.hpp"

#include <fmt/core.h>

#include "cli/commands.hpp"

namespace tilewright::cli {
namespace {

constexpr double kGiga = 1e9;

}  // namespace

struct Runner::OpenCase {
  HostInputs& host_inputs() {
    if (!inputs) {
      inputs.emplace(c);
    }
    return *inputs;
  }

  MachineTensors& on(Machine& machine) {
    const DeviceKind kind = machine.device().kind;
    const auto found = tensors.find(kind);
    return found != tensors.end()
               ? found->second
               : tensors.try_emplace(kind, machine, c, host_inputs()).first->second;
  }

  const AttentionCase& c;
  std::optional<HostInputs> inputs = std::nullopt;
  std::map<DeviceKind, MachineTensors> tensors = {};
};

Runner::Runner(const RunOptions& options, std::string program, std::size_t total)
    : options_(options),
      program_(std::move(program)),
      wanted_device_(parse_device(options.device)),
      total_(total),
      results_(options.json_path, options.resume),
      progress_(total) {
  print_table_header();
}

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

void Runner::run(const AttentionCase& c, const std::vector<const AttentionKernel*>& kernels) {
  OpenCase open_case{.c = c};
  for (const AttentionKernel* kernel : kernels) {
    progress_.show(done_, fmt::format("{} {}", kernel->info.name, label(c.problem)));
    run_kernel(*kernel, open_case);
    ++done_;
  }
}

void Runner::run_kernel(const AttentionKernel& kernel, OpenCase& open_case) {
  const Device device = device_for(kernel.info, wanted_device_);
  const MachineDescription& description = describe(device);
  if (results_.contains(open_case.c, kernel.info.name, description.gpu)) {
    ++resumed_;
    return;
  }
  try {
    const Outcome outcome = outcome_of(kernel, device, open_case);
    results_.append(result_line(open_case.c, kernel.info.name, outcome, description));
    report(kernel, open_case.c, outcome);
  } catch (const std::exception&) {
    progress_.clear();
    fmt::print(stderr, "FAILED {} {}\n  reproduce: {}\n", kernel.info.name,
               label(open_case.c.problem), reproducing_command(kernel, open_case.c));
    throw;
  }
}

Outcome Runner::outcome_of(const AttentionKernel& kernel, Device device, OpenCase& open_case) {
  Outcome outcome;
  outcome.reason = why_not(kernel, open_case.c.problem, device);
  if (outcome.reason) {
    return outcome;
  }
  try {
    MachineTensors& tensors = open_case.on(machine(device));
    if (options_.check && flops(open_case.c) <= options_.check_limit_gflop * kGiga) {
      outcome.check = tensors.check(kernel.info.name, open_case.host_inputs().expected());
    }
    if (outcome.is_wrong()) {  // the time of a wrong result is worth nothing
      outcome.reason = "wrong result: " + outcome.check->failure;
    } else {
      outcome.timing = tensors.time(kernel.info.name, options_.timing);
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) {
      throw;
    }
    outcome.reason = error.what();
  }
  return outcome;
}

void Runner::report(const AttentionKernel& kernel, const AttentionCase& c, const Outcome& outcome) {
  progress_.clear();
  print_outcome(kernel.info.name, c, outcome);
  if (outcome.reason) {
    fmt::print("  reproduce: {}\n", reproducing_command(kernel, c));
  }
  ran_ += outcome.reason ? 0 : 1;
  wrong_ += outcome.is_wrong() ? 1 : 0;
  unsupported_ += outcome.reason && !outcome.is_wrong() ? 1 : 0;
  unchecked_ += outcome.timing && !outcome.check ? 1 : 0;
}

std::string Runner::reproducing_command(const AttentionKernel& kernel,
                                        const AttentionCase& c) const {
  const std::string device = options_.device.empty() ? "" : " --device " + options_.device;
  return fmt::format("{} attention --kernel {}{} {}{}", program_, kernel.info.name, device,
                     arguments(c), options_.check ? " --check" : "");
}

int Runner::finish(bool all_must_run) {
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
  return unsupported_ > 0 && (all_must_run || nothing_ran) ? kUnsupported : kPass;
}

}  // namespace tilewright::cli
