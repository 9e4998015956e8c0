// A case's tensors: inputs in host memory with the expected results, and their copies on a
// machine.
#pragma once

#include <optional>

#include "cli/cases.hpp"
#include "cli/check.hpp"
#include "cli/machine.hpp"
#include "cli/timer.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::cli {

// Normally distributed inputs that depend on the case and its seed alone.
class HostInputs {
 public:
  explicit HostInputs(const AttentionCase& c);

  const reference::HostTensor& q() const { return q_; }
  const reference::HostTensor& k() const { return k_; }
  const reference::HostTensor& v() const { return v_; }
  const std::optional<reference::HostTensor>& sinks() const { return sinks_; }

  // Computes the expected results at the first call, which takes long.
  const Expected& expected();

 private:
  AttentionCase case_;
  reference::HostTensor q_, k_, v_;
  std::optional<reference::HostTensor> sinks_;
  std::optional<Expected> expected_;
};

// The inputs and outputs in a machine's memory.
class MachineTensors {
 public:
  MachineTensors(Machine& machine, const AttentionCase& c, const HostInputs& inputs);

  // Runs the kernel on poisoned outputs, with LSE, and compares them with the inputs' `expected`.
  CheckResult check(std::string_view kernel, const Expected& expected);

  // Allocates the workspace that the kernel needs and times the kernel, without LSE.
  Timing time(std::string_view kernel, const TimingOptions& options);

 private:
  AttentionTensors views(bool with_lse) const;
  Workspace make_workspace(std::string_view kernel, const AttentionTensors& tensors);

  Machine& machine_;
  AttentionCase case_;
  Memory q_, k_, v_, o_, lse_, sinks_, workspace_;
};

}  // namespace tilewright::cli
