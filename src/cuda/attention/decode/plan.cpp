#include "cuda/attention/decode/plan.hpp"

#include <algorithm>
#include <limits>

#include "common/ceil_div.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

std::int64_t value_dim(const Problem& p) { return p.value_dim > 0 ? p.value_dim : p.head_dim; }

// The most row tiles that all sequences have together, of one KV head and head block.
std::int64_t most_row_tiles(const Problem& p, int tile_tokens) {
  return p.packed ? p.q_len / tile_tokens + std::min(p.batch, p.q_len)
                  : p.batch * ceil_div(p.q_len, std::int64_t{tile_tokens});
}

DecodeShape shape_of(const Problem& p, int bc) {
  return decode_shape(static_cast<int>(p.heads), static_cast<int>(p.kv_heads), bc);
}

std::int64_t most_items(const Problem& p, int bc) {
  const DecodeShape shape = shape_of(p, bc);
  return most_row_tiles(p, shape.tile_tokens) * p.kv_heads * shape.head_blocks;
}

// The largest cluster, of a power of two, of which there is room for one for each item. Larger ones
// than two blocks do not fill all SMs.
int cluster_of(std::int64_t items, int sms) {
  constexpr int kUnfilled = 12;
  int cluster = kMaxDecodeCluster;
  while (cluster > 2 && items * cluster > sms - kUnfilled) {
    cluster /= 2;
  }
  return cluster;
}

}  // namespace

DecodeWorkspace decode_workspace(const DecodePlan& plan, std::int64_t value_dim) {
  constexpr std::size_t kAlignment = 256;
  DecodeWorkspace at{};
  const auto place = [&](std::size_t bytes) {
    const std::size_t start = at.bytes;
    at.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return start;
  };
  const auto slots = static_cast<std::size_t>(plan.slots);
  const std::size_t rows = slots * static_cast<std::size_t>(plan.slot_rows);
  at.counters = place(slots * static_cast<std::size_t>(plan.cluster) * sizeof(std::uint64_t));
  at.row_max = place(rows * sizeof(float));
  at.row_sum = place(rows * sizeof(float));
  at.o = place(rows * static_cast<std::size_t>(value_dim) * sizeof(float));
  return at;
}

bool takes(const DecodeConfig& c, const Problem& p) {
  return c.head_dim == p.head_dim && c.value_dim == value_dim(p) &&
         !(c.in_clusters && p.batch_invariant);
}

std::optional<int> best_decode_config(const Problem& problem, int sms) {
  std::optional<int> best;
  for (int i = 0; i < kDecodeConfigCount; ++i) {
    const DecodeConfig& c = kDecodeConfigs[i];
    if (takes(c, problem) && (!c.in_clusters || 2 * most_items(problem, c.bc) <= sms)) {
      best = i;
    }
  }
  return best;
}

DecodeShape decode_shape(int heads, int kv_heads, int bc) {
  const int group = heads / kv_heads;
  const int tile_heads = std::min(group, kDecodeTileRows);
  return {.kv_heads = kv_heads,
          .group = group,
          .tile_heads = Divisor(tile_heads),
          .tile_tokens = kDecodeTileRows / tile_heads,
          .head_blocks = ceil_div(group, tile_heads),
          .bc = bc,
          .is_causal = false,
          .window = {},
          .is_invariant = false,
          .most_tokens = std::numeric_limits<int>::max()};
}

std::int64_t most_units(const Problem& p, int bc) {
  const std::int64_t tiles = ceil_div(p.capacity, std::int64_t{bc});
  std::int64_t units = tiles;  // of an item
  if (p.batch_invariant) {
    units = std::min<std::int64_t>(ceil_div(tiles, std::int64_t{kMinSplitTiles}), kMaxSplits);
  }
  return most_items(p, bc) * units;
}

DecodeDetails plan_decode(const Problem& p, int sms, int config) {
  const DecodeConfig& c = kDecodeConfigs[config];
  const DecodeShape shape = shape_of(p, c.bc);
  DecodePlan plan{};
  plan.config = config;
  plan.cluster = c.in_clusters ? cluster_of(most_items(p, c.bc), sms) : 1;
  plan.workers = std::min(sms * c.blocks_per_sm / plan.cluster, kMaxDecodeWorkers);
  plan.box_rows =
      static_cast<int>(p.page_size > 0 ? std::min<std::int64_t>(p.page_size, c.bc) : c.bc);
  plan.slot_rows =
      shape.tile_heads * static_cast<int>(std::min<std::int64_t>(shape.tile_tokens, p.q_len));
  plan.most_tokens = shape.most_tokens;
  plan.slots = p.batch_invariant ? most_units(p, c.bc) : 2 * plan.workers;
  return {.plan = plan, .at = decode_workspace(plan, value_dim(p))};
}

}  // namespace tilewright::cuda
