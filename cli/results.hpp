// The lines of results files: one JSON object for each kernel measured on each case.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "cli/cases.hpp"
#include "cli/check.hpp"
#include "cli/machine.hpp"
#include "cli/timer.hpp"

namespace tilewright::cli {

using Json = nlohmann::ordered_json;

// The outcome of one kernel on one case.
struct Outcome {
  std::optional<CheckResult> check;   // absent if it was not checked
  std::optional<Timing> timing;       // absent if there is a reason
  std::optional<std::string> reason;  // why it cannot run, or what is wrong with its result

  bool is_wrong() const { return check && !check->failure.empty(); }
};

// A results line's description of the machine.
struct MachineDescription {
  std::string gpu;
  std::optional<std::string> driver;
  std::optional<std::string> cuda;
};

MachineDescription description_of(const Machine& machine);

// What was measured: the case as results files have it, its nominal operations, and the bytes that
// it must read and write.
struct ResultCase {
  std::string operation;
  Json object;
  double flops = 0;
  double bytes = 0;
};

// A case, and a kernel of this library, as results files have them.
Json case_object(const AttentionCase& c);
std::string impl_of(std::string_view kernel);

// Lines without their `run`.
Json result_line(const ResultCase& c, const std::string& impl, const Outcome& outcome,
                 const MachineDescription& machine);
Json result_line(const AttentionCase& c, std::string_view kernel, const Outcome& outcome,
                 const MachineDescription& machine);

}  // namespace tilewright::cli
