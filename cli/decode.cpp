// tilewright decode: checks and times kernels of attention over KV caches on one problem.
#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "cli/commands.hpp"
#include "cli/decode_case.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"

namespace tilewright::cli {
namespace {

using Lengths = std::vector<std::int64_t>;

struct DecodeArguments {
  RunOptions run;
  DecodeProblem problem{.q_lens = {1}, .kv_lens = {8192}};
  std::optional<std::int64_t> batch, v_headdim;
  std::optional<DType> cache_dtype;
};

const Names<std::optional<DType>> kCacheDtypes = {{"same", std::nullopt},
                                                  {"bf16", DType::bf16},
                                                  {"fp16", DType::fp16},
                                                  {"fp32", DType::fp32},
                                                  {"e4m3", DType::e4m3}};

// Throws where there is neither one length for all sequences nor one for each. Lengths that are all
// the same become one.
void check_lengths(const std::string& option, Lengths& lengths, std::int64_t batch) {
  const auto count = static_cast<std::int64_t>(lengths.size());
  if (count != 1 && count != batch) {
    throw UsageError(option, fmt::format("has {} lengths, must have 1 or {}, one for each sequence",
                                         count, batch));
  }
  if (std::ranges::count(lengths, lengths.front()) == count) {
    lengths.resize(1);
  }
}

int run(DecodeArguments a) {
  DecodeProblem& p = a.problem;
  p.dtype = a.run.dtype;
  p.cache_dtype = a.cache_dtype.value_or(p.dtype);
  p.value_dim = a.v_headdim.value_or(p.head_dim);
  p.seed = a.run.seed;
  if (p.cache_dtype != p.dtype && p.cache_dtype != DType::e4m3) {
    const std::string_view others = p.dtype == DType::e4m3 ? "" : "e4m3 or ";
    throw UsageError("--cache-dtype", fmt::format("is {}, must be {}that of q, {}",
                                                  name(p.cache_dtype), others, name(p.dtype)));
  }
  if (p.heads % p.kv_heads != 0) {
    throw UsageError("--kv-heads",
                     fmt::format("is {}, must divide --heads, which is {}", p.kv_heads, p.heads));
  }
  p.batch =
      a.batch.value_or(static_cast<std::int64_t>(std::max(p.q_lens.size(), p.kv_lens.size())));
  check_lengths("--seqlen", p.q_lens, p.batch);
  check_lengths("--kv-seqlen", p.kv_lens, p.batch);
  return run_case(a.run, make_decode_case(p));
}

void add_lengths(CLI::App& command, const std::string& option, const std::string& environment,
                 Lengths& lengths, const std::string& help) {
  add_size(command, option, lengths, help)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->envname(environment)
      ->type_name("N,...")
      ->capture_default_str();
}

void add_sizes(CLI::App& command, DecodeArguments& a) {
  add_size(command, "--batch", a.batch, "Sequences (default: as many as there are lengths)")
      ->envname("BATCH");
  add_lengths(command, "--seqlen", "SEQLEN", a.problem.q_lens,
              "New tokens: of each sequence, or of all");
  add_lengths(command, "--kv-seqlen", "KV_SEQLEN", a.problem.kv_lens,
              "Keys, those of the new tokens included: of each sequence, or of all");
  add_size(command, "--heads", a.problem.heads, "Query heads (default: 32)")->envname("HEADS");
  add_size(command, "--kv-heads", a.problem.kv_heads,
           "Key and value heads, a divisor of --heads (default: 8)")
      ->envname("KV_HEADS");
  add_size(command, "--headdim", a.problem.head_dim, "Head dim (default: 128)")->envname("HEADDIM");
  add_size(command, "--v-headdim", a.v_headdim, "Head dim of the values (default: --headdim)")
      ->envname("V_HEADDIM");
}

void add_caches(CLI::App& command, DecodeArguments& a) {
  add_named(command, "--cache-dtype", a.cache_dtype, kCacheDtypes,
            "Of the caches: that of q, or e4m3")
      ->envname("CACHE_DTYPE");
  command.add_option("--page-size", a.problem.page_size, "Rows of a page; 0: contiguous caches")
      ->check(number<std::int64_t>(
          "a whole number from 0 to 2^30 - 1",
          [](std::int64_t value) { return value >= 0 && value < std::int64_t{1} << 30; }))
      ->envname("PAGE_SIZE")
      ->type_name("N")
      ->capture_default_str();
  add_switch(command, "--batch-invariant,!--no-batch-invariant", a.problem.batch_invariant,
             "A sequence's bits depend on it alone (default: not)")
      ->envname("BATCH_INVARIANT");
}

}  // namespace

Command add_decode_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      "decode", "Check and time kernels of attention over KV caches on one problem");
  const auto arguments = std::make_shared<DecodeArguments>();
  add_run_options(*command, "--kernel",
                  "Of q and o: bf16, fp16 or fp32; or e4m3, of q and the caches, where o is bf16",
                  arguments->run, kFloatsAndE4m3);
  add_sizes(*command, *arguments);
  add_caches(*command, *arguments);
  add_attention_features(*command, arguments->problem.features);
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
