// tilewright attention: checks and times kernels on one problem.
#include <fmt/core.h>

#include <memory>

#include "cli/attention_case.hpp"
#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"

namespace tilewright::cli {
namespace {

struct AttentionArguments {
  RunOptions run;
  AttentionProblem sizes{.q_len = 512, .heads = 32};
  AttentionOptions options;
  std::optional<std::int64_t> kv_seqlen, kv_heads, v_headdim;
  std::int64_t window_left = kNoWindow;
  std::int64_t window_right = kNoWindow;
};

std::optional<std::int64_t> window_side(std::int64_t value) {
  return value == kNoWindow ? std::nullopt : std::optional(value);
}

int run(AttentionArguments a) {
  AttentionProblem& sizes = a.sizes;
  sizes.dtype = a.run.dtype;
  sizes.kv_len = a.kv_seqlen.value_or(sizes.q_len);
  sizes.kv_heads = a.kv_heads.value_or(sizes.heads);
  sizes.value_dim = a.v_headdim.value_or(sizes.head_dim);
  if (sizes.heads % sizes.kv_heads != 0) {
    throw UsageError("--kv-heads", fmt::format("is {}, must divide --heads, which is {}",
                                               sizes.kv_heads, sizes.heads));
  }
  a.options.window = {.left = window_side(a.window_left), .right = window_side(a.window_right)};
  return run_case(a.run, make_attention_case(sizes, a.options, a.run.seed));
}

void add_window_side(CLI::App& command, const std::string& option, const std::string& environment,
                     std::int64_t& value, const std::string& help) {
  command.add_option(option, value, help)
      ->check(number<std::int64_t>("a whole number from 0 to 2^63 - 1, or -1: no limit",
                                   [](std::int64_t side) { return side >= kNoWindow; }))
      ->envname(environment)
      ->type_name("N");
}

void add_sizes(CLI::App& command, AttentionArguments& a) {
  add_size(command, "--batch", a.sizes.batch, "Batch (default: 1)")->envname("BATCH");
  add_size(command, "--seqlen", a.sizes.q_len, "Queries (default: 512)")->envname("SEQLEN");
  add_size(command, "--kv-seqlen", a.kv_seqlen, "Keys and values (default: as many as queries)")
      ->envname("KV_SEQLEN");
  add_size(command, "--heads", a.sizes.heads, "Query heads (default: 32)")->envname("HEADS");
  add_size(command, "--kv-heads", a.kv_heads,
           "Key and value heads, a divisor of --heads (default: --heads)")
      ->envname("KV_HEADS");
  add_size(command, "--headdim", a.sizes.head_dim, "Head dim (default: 128)")->envname("HEADDIM");
  add_size(command, "--v-headdim", a.v_headdim, "Head dim of the values (default: --headdim)")
      ->envname("V_HEADDIM");
}

void add_features(CLI::App& command, AttentionArguments& a) {
  add_switch(command, "--causal,!--no-causal", a.options.causal,
             "Query i sees keys up to i + kv-seqlen - seqlen (default: all)")
      ->envname("CAUSAL");
  add_window_side(command, "--window-left", "WINDOW_LEFT", a.window_left,
                  "Keys that a query sees to its left (default: -1, all)");
  add_window_side(command, "--window-right", "WINDOW_RIGHT", a.window_right,
                  "Keys that a query sees to its right (default: -1, all)");
  command.add_option("--softcap", a.options.softcap, "Bends scores s to C tanh(s / C); 0: not")
      ->check(non_negative_float())
      ->envname("SOFTCAP")
      ->type_name("C")
      ->capture_default_str();
  add_switch(command, "--sinks,!--no-sinks", a.sizes.sinks,
             "A random sink logit for each head (default: none)")
      ->envname("SINKS");
  command.add_option("--scale", a.options.scale, "Of Q K^T (default: 1 / sqrt(headdim))")
      ->check(non_negative_float())
      ->envname("SCALE")
      ->type_name("FLOAT");
}

}  // namespace

Command add_attention_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("attention", "Check and time attention kernels on one problem");
  const auto arguments = std::make_shared<AttentionArguments>();
  add_run_options(*command, "--kernel", "Of q, k, v and o: bf16, fp16 or fp32", arguments->run);
  add_sizes(*command, *arguments);
  add_features(*command, *arguments);
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
