#include "cuda/gemm/nvfp4/plan.hpp"

#include <algorithm>
#include <cstdint>

#include "common/nvfp4_weight_layout.hpp"

namespace tilewright::cuda {
namespace {

constexpr int kLeastChunks = 2;    // of a worker that shares a tile
constexpr int kSharingChunks = 4;  // what adding up the parts of tiles takes, in chunks
constexpr int kGroupRows = 2048;  // of the weight, whose tiles for all tokens are computed together

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// None, where sharing costs more than a last round with idle workers. Else as many as leave the
// others a multiple of the workers; and a round more, so that no worker has less than a tile of
// them.
int shared_tiles(int tiles, int chunks, int workers) {
  const int rounds = ceil_div(tiles, workers);
  const int idle = rounds * workers - tiles;
  if (std::int64_t{idle} * chunks <= std::int64_t{kSharingChunks} * workers) {
    return 0;
  }
  return tiles < workers ? tiles : tiles % workers + workers;
}

int table_choice(int m) {
  return m <= 8 ? 0 : m <= 16 ? 1 : m <= 32 ? 4 : m <= 64 ? 5 : m <= 128 ? 7 : 8;
}

}  // namespace

Nvfp4Plan plan_nvfp4(int m, int n, int k, int l, bool batch_invariant, int sms, int choice) {
  const int index = choice < 0 ? table_choice(m) : choice;
  const Nvfp4Choice& c = kNvfp4Choices[index];
  const TileOrder order = {.row_tiles = ceil_div(n, c.rows() * c.cluster),
                           .token_tiles = ceil_div(m, c.tokens),
                           .group = std::max(1, kGroupRows / (c.rows() * c.cluster))};
  const int tiles = order.row_tiles * order.token_tiles * l;
  const int chunks = ceil_div(k, WeightTile::kPaddedColumns);
  const int most = sms / c.cluster;
  const int sharing = std::min(most, std::max(tiles, tiles * chunks / kLeastChunks));
  const int workers = batch_invariant ? std::min(most, tiles) : sharing;
  const int shared = batch_invariant ? 0 : shared_tiles(tiles, chunks, workers);

  Nvfp4Plan plan{.choice = index,
                 .order = order,
                 .schedule = GemmSchedule(tiles, shared, chunks, workers),
                 .flags = 0,
                 .workspace_bytes = 0};
  if (shared > 0) {
    const std::size_t slots = static_cast<std::size_t>(workers) * c.cluster;
    plan.flags = slots * c.rows() * c.tokens * sizeof(float);
    plan.workspace_bytes = plan.flags + slots * c.consumers * 4 * sizeof(std::uint64_t);
  }
  return plan;
}

}  // namespace tilewright::cuda
