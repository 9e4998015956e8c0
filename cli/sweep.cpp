// tilewright sweep: measures kernels over head dims, lengths and masks at constant work per token.
#include <fmt/core.h>

#include <map>
#include <memory>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"

namespace tilewright::cli {
namespace {

struct SweepArguments {
  RunOptions run;
  Sweep sweep;
  std::string causal = "both";
};

std::vector<bool> parse_causal(const std::string& text) {
  static const std::map<std::string, std::vector<bool>> kMasks = {
      {"both", {false, true}}, {"0", {false}}, {"off", {false}}, {"1", {true}}, {"on", {true}}};
  const auto found = kMasks.find(text);
  if (found == kMasks.end()) {
    throw UsageError("--causal", fmt::format("is '{}', must be both, 0 (off) or 1 (on)", text));
  }
  return found->second;
}

void check_divides(const std::string& option, const std::vector<std::int64_t>& values,
                   const std::string& total_option, std::int64_t total) {
  for (const std::int64_t value : values) {
    if (total % value != 0) {
      throw UsageError(
          option, fmt::format("has {}, must divide {}, which is {}", value, total_option, total));
    }
  }
}

int run(const SweepArguments& arguments, const std::string& program) {
  if (arguments.run.resume && arguments.run.json_path.empty()) {
    throw UsageError("--resume", "needs --json FILE, the file to resume");
  }
  Sweep sweep = arguments.sweep;
  sweep.dtype = parse_dtype(arguments.run.dtype);
  sweep.causal = parse_causal(arguments.causal);
  check_divides("--seqlens", sweep.seqlens, "--tokens", sweep.tokens);
  check_divides("--headdims", sweep.head_dims, "--hidden", sweep.hidden);

  const std::vector<AttentionProblem> cases = problems(sweep);
  const auto kernels =
      choose_kernels("--kernels", arguments.run.kernels, parse_device(arguments.run.device), cases);
  Runner runner(arguments.run, program, cases.size() * kernels.size());
  for (const AttentionProblem& problem : cases) {
    runner.run({.problem = problem, .scale = std::nullopt, .seed = arguments.run.seed}, kernels);
  }
  return runner.finish(/*all_must_run=*/false);
}

void add_sizes(CLI::App& command, const std::string& option, std::vector<std::int64_t>& values,
               const std::string& help) {
  command.add_option(option, values, help)
      ->check(tensor_size())
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N,...")
      ->capture_default_str();
}

}  // namespace

Command add_sweep_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("sweep", "Check and time attention kernels over a range of problems");
  const auto arguments = std::make_shared<SweepArguments>();
  arguments->run.kernels = {"all"};
  arguments->run.check_limit_gflop = 100;
  add_run_options(*command, "--kernels", arguments->run);
  add_sizes(*command, "--headdims", arguments->sweep.head_dims, "Head dims");
  add_sizes(*command, "--seqlens", arguments->sweep.seqlens, "Sequence lengths");
  command->add_option("--causal", arguments->causal, "both, 0 (off) or 1 (on)")
      ->capture_default_str();
  command->add_option("--tokens", arguments->sweep.tokens, "Batch x sequence length")
      ->check(tensor_size())
      ->capture_default_str();
  command->add_option("--hidden", arguments->sweep.hidden, "Heads x head dim")
      ->check(tensor_size())
      ->capture_default_str();
  command
      ->add_option("--check-limit", arguments->run.check_limit_gflop,
                   "With --check, leave cases of more GFLOP than this unchecked")
      ->check(number<double>("a number"))
      ->capture_default_str();
  add_switch(*command, "--resume", arguments->run.resume,
             "Keep the file's lines, and skip what this commit measured on this machine");
  return {command, [arguments, &app] { return run(*arguments, app.get_name()); }};
}

}  // namespace tilewright::cli
