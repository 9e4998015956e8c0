#include "cuda/gemm/nvfp4/plan.hpp"

#include <algorithm>
#include <cstdint>

#include "common/nvfp4_weight_layout.hpp"

namespace tilewright::cuda {
namespace {

constexpr int kGroupRows = 2048;  // of the weight, whose tiles are computed together

constexpr int ceil_div(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

int chunks_of(const GemmNvfp4Problem& p, const Nvfp4Choice& choice) {
  return ceil_div(p.k, choice.columns());
}

TileOrder order_of(const GemmNvfp4Problem& p, const Nvfp4Choice& choice) {
  const int rows = choice.rows() * choice.cluster;
  const int token_tiles = ceil_div(p.m, choice.tokens);
  const int tokens = choice.cuts_tokens() ? ceil_div(p.m, token_tiles) : choice.tokens;
  const int row_tiles = ceil_div(p.n, rows);
  return {row_tiles, token_tiles, std::clamp(kGroupRows / rows, 1, row_tiles), tokens};
}

int tiles_of(const GemmNvfp4Problem& p, const TileOrder& order) {
  return order.row_tiles * order.token_tiles * static_cast<int>(p.l);
}

int workers_of(const Nvfp4Choice& choice, int sms) {
  return std::clamp(sms / choice.cluster, 1, GemmSchedule::kMaxWorkers);
}

// Whether the rounds in which the workers take whole tiles leave few of them idle.
bool are_full(std::int64_t tiles, std::int64_t workers) {
  const std::int64_t all = ceil_div(tiles, workers) * workers;
  return 16 * (all - tiles) <= all;
}

bool fits(const Nvfp4Choice& choice, const GemmNvfp4Problem& p, int sms) {
  const std::int64_t tiles = tiles_of(p, order_of(p, choice));
  const std::int64_t workers = workers_of(choice, sms);
  const std::int64_t columns = tiles * chunks_of(p, choice) * choice.columns();
  const bool is_short = columns < choice.short_columns * workers;
  if (p.m > (is_short ? choice.max_m_if_short : choice.max_m)) {
    return false;
  }
  if (p.batch_invariant && choice.column_consumers > 1) {
    return false;
  }
  if (p.c_dtype == DType::fp32 && !choice.takes_fp32()) {
    return false;
  }
  if (choice.use == Nvfp4Use::any) {
    return true;
  }
  if (choice.use == Nvfp4Use::one_round) {
    return tiles <= workers;
  }
  // Tiles of half as many tokens take an eighth longer, token by token, but may pad fewer.
  const auto padded_to = [&](std::int64_t tokens) { return ceil_div(p.m, tokens) * tokens; };
  const std::int64_t padded = padded_to(choice.tokens);
  const std::int64_t padded_by_halves = padded_to(choice.tokens / 2);
  const bool are_many = 4 * tiles >= 3 * workers && 8 * padded <= 9 * padded_by_halves;
  return are_many && (choice.use == Nvfp4Use::many_tiles || is_short || are_full(tiles, workers));
}

int best_row(const GemmNvfp4Problem& p, int sms) {
  int row = 0;
  while (!fits(kNvfp4Choices[row], p, sms)) {  // the last row takes all
    ++row;
  }
  return row;
}

// None, where sharing costs more than a last round with idle workers. Else as many as leave the
// others a multiple of the workers; and a round more, so that a worker has about a tile of them or
// more. Of large tiles none either, where the last round is nearly full: as measured, they take
// longer then, though the count of chunks is against it.
int shared_tiles(const Nvfp4Choice& choice, int tiles, int chunks, int workers) {
  const int rounds = ceil_div(tiles, workers);
  const int idle = rounds * workers - tiles;
  if (std::int64_t{idle} * chunks <= std::int64_t{choice.sharing_chunks()} * workers ||
      (choice.is_large() && are_full(tiles, workers))) {
    return 0;
  }
  return tiles < workers ? tiles : tiles % workers + workers;
}

}  // namespace

Nvfp4Plan plan_nvfp4(const GemmNvfp4Problem& p, int sms, std::optional<int> row) {
  const int index = row ? *row : best_row(p, sms);
  const Nvfp4Choice& choice = kNvfp4Choices[index];
  const TileOrder order = order_of(p, choice);
  const int tiles = tiles_of(p, order);
  const int chunks = chunks_of(p, choice);
  const int most_workers = workers_of(choice, sms);
  const int sharing =  // workers, where they share tiles
      std::max<int>(std::min(tiles, most_workers),
                    static_cast<int>(std::min<std::int64_t>(
                        most_workers, std::int64_t{tiles} * chunks / GemmSchedule::kLeastPart)));
  const int shared = p.batch_invariant ? 0 : shared_tiles(choice, tiles, chunks, sharing);
  return {.choice = index,
          .order = order,
          .tiles = tiles,
          .shared_tiles = shared,
          .chunks = chunks,
          .workers = shared > 0 ? sharing : std::min(tiles, most_workers)};
}

Nvfp4Workspace nvfp4_workspace(const GemmNvfp4Problem& p, const Nvfp4Plan& plan) {
  constexpr std::size_t kAlignment_bytes = 256;
  const Nvfp4Choice& choice = kNvfp4Choices[plan.choice];
  Nvfp4Workspace workspace{};
  const auto place = [&](std::size_t bytes) {
    const std::size_t at = workspace.bytes;
    workspace.bytes += (bytes + kAlignment_bytes - 1) / kAlignment_bytes * kAlignment_bytes;
    return at;
  };
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  const std::size_t slots = plan.shared_tiles > 0 ? size(plan.workers) * size(choice.cluster) : 0;
  workspace.sums = place(slots * size(choice.rows()) * size(choice.tokens) * sizeof(float));
  workspace.flags = place(slots * sizeof(std::uint64_t));
  workspace.ticket = place(slots > 0 ? sizeof(std::uint64_t) : 0);
  workspace.activations = place(
      p.a_dtype == DType::e2m1x2 ? size(p.l) * size(p.m) * size(p.k) * size_bytes(DType::bf16) : 0);
  const auto [row_tiles, row_bytes] = packed_nvfp4_weight_shape(p.n, p.k);
  workspace.weight = place(p.b_is_packed ? 0 : size(p.l) * size(row_tiles) * size(row_bytes));
  return workspace;
}

}  // namespace tilewright::cuda
