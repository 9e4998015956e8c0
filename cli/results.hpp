// The lines of results files: one JSON object for each kernel measured on each case.
#pragma once

#include <optional>
#include <string>

#include "cli/case.hpp"
#include "cli/timer.hpp"

namespace tilewright::cli {

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

// Adds what a line says of the machine.
void add_machine(Json& line, const MachineDescription& machine);

// A line without its `run`.
Json result_line(const Case& c, const std::string& impl, const Outcome& outcome,
                 const MachineDescription& machine);

}  // namespace tilewright::cli
