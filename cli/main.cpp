// The command line: tilewright list | info | attention | ...
#include <fmt/core.h>

#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "tilewright/error.hpp"
#include "tilewright/version.hpp"

namespace tilewright::cli {
namespace {

int exit_code_of(const Error& error) {
  switch (error.code()) {
    case ErrorCode::invalid_argument:
      return kUsage;
    case ErrorCode::unsupported:
    case ErrorCode::no_device:
      return kUnsupported;
    case ErrorCode::workspace_too_small:
    case ErrorCode::cuda:
      return kMismatch;
  }
  return kMismatch;
}

int run(int argc, char** argv) {
  CLI::App app{"Tilewright: GPU kernels of LLM inference, listed, checked and timed"};
  app.set_version_flag("--version", fmt::format("tilewright {} ({})", kVersion, kCommit));
  app.require_subcommand(0, 1);  // with a minimum, an unknown command would not be named
  app.failure_message([](const CLI::App* parsed, const CLI::Error& error) {
    return "error: " + CLI::FailureMessage::simple(parsed, error);
  });
  app.footer(
      "Exit status: 0 pass, 1 wrong result, 2 bad usage, 3 not supported by this machine or "
      "build.");
  std::vector<Command> commands;
  for (AddCommand* const add : kCommands) {
    commands.push_back(add(app));
  }
  check_negations(argc, argv);
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) {
      throw CLI::RequiredError("A command");
    }
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kPass : kUsage;
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) {
      return command.run();
    }
  }
  return kUsage;
}

int run_and_report(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const UsageError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kUsage;
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return exit_code_of(error);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "error: memory: the problem needs more than this machine has\n");
    return kUnsupported;
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kUnsupported;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return kMismatch;
  }
}

// The exit code; a run passes only if all of its output has been written.
int with_output_written(int exit_code) {
  if (exit_code != kPass || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) {
    return exit_code;
  }
  std::fprintf(stderr, "error: standard output: cannot be written in full\n");
  return kUnsupported;
}

}  // namespace
}  // namespace tilewright::cli

int main(int argc, char** argv) {
  using namespace tilewright;
  // Makes a file that reaches the shell's size limit an error, as a full disk is.
  std::signal(SIGXFSZ, SIG_IGN);
  return cli::with_output_written(cli::run_and_report(argc, argv));
}
