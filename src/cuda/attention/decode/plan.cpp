#include "cuda/attention/decode/plan.hpp"

#include <algorithm>

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

DecodeWorkspace workspace_of(const DecodePlan& plan, std::size_t value_dim) {
  constexpr std::size_t kAlignment = 256;
  DecodeWorkspace at{};
  const auto place = [&](std::size_t bytes) {
    const std::size_t start = at.bytes;
    at.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return start;
  };
  const auto slots = static_cast<std::size_t>(plan.slots);
  const std::size_t rows = slots * static_cast<std::size_t>(plan.slot_rows);
  at.counters = place(2 * slots * sizeof(std::uint64_t));
  at.row_max = place(rows * sizeof(float));
  at.row_sum = place(rows * sizeof(float));
  at.o = place(rows * value_dim * sizeof(float));
  return at;
}

}  // namespace

std::optional<int> first_decode_config(const Problem& problem) {
  for (int i = 0; i < kDecodeConfigCount; ++i) {
    if (kDecodeConfigs[i].head_dim == problem.head_dim &&
        kDecodeConfigs[i].value_dim == value_dim(problem)) {
      return i;
    }
  }
  return std::nullopt;
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
          .is_invariant = false};
}

std::int64_t most_units(const Problem& p, int bc) {
  const DecodeShape shape =
      decode_shape(static_cast<int>(p.heads), static_cast<int>(p.kv_heads), bc);
  const std::int64_t tiles = ceil_div(p.capacity, std::int64_t{bc});
  std::int64_t units = tiles;  // of an item
  if (p.batch_invariant) {
    units = std::min<std::int64_t>(ceil_div(tiles, std::int64_t{kMinSplitTiles}), kMaxSplits);
  }
  return most_row_tiles(p, shape.tile_tokens) * p.kv_heads * shape.head_blocks * units;
}

DecodeDetails plan_decode(const Problem& p, int sms, int config) {
  const DecodeConfig& c = kDecodeConfigs[config];
  const DecodeShape shape =
      decode_shape(static_cast<int>(p.heads), static_cast<int>(p.kv_heads), c.bc);
  DecodePlan plan{};
  plan.config = config;
  plan.workers = std::min(sms * c.blocks_per_sm, kMaxDecodeWorkers);
  plan.box_rows =
      static_cast<int>(p.page_size > 0 ? std::min<std::int64_t>(p.page_size, c.bc) : c.bc);
  plan.slot_rows =
      shape.tile_heads * static_cast<int>(std::min<std::int64_t>(shape.tile_tokens, p.q_len));
  plan.slots = p.batch_invariant ? most_units(p, c.bc) : 2 * plan.workers;
  return {.plan = plan, .at = workspace_of(plan, static_cast<std::size_t>(value_dim(p)))};
}

}  // namespace tilewright::cuda
