#include "cuda/attention/decode/grid.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "cuda/attention/decode/work.hpp"

namespace tilewright::cuda {
namespace {

using Problem = DecodeProblem;

// What a block takes for its parts, in µs, with head dim 128.
struct BlockCosts {
  float tile;  // each key tile
  float turn;  // each turn in which the warpgroups compute one tile each
  float part;  // each part
};

BlockCosts block_costs(int rows, bool is_e4m3) {
  switch (rows) {
    case 8:
      return is_e4m3 ? BlockCosts{0.35f, 0.17f, 2.0f} : BlockCosts{0.28f, 0.16f, 2.1f};
    case 16:
      return is_e4m3 ? BlockCosts{0.31f, 0.68f, 2.6f} : BlockCosts{0.33f, 0.13f, 2.4f};
    case 32:
      return is_e4m3 ? BlockCosts{0.30f, 0.90f, 3.4f} : BlockCosts{0.33f, 0.43f, 2.7f};
    default:
      return {0.68f, 0.24f, 6.9f};
  }
}

// A launch's share of the work that takes longest.
struct LongestShare {
  std::int64_t tiles;  // key tiles of each block
  std::int64_t parts;
  std::int64_t merged;   // parts that its worker merges in memory, one of its own among them; or 0
  std::int64_t workers;  // that have a share at all
};

// Estimates and chooses grids for a problem in a config.
class GridChoice {
 public:
  GridChoice(const Problem& p, const DecodeConfig& c, int sms)
      : p_(p),
        c_(c),
        sms_(sms),
        items_(expected_items(p, c)),
        tiles_(expected_tiles(p)),
        slot_rows_(slot_rows_of(p, c)) {}

  DecodeGrid best() const {
    return p_.batch_invariant ? invariant() : c_.swaps ? cheapest().grid : largest_clusters();
  }

  float cost() const { return cheapest().cost; }

 private:
  struct Estimate {
    DecodeGrid grid;
    float cost;
  };

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
  DecodeGrid exactly(std::int64_t cluster, std::int64_t workers) const {
    return {.cluster = static_cast<int>(cluster),
            .workers = static_cast<int>(std::min<std::int64_t>(workers, all(cluster)))};
  }

  // The grid that is estimated to take least, of clusters of each size: a worker for each item, or
  // as many for each as there is room for on all SMs or on half of them; or all, or half of all.
  Estimate cheapest() const {
    Estimate best{.grid = exactly(1, all(1)), .cost = std::numeric_limits<float>::infinity()};
    if (items_ < 1 || items_ * (tiles_ + kEmptyUnits) > std::numeric_limits<int>::max()) {
      return best;
    }
    for (int cluster = 1;
         cluster <= c_.most_cluster && cluster <= std::max<std::int64_t>(tiles_, 1); cluster *= 2) {
      const std::int64_t most = all(cluster);
      const std::int64_t half = most / 2;
      std::int64_t tried = 0;
      for (const std::int64_t workers :
           {items_, half / items_ * items_, half, most / items_ * items_, most}) {
        if (workers == tried || workers < 1 || workers > most) {
          continue;
        }
        tried = workers;
        const DecodeGrid grid = exactly(cluster, workers);
        const float cost = cost_of(grid);
        if (cost < best.cost) {
          best = {.grid = grid, .cost = cost};
        }
      }
    }
    return best;
  }

