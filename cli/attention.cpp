// tilewright attention: checks and times kernels on one problem.
#include <fmt/core.h>

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
  std::int64_t v_headdim = 0;  // 0: headdim
  bool causal = false;
  std::int64_t window_left = kNoWindow;
  std::int64_t window_right = kNoWindow;
  float softcap = 0;
  bool sinks = false;
  std::optional<float> scale;
};

std::optional<std::int64_t> window_side(std::int64_t value) {
  return value == kNoWindow ? std::nullopt : std::optional(value);
}

AttentionCase checked_case(const AttentionArguments& a, const CLI::App& command) {
  const Window window{.left = window_side(a.window_left), .right = window_side(a.window_right)};
  const AttentionProblem problem{
      .dtype = parse_dtype(a.run.dtype),
      .batch = a.batch,
      .q_len = a.seqlen,
      .kv_len = command.count("--kv-seqlen") > 0 ? a.kv_seqlen : a.seqlen,
      .heads = a.heads,
      .kv_heads = command.count("--kv-heads") > 0 ? a.kv_heads : a.heads,
      .head_dim = a.headdim,
      .value_dim = command.count("--v-headdim") > 0 ? a.v_headdim : a.headdim,
      .causal = a.causal,
      .window = window.left || window.right,
      .softcap = a.softcap > 0,
      .sinks = a.sinks,
  };
  if (problem.heads % problem.kv_heads != 0) {
    throw UsageError("--kv-heads", fmt::format("is {}, must divide --heads, which is {}",
                                               problem.kv_heads, problem.heads));
  }
  return {.problem = problem,
          .scale = a.scale,
          .window = window,
          .softcap = a.softcap,
          .seed = a.run.seed};
}

int run(const AttentionArguments& arguments, const CLI::App& command) {
  const AttentionCase c = checked_case(arguments, command);
  const auto kernels = choose_kernels("--kernel", arguments.run.kernels,
                                      parse_device(arguments.run.device), {c.problem});
  Runner runner(arguments.run, command.get_parent()->get_name(), kernels.size());
  runner.run(c, kernels);
  return runner.finish(/*all_must_run=*/true);
}

void add_size(CLI::App& command, const std::string& option, const std::string& environment,
              std::int64_t& value, const std::string& help) {
  command.add_option(option, value, help)
      ->check(tensor_size())
      ->envname(environment)
      ->type_name("N");
}

void add_window_side(CLI::App& command, const std::string& option, const std::string& environment,
                     std::int64_t& value, const std::string& help) {
  command.add_option(option, value, help)
      ->check(number<std::int64_t>("a whole number from 0 to 2^63 - 1, or -1: no limit",
                                   [](std::int64_t side) { return side >= kNoWindow; }))
      ->envname(environment)
      ->type_name("N");
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
  add_size(*command, "--v-headdim", "V_HEADDIM", arguments->v_headdim,
           "Head dim of the values (default: --headdim)");
  add_switch(*command, "--causal,!--no-causal", arguments->causal,
             "Query i sees keys up to i + kv-seqlen - seqlen (default: all)")
      ->envname("CAUSAL");
  add_window_side(*command, "--window-left", "WINDOW_LEFT", arguments->window_left,
                  "Keys that a query sees to its left (default: -1, all)");
  add_window_side(*command, "--window-right", "WINDOW_RIGHT", arguments->window_right,
                  "Keys that a query sees to its right (default: -1, all)");
  command->add_option("--softcap", arguments->softcap, "Bends scores s to C tanh(s / C); 0: not")
      ->check(non_negative_float())
      ->envname("SOFTCAP")
      ->type_name("C")
      ->capture_default_str();
  add_switch(*command, "--sinks,!--no-sinks", arguments->sinks,
             "A random sink logit for each head (default: none)")
      ->envname("SINKS");
  command->add_option("--scale", arguments->scale, "Of Q K^T (default: 1 / sqrt(headdim))")
      ->check(non_negative_float())
      ->envname("SCALE")
      ->type_name("FLOAT");
  return {command, [arguments, command] { return run(*arguments, *command); }};
}

}  // namespace tilewright::cli
