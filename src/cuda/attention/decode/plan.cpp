#include "cuda/attention/decode/plan.hpp"

#include <algorithm>
#include <limits>

#include "common/ceil_div.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

std::int64_t value_dim(const Problem& p) { return p.value_dim > 0 ? p.value_dim : p.head_dim; }

// The most row tiles that all sequences have together, of one KV head and head block. Each packed
// sequence may have a single token in its last row tile.
std::int64_t most_row_tiles(const Problem& p, int tile_tokens) {
  return p.packed ? (p.q_len + (tile_tokens - 1) * std::min(p.batch, p.q_len)) / tile_tokens
                  : p.batch * ceil_div(p.q_len, std::int64_t{tile_tokens});
}

DecodeShape shape_of(const Problem& p, const DecodeConfig& c) {
  return decode_shape(static_cast<int>(p.heads), static_cast<int>(p.kv_heads), c.rows);
}

std::int64_t most_items(const Problem& p, const DecodeConfig& c) {
  const DecodeShape shape = shape_of(p, c);
  return most_row_tiles(p, shape.tile_tokens) * p.kv_heads * shape.head_blocks;
}

// The most key tiles that a sequence's tokens see. Those in a window may begin anywhere in a tile.
std::int64_t tiles_of(const Problem& p) {
  constexpr std::int64_t kTileKeys = kDecodeTileKeys;
  const std::int64_t tiles = ceil_div(p.capacity, kTileKeys);
  const bool is_limited = p.window_left >= 0 && p.window_left < p.capacity;
  return is_limited ? std::min(tiles, ceil_div(p.window_left + p.q_len - 1, kTileKeys) + 1) : tiles;
}

// The splits of an item of a batch-invariant problem, at most.
int most_splits(const Problem& p, const DecodeConfig& c) {
  const std::int64_t row_tiles = ceil_div(p.q_len, std::int64_t{shape_of(p, c).tile_tokens});
  if (!p.packed && row_tiles > kMostSplitRowTiles) {
    return 1;
  }
  const std::int64_t splits = ceil_div(tiles_of(p), std::int64_t{kMinSplitTiles});
  const int most = tiles_of(p) <= kShortTiles ? kShortSplits : kMaxSplits;
  return static_cast<int>(std::min<std::int64_t>(splits, most));
}

// A launch's grid: so many workers, of so many blocks each.
struct Grid {
  int cluster;
  int workers;
  bool merges;  // a block's results of an item are merged with others'; unless batch-invariant
};

// The grid for a problem in a config. Launches that follow each other overlap as far as the
// clusters of both have room at once. So some grids leave half of the SMs to the next launch.
class GridChoice {
 public:
  GridChoice(const Problem& p, const DecodeConfig& c, int sms)
      : p_(p), c_(c), sms_(sms), items_(most_items(p, c)), tiles_(tiles_of(p)) {}

  // Clusters are the largest ones, of a power of two, of which there is room for one for each item.
  // Several smaller ones, or blocks, share each long item. Where a block would have at most two
  // tiles and the next launch no room, clusters are half as large; and a block has two tiles at
  // least.
  Grid best() const {
    if (p_.batch_invariant) {
      return invariant();
    }
    std::int64_t cluster = 1;
    while (2 * cluster <= c_.most_cluster && items_ <= room(2 * cluster)) {
      cluster *= 2;
    }
    if (may_halve(cluster)) {
      return {.cluster = 1, .workers = sms_ / 2, .merges = false};
    }
    if (are_long(cluster)) {
      if (const std::optional<Grid> grid = sharing(cluster)) {
        return *grid;
      }
    }
    if (cluster > 1 && tiles_ <= 2 * cluster && !leaves_room(cluster)) {
      cluster /= 2;
    }
    while (cluster > 1 && tiles_ < 2 * cluster) {
      cluster /= 2;
    }
    const int block_tiles = loads_boxes(p_) ? 4 : 2;  // or else an SM takes longer to load them
    return with_work(cluster, std::max(items_, items_ * tiles_ / (block_tiles * cluster)));
  }

  // Whether there is room for the largest clusters of two launches.
  bool leaves_room_for_largest() const { return leaves_room(c_.most_cluster); }

 private:
  // SMs that clusters leave unused. SMs come in pairs, which clusters of two fill. An H200 runs 15
  // clusters of eight, but where 14 run the next launch's begin earlier.
  static int unfilled_sms(std::int64_t cluster) {
    return cluster <= 2 ? 0 : cluster == 8 ? 20 : 12;
  }

