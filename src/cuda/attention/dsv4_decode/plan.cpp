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
  const auto items = static_cast<std::size_t>(plan.items);
  const std::size_t pair_slots = plan.cluster > 1 ? items * plan.most_parts * plan.pair_slots : 0;
  const std::size_t slots = plan.part_slots() + pair_slots;
  const std::size_t counters = plan.most_parts > 1 ? items * plan.cluster : 0;
  Dsv4Workspace at{};
  at.statistics = slots * kRows * kDims * sizeof(float);
  at.counters = at.statistics + slots * kRows * 4 * sizeof(float);
  at.bytes = at.counters + counters * sizeof(std::uint64_t);
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

// Of a part. A slot has 128 KB. Where a part has more pairs for its other blocks, the first block
// takes those that are left.
constexpr int kMostPairSlots = 32;

int most_pairs(const Dsv4AttentionProblem& problem) {
  return dsv4::most_pairs_of_part(most_tiles(problem), most_parts_of(problem));
}

// Columns that share a scale of E4M3 would not be in one block.
bool may_spread(const Dsv4AttentionProblem& problem) { return !problem.e4m3_output; }

// May the items of a token's 65 to 128 heads be twins? Kernels that take BF16 rows have none: they
// copy such rows to SMEM by cp.async, and do not hold them in registers.
bool may_be_twins(const Dsv4AttentionProblem& problem) {
  Dsv4Formats formats{};
  for (const Dsv4ScopeProblem& scope : {problem.window, problem.compressed}) {
    if (scope.keys != Dsv4ScopeProblem::Keys::none) {
      formats.takes[static_cast<int>(scope.format)] = 1;
    }
  }
  return shape_of(problem).head_tiles == kTwins && !problem.fresh_rows &&
         !kDsv4Formats[first_set_with(formats)].has(KvRowFormat::bf16);
}

}  // namespace

// The largest cluster with which all units run at once, and which has no more blocks than twice the
// pairs that they share. It spreads a part whose P is in SMEM at once.
int best_dsv4_config(const Dsv4AttentionProblem& problem, int sms) {
  const std::int64_t units = items_of(problem) * most_parts_of(problem);
  const int pairs = most_pairs(problem);
  for (int config = kDsv4Clusters.size() - 1; config > 0; --config) {
    const auto [blocks, at_once, spreads] = kDsv4Clusters[config];
    if (spreads && (pairs > dsv4::kSpreadPairs || !may_spread(problem))) {
      continue;
    }
    if (units <= at_once * sms / kDsv4ClusterSms && blocks < 2 * pairs) {
      return config;
    }
  }
  return 0;
}

Dsv4Details plan_dsv4_decode(const Dsv4AttentionProblem& problem, int sms, int config) {
  const std::int64_t items = items_of(problem);
  const int most_parts = most_parts_of(problem);
  const std::int64_t units = items * most_parts;
  const int cluster = kDsv4Clusters[config].blocks;
  const int pairs = most_pairs(problem);
  const bool spreads = kDsv4Clusters[config].spreads && may_spread(problem);
  const bool are_twins = cluster == 1 && may_be_twins(problem);
  const int most_blocks = are_twins ? std::max(sms / kTwins, 1) * kTwins : sms;
  const Dsv4Plan plan{
      .shape = shape_of(problem),
      .items = items,
      .most_parts = most_parts,
      .cluster = cluster,
      .blocks = static_cast<int>(cluster > 1 ? units * cluster
                                             : std::min<std::int64_t>(units, most_blocks)),
      .pair_slots = spreads
                        ? dsv4::kSpreadSlots
                        : std::clamp(pairs - dsv4::merged_pairs(pairs, Divisor(cluster), pairs) + 1,
                                     1, kMostPairSlots),
      .spreads = spreads,
      .are_twins = are_twins};
  return {.plan = plan, .at = workspace_of(plan)};
}

}  // namespace tilewright::cuda