  // The longest share of a launch, if all sequences are as long as the longest.
  LongestShare longest_share(const DecodeGrid& grid) const {
    const int item_units = static_cast<int>(tiles_) + kEmptyUnits;
    const int items = static_cast<int>(items_);
    const int units = items * item_units;
    const Workers of{.count = Divisor(grid.workers),
                     .cluster_log2 = std::countr_zero(static_cast<unsigned>(grid.cluster)),
                     .merge_tiles = merge_tiles_of(slot_rows_, grid.cluster),
                     .may_take = grid.cluster == 1};
    const UnitShares shares(units, items, item_units, of);
    const int workers = shares.workers();
    LongestShare longest{.tiles = 0, .parts = 1, .merged = 0, .workers = workers};
    if (shares.further() > 0) {  // items that workers take
      longest.tiles = ceil_div(items_ * tiles_, std::int64_t{workers});
      longest.parts = ceil_div(items, workers);
    } else if (workers <= items && shares.begin(1) % item_units == 0) {  // whole items
      longest.parts = ceil_div(items, workers);
      longest.tiles = longest.parts * ceil_div(tiles_, std::int64_t{grid.cluster});
    } else if (workers % items == 0) {  // as many workers for each item
      longest.merged = workers / items;
      longest.tiles = ceil_div(ceil_div(item_units, workers / items), grid.cluster);
    } else {
      const int share = units / workers;
      longest.parts = share / item_units + 2;
      longest.merged = item_units / share + 2;
      longest.tiles = ceil_div(ceil_div(units, workers), grid.cluster);
    }
    return longest;
  }

  // What a launch in a grid is estimated to take, in µs, beside what it takes in any grid: a
  // block's time and memory's, of which the longer counts most. The constants are fitted to the
  // times of 295 shapes in all grids (docs/worklog/decode.md).
  float cost_of(const DecodeGrid& grid) const {
    const LongestShare longest = longest_share(grid);
    const bool is_narrow = c_.head_dim < 128;
    const BlockCosts costs = block_costs(c_.rows, is_e4m3(p_));
    const auto tiles = static_cast<float>(longest.tiles);
    const float tile = (loads_whole_tiles() ? 1.0f : 1.04f) * costs.tile;
    float block = (is_narrow ? 0.88f : 1.0f) * (tile * tiles + costs.turn * std::ceil(tiles / 3)) +
                  (is_narrow ? 0.72f : 1.0f) * costs.part * static_cast<float>(longest.parts);
    if (longest.merged > 0) {
      block += 1.3f + 0.1f * static_cast<float>(longest.merged) +
               0.025f * static_cast<float>(c_.rows) / static_cast<float>(grid.cluster);
    }
    const auto squared = [](float x) { return x * x; };
    const float memory = memory_time(grid, longest);
    const float both = std::sqrt(std::sqrt(squared(squared(block)) + squared(squared(memory))));
    return both + start_of(grid.cluster) - 0.9f * overlap(grid, longest);
  }

  // What memory takes, in µs: a little more if half of the SMs read, or if blocks merge in memory.
  float memory_time(const DecodeGrid& grid, const LongestShare& longest) const {
    constexpr float kMemory_bytes = 4.4e6f;  // that memory brings in a µs
    const float time = static_cast<float>(cache_bytes()) / kMemory_bytes;
    const bool is_half = 2 * grid.cluster * grid.workers <= sms_;
    const bool merge_blocks = grid.cluster == 1 && longest.merged > 0;
    return time + (is_half ? 0.01f * time : 0.0f) +
           (merge_blocks ? std::min(0.01f * time, 0.6f) : 0.0f);
  }

  // What the start of a cluster takes longer than that of a block, in µs.
  static float start_of(int cluster) {
    return cluster == 1 ? 0.0f : cluster == 2 ? 0.8f : cluster == 4 ? 0.4f : 0.5f;
  }

  // What the next launch saves by its early start, in µs, if it is as large.
  float overlap(const DecodeGrid& grid, const LongestShare& longest) const {
    const std::int64_t room = all(grid.cluster);
    const std::int64_t idle = grid.workers - longest.workers;
    const float free = static_cast<float>(room - grid.workers);
    float saved = 0.4f * std::clamp(free / static_cast<float>(grid.workers), 0.0f, 1.0f);
    if (2 * longest.workers <= room) {
      saved += longest.merged > 0 ? 1.96f : 1.9f;
    }
    // Idle clusters that fill half of the SMs: the launch behind the next one begins no earlier.
    if (grid.cluster > 1 && grid.workers == room / 2 && idle > 0 && 4 * idle <= grid.workers) {
      saved += 0.1f;
    }
    return saved;
  }

