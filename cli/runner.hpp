// What all commands that measure have in common: kernels are chosen, checked and timed on cases,
// printed, and recorded in a results file.
#pragma once

#include <memory>
#include <vector>

#include "cli/case.hpp"
#include "cli/options.hpp"

namespace tilewright::cli {

// Runs the kernels that the options name on every case; all cases are of the same operations. Each
// case is freed when it has been run. Returns the exit code: kMismatch after a wrong result,
// kUnsupported if something could not run though all must, or if nothing could run. Throws
// UsageError; Error(unsupported) if "all" or "auto" find no kernel; and what a launch throws, after
// it has printed the command that repeats it.
int run_cases(const RunOptions& options, std::vector<std::unique_ptr<Case>> cases);

int run_case(const RunOptions& options, std::unique_ptr<Case> c);

}  // namespace tilewright::cli
