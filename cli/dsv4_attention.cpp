// tilewright dsv4-attention: checks and times kernels of DeepSeek-V4's attention on one problem.
#include <fmt/core.h>

#include <memory>

#include "cli/commands.hpp"
#include "cli/dsv4_case.hpp"
#include "cli/kv_row_cache.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"

namespace tilewright::cli {
namespace {

struct Dsv4Arguments {
  RunOptions run;
  Dsv4Problem problem;
};

const Names<bool> kKinds = {{"list", true}, {"range", false}};

int run(Dsv4Arguments a) {
  Dsv4Problem& p = a.problem;
  p.dtype = a.run.dtype;
  p.seed = a.run.seed;
  if (p.window.keys == 0 && p.compressed.keys == 0) {
    throw UsageError("--window", "is 0, must be at least 1 where --compressed is 0");
  }
  return run_case(a.run, make_dsv4_case(p));
}

void add_scope(CLI::App& command, const std::string& scope, const std::string& environment,
               Dsv4ScopeSizes& sizes) {
  command
      .add_option("--" + scope, sizes.keys,
                  fmt::format("Keys of a token in this scope; 0: none (default: {})", sizes.keys))
      ->check(number<std::int64_t>(
          "a whole number from 0 to 2^30 - 1",
          [](std::int64_t value) { return value >= 0 && value < std::int64_t{1} << 30; }))
      ->envname(environment)
      ->type_name("N");
  add_named(command, "--" + scope + "-rows", sizes.format, kKvRowFormats,
            "Its rows: bf16, e4m3_bf16, e4m3 or e2m1")
      ->envname(environment + "_ROWS");
  add_size(command, "--" + scope + "-page-size", sizes.page_size, "Rows of a page (default: 64)")
      ->envname(environment + "_PAGE_SIZE");
}

}  // namespace

Command add_dsv4_attention_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      "dsv4-attention", "Check and time kernels of DeepSeek-V4's attention on one problem");
  const auto arguments = std::make_shared<Dsv4Arguments>();
  Dsv4Problem& p = arguments->problem;
  add_run_options(*command, "--kernel", "Of q and o: bf16 or fp32", arguments->run);
  add_size(*command, "--batch", p.batch, "Requests (default: 1)")->envname("BATCH");
  add_size(*command, "--seqlen", p.q_len, "New tokens of each request, up to 8 (default: 1)")
      ->envname("SEQLEN");
  add_size(*command, "--heads", p.heads, "Query heads, up to 128 (default: 64)")->envname("HEADS");
  add_scope(*command, "window", "WINDOW", p.window);
  add_scope(*command, "compressed", "COMPRESSED", p.compressed);
  add_named(*command, "--compressed-keys", p.has_list, kKinds,
            "Which keys: a list of some, or a range")
      ->envname("COMPRESSED_KEYS");
  add_size(*command, "--context", p.context,
           "Rows of a request that a list chooses from (default: 4096)")
      ->envname("CONTEXT");
  add_switch(*command, "--sinks,!--no-sinks", p.sinks, "Attention sinks (default: none)")
      ->envname("SINKS");
  add_switch(*command, "--inverse-rope,!--no-inverse-rope", p.inverse_rope,
             "Rotate o back (default: not)")
      ->envname("INVERSE_ROPE");
  command->add_option("--scale", p.scale, "Multiplies q . k (default: 1 / sqrt(512))")
      ->check(non_negative_float())
      ->envname("SCALE");
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
