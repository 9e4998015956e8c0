// tilewright attention: kernels on one problem, checked and timed.
#include <fmt/core.h>

#include <cmath>
#include <memory>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"

namespace tilewright::cli {
namespace {

struct AttentionArguments {
  RunOptions run;
  std::int64_t batch = 1;
  std::int64_t seqlen = 512;
  std::int64_t kv_seqlen = 0;  // 0: seqlen
  std::int64_t heads = 32;
  std::int64_t kv_heads = 0;  // 0: heads
  std::int64_t headdim = 128;
  bool causal = false;
  std::optional<float> scale;
};

AttentionCase checked_case(const AttentionArguments& a, const CLI::App& command) {
  const AttentionProblem problem{
      .dtype = parse_dtype(a.run.dtype),
      .batch = a.batch,
      .q_len = a.seqlen,
      .kv_len = command.count("--kv-seqlen") > 0 ? a.kv_seqlen : a.seqlen,
      .heads = a.heads,
      .kv_heads = command.count("--kv-heads") > 0 ? a.kv_heads : a.heads,
      .head_dim = a.headdim,
      .causal = a.causal,
  };
  check_size("--batch", problem.batch);
  check_size("--seqlen", problem.q_len);
  check_size("--kv-seqlen", problem.kv_len);
  check_size("--heads", problem.heads);
  check_size("--kv-heads", problem.kv_heads);
  check_size("--headdim", problem.head_dim);
  if (problem.heads % problem.kv_heads != 0) {
    throw UsageError("--kv-heads", fmt::format("is {}, must divide --heads, which is {}",
                                               problem.kv_heads, problem.heads));
  }
  if (a.scale && !(*a.scale >= 0 && std::isfinite(*a.scale))) {
    throw UsageError("--scale", fmt::format("is {}, must be finite and at least 0", *a.scale));
  }
  return {.problem = problem, .scale = a.scale, .seed = a.run.seed};
}

int run(const AttentionArguments& arguments, const CLI::App& command) {
  check_timing(arguments.run.timing);
  const AttentionCase c = checked_case(arguments, command);
  const auto kernels = choose_kernels("--kernel", arguments.run.kernels,
                                      parse_device(arguments.run.device), {c.problem});
  Runner runner(arguments.run, command.get_parent()->get_name(), kernels.size());
  runner.run(c, kernels);
  return runner.finish(/*all_must_run=*/true);
}

void add_size(CLI::App& command, const std::string& option, const std::string& environment,
              std::int64_t& value, const std::string& help) {
  command.add_option(option, value, help)->envname(environment)->type_name("N");
}

}  // namespace

Command add_attention_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("attention", "Check and time attention kernels on one problem");
  const auto arguments = std::make_shared<AttentionArguments>();
  arguments->run.kernels = {"auto"};
  add_run_options(*command, "--kernel", arguments->run);
  add_size(*command, "--batch", "BATCH", arguments->batch, "Batch (default: 1)");
  add_size(*command, "--seqlen", "SEQLEN", arguments->seqlen, "Queries (default: 512)");
  add_size(*command, "--kv-seqlen", "KV_SEQLEN", arguments->kv_seqlen,
           "Keys and values (default: as many as queries)");
  add_size(*command, "--heads", "HEADS", arguments->heads, "Query heads (default: 32)");
  add_size(*command, "--kv-heads", "KV_HEADS", arguments->kv_heads,
           "Key and value heads, a divisor of --heads (default: --heads)");
  add_size(*command, "--headdim", "HEADDIM", arguments->headdim, "Head dim (default: 128)");
  command
      ->add_flag("--causal,!--no-causal", arguments->causal,
                 "Query i sees keys up to i + kv-seqlen - seqlen (default: all)")
      ->envname("CAUSAL");
  command->add_option("--scale", arguments->scale, "Of Q K^T (default: 1 / sqrt(headdim))")
      ->envname("SCALE")
      ->type_name("FLOAT");
  return {command, [arguments, command] { return run(*arguments, *command); }};
}

}  // namespace tilewright::cli
