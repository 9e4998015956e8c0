// tilewright attention: checks and times kernels on one problem.
#include <fmt/core.h>

#include <memory>

#include "cli/attention_case.hpp"
#include "cli/attention_fp8_case.hpp"
#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"

namespace tilewright::cli {
namespace {

struct AttentionArguments {
  RunOptions run;
  AttentionProblem sizes{.q_len = 512, .heads = 32};
  AttentionFeatures features;
  std::optional<std::int64_t> kv_seqlen, kv_heads, v_headdim;
  bool incoherent = false;
};

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
  if (a.run.dtype == DType::e4m3) {
    return run_case(a.run, make_attention_fp8_case(sizes, a.features, a.incoherent, a.run.seed));
  }
  if (a.incoherent) {
    throw UsageError("--incoherent", "is given, must be left out where --dtype is not e4m3");
  }
  return run_case(a.run, make_attention_case(sizes, a.features, a.run.seed));
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

}  // namespace

Command add_attention_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("attention", "Check and time attention kernels on one problem");
  const auto arguments = std::make_shared<AttentionArguments>();
  add_run_options(*command, "--kernel",
                  "Of q, k, v and o: bf16, fp16 or fp32; or e4m3, where o is bf16", arguments->run,
                  kFloatsAndE4m3);
  add_sizes(*command, *arguments);
  add_attention_features(*command, arguments->features);
  add_switch(*command, "--incoherent,!--no-incoherent", arguments->incoherent,
             "Of e4m3: queries and keys rotated at random, a descale for each 128 rows, and values "
             "transposed, in place of a descale for each sequence and key/value head")
      ->envname("INCOHERENT");
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
