// What an operation says of one problem, so that the runner can choose kernels for it, check them,
// time them and record them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/machine.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::cli {

using Json = nlohmann::ordered_json;

// How far a kernel's result is from the expected one.
struct CheckResult {
  double rel_fro_error = 0;
  double max_abs_error = 0;
  std::string failure = {};  // what is wrong; empty if the result passes
  std::string summary = {};  // what a table's row says of a result that passes
};

// A case's inputs and outputs in a machine's memory.
class CaseTensors {
 public:
  virtual ~CaseTensors() = default;

  // One call by a kernel that can run the case, with the workspace that it needs. It may be queued
  // until the next launch is asked for.
  virtual Launch launch(const KernelInfo& kernel) = 0;

  // Runs the kernel once on poisoned outputs, and compares them with the expected ones.
  virtual CheckResult check(const KernelInfo& kernel) = 0;
};

// One problem with its random inputs, which are made with the first tensors.
class Case {
 public:
  virtual ~Case() = default;

  // The operation, and the `case` object, of results lines.
  virtual std::string_view operation() const = 0;
  virtual Json to_json() const = 0;

  // A few words for a table's row.
  virtual std::string label() const = 0;

  // The command and the options that give exactly this case, whatever the environment says.
  virtual std::string arguments() const = 0;

  // Nominal floating-point operations of one call.
  virtual double flops() const = 0;

  // Bytes of all inputs and outputs, each moved once.
  virtual double bytes() const = 0;

  // The kernels that "all" and "auto" choose from, in ascending order of speed.
  virtual std::vector<const KernelInfo*> kernels() const = 0;

  // The kernel or variant of that name, or null.
  virtual const KernelInfo* find(std::string_view kernel) const = 0;

  // Why a kernel cannot run the case on a device; nothing if it can. Throws no_device if there is
  // no such device.
  virtual std::optional<Reason> why_not(const KernelInfo& kernel, Device device) const = 0;

  // Throws Error(unsupported, "memory") if host or machine have too little of it. The tensors may
  // not outlive the case or the machine.
  virtual std::unique_ptr<CaseTensors> make_tensors(Machine& machine) = 0;

  // What results lines call a kernel.
  virtual std::string impl(const KernelInfo& kernel) const { return "tilewright/" + kernel.name; }

  // What a table's row adds about a kernel.
  virtual std::string note(const KernelInfo&) const { return ""; }

  // Whether a copy that reads and writes as many bytes is timed beside each kernel.
  virtual bool compares_with_copy() const { return false; }
};

// A case that the kernels of some operations can run, which are in ascending order of speed.
template <class... Ops>
class CaseOf : public Case {
 public:
  std::vector<const KernelInfo*> kernels() const final {
    std::vector<const KernelInfo*> all;
    const auto add = [&](const auto& table) {
      for (const auto& kernel : table) {
        all.push_back(&kernel.info);
      }
    };
    (add(tilewright::kernels<Ops>()), ...);
    return all;
  }

  const KernelInfo* find(std::string_view kernel) const final {
    const KernelInfo* found = nullptr;
    const auto look = [&](const auto* row) { found = row != nullptr ? &row->info : found; };
    (look(find_kernel<Ops>(kernel)), ...);
    return found;
  }
};

}  // namespace tilewright::cli