  // For how many clusters there is room.
  std::int64_t room(std::int64_t cluster) const {
    return (sms_ - unfilled_sms(cluster)) * c_.blocks_per_sm / cluster;
  }
  bool leaves_room(std::int64_t cluster) const { return 2 * items_ <= room(cluster); }

  int all(std::int64_t cluster) const {
    return static_cast<int>(std::min<std::int64_t>(room(cluster), kMaxDecodeWorkers));
  }

  bool is_e4m3() const { return p_.cache_dtype == DType::e4m3; }

  // As many workers as may have work, or all. Those without work bring tiles to L2 for the others,
  // which is of use where there are more tiles than SMs.
  Grid with_work(std::int64_t cluster, std::int64_t workers) const {
    const bool are_few = p_.batch * p_.kv_heads * tiles_ <= sms_;
    return are_few ? exactly(cluster, workers) : exactly(cluster, all(cluster));
  }
  Grid exactly(std::int64_t cluster, std::int64_t workers) const {
    return {.cluster = static_cast<int>(cluster),
            .workers = static_cast<int>(std::min<std::int64_t>(workers, all(cluster))),
            .merges = cluster > 1};
  }

  // Whether each tile is one box. Those of smaller pages take an SM longer.
  bool loads_whole_tiles() const { return p_.page_size % kDecodeTileKeys == 0; }

  // Whether half of the SMs load and compute as fast as memory brings keys: few rows, wide keys of
  // 16 bits, which are the rows of the MMAs.
  bool half_is_enough() const {
    return c_.swaps && c_.rows <= 16 && c_.head_dim >= 128 && !is_e4m3();
  }

  // Whether one block an item is as fast as a cluster of two, and leaves half of the SMs to the
  // next launch.
  bool may_halve(std::int64_t cluster) const {
    constexpr int kMostTiles = 64;
    return cluster == 2 && !leaves_room(cluster) && c_.rows == 8 && half_is_enough() &&
           loads_whole_tiles() && tiles_ > 2 * cluster && tiles_ <= kMostTiles;
  }

  // Whether items are so long that several workers may share each, although their results are then
  // merged in memory. With 16-bit caches that takes long where there are many rows.
  bool are_long(std::int64_t cluster) const {
    if (is_e4m3()) {
      return tiles_ > 24 * cluster;
    }
    return c_.rows <= 16 && tiles_ >= 16 * cluster && fill_sms();
  }

  // Whether tiles are so many that a merge in memory is a small part of the time.
  bool fill_sms() const {
    constexpr int kLeastTiles = 7;  // of an SM
    return items_ * tiles_ >= std::int64_t{kLeastTiles} * sms_;
  }

  // The grid whose workers share long items. Where half of the SMs are enough, these have a block
  // each, unless tiles are so many that the next launch's early start counts for little.
  std::optional<Grid> sharing(std::int64_t most) const {
    const int cluster = shared_cluster(most);
    if (half_is_enough() && 2 * items_ <= room(cluster)) {
      constexpr int kLeastItems = 4;
      constexpr int kMostItems = 24;
      const int most_tiles = loads_whole_tiles() ? 64 : 16;  // of an SM
      const bool takes_half = items_ >= kLeastItems && items_ <= kMostItems &&
                              items_ * tiles_ <= std::int64_t{most_tiles} * sms_;
      return Grid{.cluster = takes_half ? 1 : cluster,
                  .workers = takes_half ? sharing_half() : all(cluster),
                  .merges = true};
    }
    return cluster > 1 ? std::optional(exactly(cluster, all(cluster))) : std::nullopt;
  }

  // Half of the SMs or, where that leaves out few, as many for each item: most shares would else
  // have parts of two items.
  int sharing_half() const {
    const int half = sms_ / 2;
    const int even = half / static_cast<int>(items_) * static_cast<int>(items_);
    return 16 * (half - even) <= half ? even : half;
  }

  // The largest clusters of which few SMs are left over if all items have equally many.
  int shared_cluster(std::int64_t most) const {
    std::int64_t shared = most;
    while (shared > 1 && 4 * (room(shared) / items_ * items_ * shared) <
                             3 * std::int64_t{sms_} * c_.blocks_per_sm) {
      shared /= 2;
    }
    return static_cast<int>(shared);
  }

