#include "cuda/attention/dsv4_decode/plan.hpp"

#include <algorithm>

#include "cuda/attention/dsv4_decode/configs.hpp"

namespace tilewright::cuda {
namespace {

using dsv4::kDims;
using dsv4::kRows;
using dsv4::kTileKeys;
using dsv4::kTwins;

Dsv4Workspace workspace_of(const Dsv4Plan& plan) {
  if (!plan.merges() && plan.cluster == 1) {
    return {};
  }
  const std::int64_t shared = plan.units() - plan.deal.whole;
  const auto slots = static_cast<std::size_t>(plan.part_slots() + shared * plan.pair_slots);
  Dsv4Workspace at{};
  at.statistics = slots * kRows * kDims * sizeof(float);
  at.items = at.statistics + slots * kRows * 4 * sizeof(float);
  at.bytes = at.items + static_cast<std::size_t>(plan.items) * sizeof(dsv4::ItemRecord);
  return at;
}

bool shares_keys(const Dsv4AttentionProblem& problem) {
  constexpr auto kList = Dsv4ScopeProblem::Keys::list;
  return problem.window.keys != kList && problem.compressed.keys != kList;
}

dsv4::ItemShape shape_of(const Dsv4AttentionProblem& problem) {
  return dsv4::ItemShape(static_cast<int>(problem.heads), shares_keys(problem),
                         static_cast<int>(problem.q_len), problem.packed);
}

// The most key tiles of an item, where the ranges of tokens that share it are shifted by at most
// one position from token to token. Where they lie further apart, the item's parts have more tiles.
int most_tiles(const Dsv4AttentionProblem& problem) {
  std::int64_t tiles = problem.fresh_rows ? 1 : 0;
  const int shift = shape_of(problem).tile_tokens - 1;
  for (const Dsv4ScopeProblem& scope : {problem.window, problem.compressed}) {
    if (scope.keys != Dsv4ScopeProblem::Keys::none) {
      tiles += ceil_div(scope.most_keys + shift, std::int64_t{kTileKeys});
    }
  }
  return static_cast<int>(tiles);
}

int most_parts_of(const Dsv4AttentionProblem& problem) {
  return dsv4::parts_of_tiles(most_tiles(problem), shape_of(problem).head_tiles);
}

std::int64_t items_of(const Dsv4AttentionProblem& problem) {
  return shape_of(problem).items(static_cast<int>(problem.batch), static_cast<int>(problem.q_len));
}

int most_pairs(const Dsv4AttentionProblem& problem) {
  return dsv4::most_pairs_of_part(most_tiles(problem), most_parts_of(problem));
}

// Columns that share a scale of E4M3 would not be in one block.
bool may_spread(const Dsv4AttentionProblem& problem) { return !problem.e4m3_output; }

// Kernels that take BF16 rows have one form: they copy such rows to SMEM by cp.async, and do not
// hold them in registers.
bool takes_bf16_rows(const Dsv4AttentionProblem& problem) {
  Dsv4Formats formats{};
  for (const Dsv4ScopeProblem& scope : {problem.window, problem.compressed}) {
    if (scope.keys != Dsv4ScopeProblem::Keys::none) {
      formats.takes[static_cast<int>(scope.format)] = 1;
    }
  }
  return problem.fresh_rows || kDsv4Formats[first_set_with(formats)].has(KvRowFormat::bf16);
}

// May the items of a token's 65 to 128 heads be twins?
bool may_be_twins(const Dsv4AttentionProblem& problem) {
  return shape_of(problem).head_tiles == kTwins && !takes_bf16_rows(problem);
}

bool has_few_rows(const Dsv4AttentionProblem& problem) {
  const dsv4::ItemShape shape = shape_of(problem);
  return shape.tile_heads * shape.tile_tokens <= dsv4::kFewRows && !problem.e4m3_output &&
         !takes_bf16_rows(problem);
}

using Blocks = Dsv4Config::Blocks;

bool can_run(const Dsv4Config& config, const Dsv4AttentionProblem& problem) {
  return config.blocks == Blocks::cluster  ? most_parts_of(problem) == 1
         : config.blocks == Blocks::spread ? may_spread(problem)
                                           : true;
}

// How long a plan takes, in times of a pair. Blocks that share a unit leave the results of their
// pairs, but the first one only those of all its pairs together. Then results are merged. Twins
// take less time, since each widens half of the rows.
double cost_of(const Dsv4Plan& plan, int pairs) {
  constexpr double kOfTwins = 0.92;
  constexpr double kLeave = 0.4;
  constexpr double kNextUnit = 0.8;
  constexpr double kMergeInCluster = 0.4;
  constexpr double kMergeByLaunch = 1.3;
  const int rounds = ceil_div(plan.deal.whole, plan.blocks);
  double cost = rounds * pairs + (plan.merges() ? kMergeByLaunch : 0.0);
  if (plan.deal.shares > 1) {
    const int merged = dsv4::merged_pairs(pairs, Divisor(plan.deal.shares), plan.pair_slots);
    const int others = ceil_div(pairs - merged, plan.deal.shares - 1);
    cost += std::max(merged + kLeave, others * (1.0 + kLeave)) + (rounds > 0 ? kNextUnit : 0.0) +
            (plan.cluster > 1 ? kMergeInCluster : 0.0);
  }
  return plan.are_twins ? kOfTwins * cost : cost;
}

}  // namespace

// A cluster spreads a unit whose P is in SMEM at once, if its blocks are fewer than twice the
// pairs. Clusters are chosen if all run at once.
int best_dsv4_config(const Dsv4AttentionProblem& problem, int sms) {
  const int pairs = most_pairs(problem);
  int best = 0;
  double least = 0.0;
  for (int config = 0; config < static_cast<int>(kDsv4Configs.size()); ++config) {
    const auto [blocks, cluster, at_once] = kDsv4Configs[config];
    const Dsv4Plan plan = plan_dsv4_decode(problem, sms, config).plan;
    if (!can_run(kDsv4Configs[config], problem) ||
        (cluster > 1 && plan.units() > at_once * sms / kDsv4ClusterSms)) {
      continue;
    }
    if (blocks == Blocks::spread) {
      return pairs <= dsv4::kSpreadPairs && cluster < 2 * pairs ? config : best;
    }
    const double cost = cost_of(plan, pairs);
    if (config == 0 || cost < least) {
      best = config;
      least = cost;
    }
  }
  return best;
}

Dsv4Details plan_dsv4_decode(const Dsv4AttentionProblem& problem, int sms, int config) {
  while (!can_run(kDsv4Configs[config], problem)) {
    --config;
  }
  const auto [kind, cluster, at_once] = kDsv4Configs[config];
  const int pairs = most_pairs(problem);
  const bool are_twins = cluster == 1 && may_be_twins(problem);
  Dsv4Plan plan{.shape = shape_of(problem),
                .items = items_of(problem),
                .most_parts = most_parts_of(problem),
                .deal = {},
                .cluster = cluster,
                .blocks = 0,
                .free_sms = 0,
                .pair_slots = 1,
                .spreads = kind == Blocks::spread,
                .are_twins = are_twins,
                .has_few_rows = has_few_rows(problem)};
  const auto units = static_cast<int>(plan.units());
  if (cluster > 1) {
    plan.deal = {.whole = 0, .shares = plan.spreads ? 1 : cluster};
    plan.blocks = units * cluster;
  } else {
    const int most_blocks = are_twins ? std::max(sms / kTwins, 1) * kTwins : sms;
    // Results of E4M3 are merged 128 columns at a time: there is no room for those of several
    // parts.
    const bool shares = kind == Blocks::several && (plan.most_parts == 1 || !problem.e4m3_output);
    plan.deal = dsv4::Deal::of(units, most_blocks, shares ? pairs : 1);
    plan.blocks = std::min(std::max(plan.deal.whole, (units - plan.deal.whole) * plan.deal.shares),
                           most_blocks);
  }
  plan.free_sms = std::max(sms - plan.blocks, 0);
  if (plan.spreads) {
    plan.pair_slots = dsv4::kSpreadSlots;
  } else if (plan.deal.shares > 1) {
    const int merged = dsv4::merged_pairs(pairs, Divisor(plan.deal.shares), pairs);
    plan.pair_slots = std::min(1 + pairs - merged, dsv4::kMostPairSlots);
  }
  return {.plan = plan, .at = workspace_of(plan)};
}

}  // namespace tilewright::cuda
