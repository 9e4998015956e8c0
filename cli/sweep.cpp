// tilewright sweep: measures attention kernels over head dims, lengths and masks, with the same
// number of tokens (batch x length) and of columns (heads x head dim) throughout.
#include <fmt/core.h>

#include <memory>

#include "cli/attention_case.hpp"
#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"

namespace tilewright::cli {
namespace {

struct SweepArguments {
  RunOptions run;
  std::vector<std::int64_t> head_dims = {64, 128, 256};
  std::vector<std::int64_t> seqlens = {512, 1024, 2048, 4096, 8192, 16384};
  std::vector<bool> causal = {false, true};
  std::int64_t tokens = 16384;
  std::int64_t hidden = 2048;
};

const Names<std::vector<bool>> kMasks = {
    {"both", {false, true}}, {"0", {false}}, {"off", {false}}, {"1", {true}}, {"on", {true}}};

void check_divides(const std::string& option, const std::vector<std::int64_t>& values,
                   const std::string& total_option, std::int64_t total) {
  for (const std::int64_t value : values) {
    if (total % value != 0) {
      throw UsageError(
          option, fmt::format("has {}, must divide {}, which is {}", value, total_option, total));
    }
  }
}

// Sequence lengths are innermost.
std::vector<std::unique_ptr<Case>> cases_of(const SweepArguments& a) {
  std::vector<std::unique_ptr<Case>> cases;
  for (const std::int64_t head_dim : a.head_dims) {
    for (const bool causal : a.causal) {
      for (const std::int64_t seqlen : a.seqlens) {
        const AttentionProblem sizes{.dtype = a.run.dtype,
                                     .batch = a.tokens / seqlen,
                                     .q_len = seqlen,
                                     .kv_len = seqlen,
                                     .heads = a.hidden / head_dim,
                                     .kv_heads = a.hidden / head_dim,
                                     .head_dim = head_dim,
                                     .value_dim = head_dim};
        cases.push_back(make_attention_case(sizes, {.causal = causal}, a.run.seed));
      }
    }
  }
  return cases;
}

int run(const SweepArguments& a) {
  check_divides("--seqlens", a.seqlens, "--tokens", a.tokens);
  check_divides("--headdims", a.head_dims, "--hidden", a.hidden);
  return run_cases(a.run, cases_of(a));
}

void add_sizes(CLI::App& command, const std::string& option, std::vector<std::int64_t>& values,
               const std::string& help) {
  add_size(command, option, values, help)
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
  arguments->run.all_must_run = false;
  add_run_options(*command, "--kernels", "Of q, k, v and o: bf16, fp16 or fp32", arguments->run);
  add_sizes(*command, "--headdims", arguments->head_dims, "Head dims");
  add_sizes(*command, "--seqlens", arguments->seqlens, "Sequence lengths");
  add_named(*command, "--causal", arguments->causal, kMasks, "both, 0 (off) or 1 (on)");
  add_size(*command, "--tokens", arguments->tokens, "Batch x sequence length")
      ->capture_default_str();
  add_size(*command, "--hidden", arguments->hidden, "Heads x head dim")->capture_default_str();
  command
      ->add_option("--check-limit", arguments->run.check_limit_gflop,
                   "With --check, leave cases of more GFLOP than this unchecked")
      ->check(number<double>("a number"))
      ->capture_default_str();
  add_switch(*command, "--resume", arguments->run.resume,
             "Keep the file's lines, and skip what this commit measured on this machine");
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