  // The blocks of a cluster have a split each of a batch-invariant problem: all of an item, if
  // these are eight at most, or a bundle, if all bundles run at once. Else there are no clusters.
  Grid invariant() const {
    const int splits = most_splits(p_, c_);
    const int most = c_.most_cluster;
    if (splits > kBundle && splits <= most && items_ <= room(most)) {
      const bool takes_half =
          half_is_enough() && loads_whole_tiles() && 2 * items_ * splits <= sms_ && fill_sms();
      return takes_half ? exactly(1, items_ * splits) : exactly(most, items_);
    }
    const int cluster = splits == 1 ? 1 : splits == 2 ? 2 : kBundle;
    const std::int64_t bundles = items_ * ceil_div(splits, kBundle);
    const bool fits = cluster <= most && bundles <= room(cluster);
    return fits && cluster > 1 ? with_work(cluster, bundles) : with_work(1, items_ * splits);
  }

  const Problem& p_;
  const DecodeConfig& c_;
  int sms_;
  std::int64_t items_;
  std::int64_t tiles_;
};

// Whether row tiles of fewer rows than a sequence has are faster. Its keys are then read once for
// each of its row tiles, but a block computes and merges less. Of a batch-invariant problem that is
// so where splits take half of the SMs at most; of another, where an SM computes few key tiles: it
// may have more where no block merges or sends anything. Row tiles of eight rows must also be so
// few that the largest clusters would take a quarter of the SMs at most. Over E4M3 caches, where
// more rows cost little, those of 16 are for three key tiles of an SM at most, and must leave room
// for the next launch.
bool fewer_rows_are_faster(const Problem& p, const DecodeConfig& c, int sms) {
  const std::int64_t items = most_items(p, c);
  if (!c.swaps) {
    return false;
  }
  if (p.batch_invariant) {
    return 2 * items * most_splits(p, c) <= sms;
  }
  const std::int64_t tiles_of_sm = ceil_div(items * tiles_of(p), std::int64_t{sms});
  const GridChoice grids(p, c, sms);
  if (c.rows == 8) {
    return 4 * items * c.most_cluster <= sms && tiles_of_sm <= 2;
  }
  if (c.rows == 16 && p.cache_dtype == DType::e4m3) {
    return grids.leaves_room_for_largest() && tiles_of_sm <= 3;
  }
  const bool merges = items > sms || grids.best().merges;
  return tiles_of_sm <= (merges ? 4 : 16);
}

}  // namespace

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

// A packed batch's sequences may differ: the average counts. Where a sequence's bits may depend on
// nothing else, it is one token that counts; and row tiles may have fewer rows where as many
// warpgroups share the keys, since a row's bits do not depend on the others of its tile.
std::optional<int> best_decode_config(const Problem& problem, int sms) {
  const std::int64_t tokens = problem.batch_invariant ? 1
                              : problem.packed        ? ceil_div(problem.q_len, problem.batch)
                                                      : problem.q_len;
  const std::int64_t rows = tokens * (problem.heads / problem.kv_heads);
  const bool has_three_groups = rows <= 32;
  const bool may_have_fewer = !problem.batch_invariant || has_three_groups;
  // The fewest rows that are enough, or else the most; keys as rows of the MMAs, where that can be.
  const auto suffices = [&](const DecodeConfig& c) {
    return c.rows >= rows || (may_have_fewer && fewer_rows_are_faster(problem, c, sms));
  };
  const auto is_better = [&](const DecodeConfig& a, const DecodeConfig& b) {
    const bool suffice = suffices(a) && suffices(b);
    return a.rows == b.rows ? a.swaps && !b.swaps : suffice ? a.rows < b.rows : a.rows > b.rows;
  };
  std::optional<int> best;
  for (int i = 0; i < kDecodeConfigCount; ++i) {
    if (takes(kDecodeConfigs[i], problem) &&
        (!best || is_better(kDecodeConfigs[i], kDecodeConfigs[*best]))) {
      best = i;
    }
  }
  return best;
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
    return items * (tiles_of(p) + kEmptyUnits);
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
  const Grid grid = GridChoice(p, c, sms).best();
  plan.cluster = grid.cluster;
  plan.workers = grid.workers;
  plan.loads_boxes = loads_boxes(p);
  const std::int64_t page_size = p.page_size > 0 ? p.page_size : kDecodeTileKeys;
  plan.box_rows =
      plan.loads_boxes ? static_cast<int>(std::min<std::int64_t>(page_size, kDecodeTileKeys)) : 1;
  plan.slot_rows =
      shape.tile_heads * static_cast<int>(std::min<std::int64_t>(int{shape.tile_tokens}, p.q_len));
  plan.merge_tiles = p.batch_invariant ? 0 : 8 + (plan.slot_rows + 4) / (2 * plan.cluster);
  plan.most_tokens = shape.most_tokens;
  plan.slots = p.batch_invariant ? most_units(p, c) : plan.workers;
  return {.plan = plan, .at = decode_workspace(plan, value_dim(p))};
}

}  // namespace tilewright::cuda
