#include "cuda/attention/dsv4_decode/plan.hpp"

#include <algorithm>

namespace tilewright::cuda {
namespace {

using dsv4::kDims;
using dsv4::kRows;
using dsv4::kTileKeys;

Dsv4Workspace workspace_of(std::int64_t items, int most_parts, int cluster) {
  if (most_parts == 1) {
    return {};
  }
  const auto units = static_cast<std::size_t>(items * most_parts);
  Dsv4Workspace at{};
  at.statistics = units * kRows * kDims * sizeof(float);
  at.counters = at.statistics + units * kRows * 4 * sizeof(float);
  at.bytes = at.counters + static_cast<std::size_t>(items * cluster) * sizeof(std::uint64_t);
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

std::int64_t items_of(const Dsv4AttentionProblem& problem) {
  return shape_of(problem).items(static_cast<int>(problem.batch), static_cast<int>(problem.q_len));
}

// The SMs that clusters can fill: an H200 runs 30 clusters of four at once, or 15 of eight.
int sms_in_clusters(int sms) { return sms * 10 / 11; }

}  // namespace

bool takes(int cluster, const Dsv4AttentionProblem& problem) {
  return cluster == 1 || !problem.e4m3_output;
}

// The largest cluster with which all units run at once.
int best_dsv4_config(const Dsv4AttentionProblem& problem, int sms) {
  const std::int64_t units = items_of(problem) * dsv4::parts_of_tiles(most_tiles(problem));
  for (int config = kDsv4Clusters.size() - 1; config > 0; --config) {
    const int cluster = kDsv4Clusters[config];
    if (takes(cluster, problem) && units * cluster <= sms_in_clusters(sms)) {
      return config;
    }
  }
  return 0;
}

Dsv4Details plan_dsv4_decode(const Dsv4AttentionProblem& problem, int sms, int config) {
  const std::int64_t items = items_of(problem);
  const int most_parts = dsv4::parts_of_tiles(most_tiles(problem));
  const int cluster = kDsv4Clusters[config];
  return {.plan = {.shape = shape_of(problem),
                   .items = items,
                   .most_parts = most_parts,
                   .cluster = cluster,
                   .blocks = static_cast<int>(std::min<std::int64_t>(items * most_parts, sms))},
          .at = workspace_of(items, most_parts, cluster)};
}

}  // namespace tilewright::cuda
