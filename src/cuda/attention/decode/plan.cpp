#include "cuda/attention/decode/plan.hpp"

#include <algorithm>
#include <limits>
#include <optional>

#include "cuda/attention/decode/grid.hpp"
#include "cuda/attention/decode/work.hpp"

namespace tilewright::cuda {

using Problem = DecodeProblem;

bool loads_boxes(const Problem& p) {
  const std::int64_t swizzle = p.cache_dtype == DType::e4m3 ? 64 : 32;  // in values
  const bool fits = p.page_size == 0 || p.page_size % kDecodeTileKeys == 0 ||
                    (p.page_size >= kLeastBoxRows && kDecodeTileKeys % p.page_size == 0);
  return fits && p.head_dim % swizzle == 0 && value_dim(p) % swizzle == 0;
}

DecodeWorkspace decode_workspace(const DecodePlan& plan, std::int64_t value_dim) {
  constexpr std::size_t kAlignment = 256;
  DecodeWorkspace at{};
  const auto place = [&](std::size_t bytes) {
    const std::size_t start = at.bytes;
    at.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return start;
  };
  const auto slots = static_cast<std::size_t>(plan.slots);
  const std::size_t columns =
      slots * static_cast<std::size_t>(plan.slot_rows) * static_cast<std::size_t>(value_dim);
  at.tickets = place(sizeof(std::uint64_t));
  at.marks =
      place(slots * static_cast<std::size_t>(plan.cluster) * kMostMarks * sizeof(std::uint64_t));
  at.statistics = place(columns / 4 * 2 * sizeof(float));
  at.o = place(columns * sizeof(float));
  return at;
}

bool takes(const DecodeConfig& c, const Problem& p) {
  return c.head_dim == p.head_dim && c.value_dim == value_dim(p) &&
         (p.cache_dtype != DType::e4m3 || takes_e4m3(c)) && (!c.swaps || loads_boxes(p));
}

namespace {

// The config for a sequence with so many rows: keys as rows of the MMAs, where that can be, and the
// fewest rows that are enough, or else the most.
std::optional<int> config_for_rows(const Problem& p, std::int64_t rows) {
  const auto is_better = [&](const DecodeConfig& a, const DecodeConfig& b) {
    const bool are_enough = a.rows >= rows && b.rows >= rows;
    return a.swaps != b.swaps ? a.swaps : are_enough ? a.rows < b.rows : a.rows > b.rows;
  };
  std::optional<int> best;
  for (int i = 0; i < kDecodeConfigCount; ++i) {
    if (takes(kDecodeConfigs[i], p) &&
        (!best || is_better(kDecodeConfigs[i], kDecodeConfigs[*best]))) {
      best = i;
    }
  }
  return best;
}

// Goes from config `best` to those before it, which have fewer and fewer rows, and takes each for
// which replaces(config, best so far) is true. With fewer rows there are more items, but a block
// takes less for each.
template <typename Replaces>
int with_fewer_rows(const Problem& p, int best, const Replaces& replaces) {
  for (int i = best - 1; i >= 0 && takes(kDecodeConfigs[i], p); --i) {
    best = replaces(kDecodeConfigs[i], kDecodeConfigs[best]) ? i : best;
  }
  return best;
}

// The config for a batch-invariant problem. Only between configs that give the same bits may the
// choice depend on the batch. Swapped ones of up to 32 rows do: they have as many warpgroups, and a
// row's bits do not depend on the others of its tile. Of these, fewer rows are faster where splits
// take half of the SMs at most. Configs without clusters are not taken if there are others.
int invariant_config(const Problem& p, int best, int sms) {
  return with_fewer_rows(p, best, [&](const DecodeConfig& c, const DecodeConfig& larger) {
    const bool are_few = 2 * most_items(p, c) * most_splits(p, c) <= sms;
    return larger.most_cluster == 1 || (c.swaps && are_few);
  });
}

// The config for another problem, if operands are swapped: by what grids are estimated to take. In
// place of tiles of 64 rows, smaller ones are for few key tiles of an SM: with more, row tiles of
// the same keys no longer find them in L2.
int cheapest_config(const Problem& p, int best, int sms) {
  constexpr int kMostTiles = 32;  // of an SM
  float least = decode_cost(p, kDecodeConfigs[best], sms);
  return with_fewer_rows(p, best, [&](const DecodeConfig& c, const DecodeConfig& larger) {
    if (larger.rows == 64 &&
        expected_items(p, c) * expected_tiles(p) > std::int64_t{kMostTiles} * sms) {
      return false;
    }
    const float cost = decode_cost(p, c, sms);
    const bool is_less = cost < least;
    least = std::min(cost, least);
    return is_less;
  });
}

// The same if they are not: larger row tiles are for many key tiles of an SM, and for very many if
// they have no clusters. Those of 64 rows are slow with head dims other than 64 and 128.
int unswapped_config(const Problem& p, int best, int sms) {
  return with_fewer_rows(p, best, [&](const DecodeConfig& c, const DecodeConfig& larger) {
    const int most_tiles_of_sm = larger.most_cluster > 1 ? 12 : 64;
    const bool are_slow = larger.rows == 64 && c.head_dim != 64 && c.head_dim != 128;
    return are_slow ||
           expected_items(p, c) * expected_tiles(p) <= std::int64_t{most_tiles_of_sm} * sms;
  });
}

}  // namespace

// A packed batch's sequences may differ: the average counts, or the longest if that has fewer
// tokens, since the tensor may have rows of no sequence. Where a sequence's bits may depend on
// nothing else, it is one token that counts.
std::optional<int> best_decode_config(const Problem& problem, int sms) {
  const std::int64_t average = ceil_div(problem.q_len, problem.packed ? problem.batch : 1);
  const std::int64_t tokens =
      problem.batch_invariant ? 1 : std::min(average, longest_q_len(problem));
  const std::optional<int> best =
      config_for_rows(problem, tokens * (problem.heads / problem.kv_heads));
  if (!best) {
    return best;
  }
  if (problem.batch_invariant) {
    return invariant_config(problem, *best, sms);
  }
  return kDecodeConfigs[*best].swaps ? cheapest_config(problem, *best, sms)
                                     : unswapped_config(problem, *best, sms);
}

DecodeShape decode_shape(int heads, int kv_heads, int tile_rows) {
  const int group = heads / kv_heads;
  const int tile_heads = std::min(group, tile_rows);
  return {.kv_heads = kv_heads,
          .group = group,
          .tile_heads = Divisor(tile_heads),
          .tile_tokens = Divisor(tile_rows / tile_heads),
          .head_blocks = ceil_div(group, tile_heads),
          .is_causal = false,
          .window = {},
          .is_invariant = false,
          .most_tokens = std::numeric_limits<int>::max()};
}

// Of a batch-invariant problem only items of sequences with few row tiles are split.
std::int64_t most_units(const Problem& p, const DecodeConfig& c) {
  const std::int64_t items = most_items(p, c);
  if (!p.batch_invariant) {
    return items * (most_tiles(p) + kEmptyUnits);
  }
  const DecodeShape shape = shape_of(p, c);
  const std::int64_t split =
      std::min(items, p.batch * kMostSplitRowTiles * p.kv_heads * shape.head_blocks);
  return split * most_splits(p, c) + (items - split);
}

DecodeDetails plan_decode(const Problem& p, int sms, int config) {
  const DecodeConfig& c = kDecodeConfigs[config];
  const DecodeShape shape = shape_of(p, c);
  DecodePlan plan{};
  plan.config = config;
  const DecodeGrid grid = best_decode_grid(p, c, sms);
  plan.cluster = grid.cluster;
  plan.workers = grid.workers;
  plan.loads_boxes = loads_boxes(p);
  const std::int64_t page_size = p.page_size > 0 ? p.page_size : kDecodeTileKeys;
  plan.box_rows =
      plan.loads_boxes ? static_cast<int>(std::min<std::int64_t>(page_size, kDecodeTileKeys)) : 1;
  plan.slot_rows = slot_rows_of(p, c);
  plan.merge_tiles = p.batch_invariant ? 0 : merge_tiles_of(plan.slot_rows, plan.cluster);
  plan.most_tokens = shape.most_tokens;
  plan.slots = p.batch_invariant ? most_units(p, c) : plan.workers;
  return {.plan = plan, .at = decode_workspace(plan, value_dim(p))};
}

}  // namespace tilewright::cuda