  std::int64_t cache_bytes() const {
    const std::int64_t row_bytes = (p_.head_dim + value_dim(p_)) * (is_e4m3(p_) ? 1 : 2);
    return p_.batch * p_.kv_heads * tiles_ * kDecodeTileKeys * row_bytes;
  }

  // Whether each tile is one box. Those of smaller pages take an SM longer.
  bool loads_whole_tiles() const { return p_.page_size % kDecodeTileKeys == 0; }

  // Of configs whose operands are not swapped: the largest clusters, of a power of two, of which
  // there is room for one for each item. Several smaller ones share each long item. Where a block
  // would have at most two tiles and the next launch no room, clusters are half as large; and a
  // block has two tiles at least.
  DecodeGrid largest_clusters() const {
    std::int64_t cluster = 1;
    while (2 * cluster <= c_.most_cluster && items_ <= room(2 * cluster)) {
      cluster *= 2;
    }
    if (are_long(cluster)) {
      const int shared = shared_cluster(cluster);
      if (shared > 1) {
        return exactly(shared, all(shared));
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

  // Whether items are so long that several workers may share each, although their results are then
  // merged in memory. With 16-bit caches that takes long where there are many rows.
  bool are_long(std::int64_t cluster) const {
    return is_e4m3(p_) ? tiles_ > 24 * cluster
                       : c_.rows <= 16 && tiles_ >= 16 * cluster && fill_sms();
  }

  // Whether tiles are so many that a merge in memory is a small part of the time.
  bool fill_sms() const {
    constexpr int kLeastTiles = 7;  // of an SM
    return items_ * tiles_ >= std::int64_t{kLeastTiles} * sms_;
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

  // As many workers as may have work, or all. Those without work bring tiles to L2 for the others,
  // which is of use where there are more tiles than SMs.
  DecodeGrid with_work(std::int64_t cluster, std::int64_t workers) const {
    const bool are_few = p_.batch * p_.kv_heads * tiles_ <= sms_;
    return are_few ? exactly(cluster, workers) : exactly(cluster, all(cluster));
  }

  // The blocks of a cluster have a split each of a batch-invariant problem: all of an item, if
  // these are eight at most, or a bundle, if all bundles run at once. Else there are no clusters.
  // Where half of the SMs are enough for long splits, each is a block's.
  DecodeGrid invariant() const {
    const int splits = most_splits(p_, c_);
    const int most = c_.most_cluster;
    if (splits > kBundle && splits <= most && items_ <= room(most)) {
      const bool takes_half = half_is_enough() && 2 * items_ * splits <= sms_ && fill_sms();
      return takes_half ? exactly(1, items_ * splits) : exactly(most, items_);
    }
    const int cluster = splits == 1 ? 1 : splits == 2 ? 2 : kBundle;
    const std::int64_t bundles = items_ * ceil_div(splits, kBundle);
    const bool fits = cluster <= most && bundles <= room(cluster);
    return fits && cluster > 1 ? with_work(cluster, bundles) : with_work(1, items_ * splits);
  }

  // Whether half of the SMs load and compute as fast as memory brings keys: few rows, wide keys of
  // 16 bits, which are the rows of the MMAs.
  bool half_is_enough() const {
    return c_.swaps && c_.rows <= 16 && c_.head_dim >= 128 && !is_e4m3(p_) && loads_whole_tiles();
  }

  const Problem& p_;
  const DecodeConfig& c_;
  int sms_;
  std::int64_t items_;
  std::int64_t tiles_;
  int slot_rows_;
};

}  // namespace

DecodeGrid best_decode_grid(const Problem& problem, const DecodeConfig& config, int sms) {
  return GridChoice(problem, config, sms).best();
}

float decode_cost(const Problem& problem, const DecodeConfig& config, int sms) {
  return GridChoice(problem, config, sms).cost();
}

}  // namespace tilewright::cuda
