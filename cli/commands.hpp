// The subcommands, and what the program's exit status says.
#pragma once

#include <CLI/CLI.hpp>
#include <array>
#include <functional>
#include <stdexcept>
#include <string>

namespace tilewright::cli {

enum ExitCode : int {
  kPass = 0,
  kMismatch = 1,     // a wrong result, or a failed launch
  kUsage = 2,        // the command line contradicts itself or its documentation
  kUnsupported = 3,  // nothing is wrong, but this machine or build cannot run what was asked for
};

// A bad value of an option: exit status kUsage.
class UsageError : public std::runtime_error {
 public:
  UsageError(const std::string& option, const std::string& message)
      : std::runtime_error(option + ": " + message) {}
};

struct Command {
  CLI::App* app;             // tells whether the command was given
  std::function<int()> run;  // returns an ExitCode
};

using AddCommand = Command(CLI::App& app);
AddCommand add_list_command;
AddCommand add_info_command;
AddCommand add_attention_command;
AddCommand add_decode_command;
AddCommand add_quantize_command;
AddCommand add_kv_rows_command;
AddCommand add_dsv4_attention_command;
AddCommand add_gemm_command;
AddCommand add_sweep_command;
AddCommand add_probe_accumulator_command;

// In the order in which the program's help lists them.
inline constexpr std::array kCommands = {
    add_list_command,           add_info_command,
    add_attention_command,      add_decode_command,
    add_quantize_command,       add_kv_rows_command,
    add_dsv4_attention_command, add_gemm_command,
    add_sweep_command,          add_probe_accumulator_command,
};

}  // namespace tilewright::cli
