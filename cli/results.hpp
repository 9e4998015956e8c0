// Results files: one JSON object a line, one line for each kernel measured on each case.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/cases.hpp"
#include "cli/check.hpp"
#include "cli/machine.hpp"
#include "cli/timer.hpp"

namespace tilewright::cli {

using Json = nlohmann::ordered_json;

// What became of one kernel on one case.
struct Outcome {
  std::optional<CheckResult> check;   // absent where it was not checked
  std::optional<Timing> timing;       // absent where there is a reason
  std::optional<std::string> reason;  // why it cannot run, or what is wrong with its result

  bool is_wrong() const { return check && !check->failure.empty(); }
};

// What a results line says of the machine.
struct MachineDescription {
  std::string gpu;
  std::optional<std::string> driver;
  std::optional<std::string> cuda;
};

MachineDescription description_of(const Machine& machine);

// What was measured: the case as results files have it, its nominal operations and the bytes that
// it must move.
struct ResultCase {
  std::string operation;
  Json object;
  double flops = 0;
  double bytes = 0;
};

// Lines without their `run`.
Json result_line(const ResultCase& c, const std::string& impl, const Outcome& outcome,
                 const MachineDescription& machine);
Json result_line(const AttentionCase& c, std::string_view kernel, const Outcome& outcome,
                 const MachineDescription& machine);

class ResultsFile {
 public:
  // The first line replaces what is in the file; with `resume`, it follows the complete lines
  // there. Until then the file stays as it is. An empty path writes nothing. Throws UsageError
  // where the file cannot be written.
  ResultsFile(const std::string& path, bool resume);

  // Whether a kept line holds the same kernel of the same commit on the same case and machine.
  bool contains(const AttentionCase& c, std::string_view kernel, const std::string& gpu) const;

  // Writes the line, and sees that it is in the file should the program end here. Its run is this
  // one, or the one that it resumes: the kept lines' of the same commit and machine.
  void append(const Json& line);

 private:
  std::string run_of(const Json& line) const;

  std::string path_;
  std::ofstream file_;
  std::vector<Json> kept_;
  std::string new_run_;  // UTC start time and commit
};

}  // namespace tilewright::cli
