#include "cuda/gemm/nvfp4/plan.hpp"

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.hpp"
#include "common/nvfp4_weight_layout.hpp"

namespace tilewright::cuda {
namespace {

constexpr int kGroupRows = 2048;  // of the weight, in a group of tiles that are computed together

int chunks_of(const GemmNvfp4Problem& p, const Nvfp4Config& config) {
  return static_cast<int>(ceil_div(p.k, config.columns()));
}

int row_tiles_of(const GemmNvfp4Problem& p, const Nvfp4Config& config) {
  return static_cast<int>(ceil_div(p.n, config.rows() * config.cluster));
}

int token_tiles_of(const GemmNvfp4Problem& p, const Nvfp4Config& config) {
  return static_cast<int>(ceil_div(p.m, config.tokens));
}

int tiles_of(const GemmNvfp4Problem& p, const Nvfp4Config& config) {
  return row_tiles_of(p, config) * token_tiles_of(p, config) * static_cast<int>(p.l);
}

TileOrder order_of(const GemmNvfp4Problem& p, const Nvfp4Config& config) {
  const int row_tiles = row_tiles_of(p, config);
  const int token_tiles = token_tiles_of(p, config);
  const int group = std::clamp(kGroupRows / (config.rows() * config.cluster), 1, row_tiles);
  const std::int64_t tokens = config.cuts_tokens() ? ceil_div(p.m, token_tiles) : config.tokens;
  return {row_tiles, token_tiles, group, static_cast<int>(tokens)};
}

int workers_of(const Nvfp4Config& config, int sms) {
  return std::clamp(sms / config.cluster, 1, GemmSchedule::kMaxWorkers);
}

// Whether few workers idle in the last round, if they take whole tiles round by round.
bool are_full(std::int64_t tiles, std::int64_t workers) {
  const std::int64_t all = ceil_div(tiles, workers) * workers;
  return 16 * (all - tiles) <= all;
}

bool fits(const Nvfp4Config& config, const GemmNvfp4Problem& p, int sms) {
  const std::int64_t tiles = tiles_of(p, config);
  const std::int64_t workers = workers_of(config, sms);
  const std::int64_t columns = tiles * chunks_of(p, config) * config.columns();
  const bool is_short = columns < config.short_columns * workers;
  if (p.m > (is_short ? config.max_m_if_short : config.max_m)) {
    return false;
  }
  if (p.batch_invariant && config.column_consumers > 1) {
    return false;
  }
  if (p.c_dtype == DType::fp32 && !config.takes_fp32()) {
    return false;
  }
  if (config.use == Nvfp4Use::any) {
    return true;
  }
  if (config.use == Nvfp4Use::one_round) {
    const bool has_full_tiles = p.m % config.tokens == 0 && are_full(tiles, workers);
    return tiles <= workers && (p.m <= config.tokens || has_full_tiles);
  }
  // Per token, tiles of half as many tokens take an eighth longer, but they may have less padding.
  const auto padded_to = [&](std::int64_t tokens) { return ceil_div(p.m, tokens) * tokens; };
  const std::int64_t padded = padded_to(config.tokens);
  const std::int64_t padded_by_halves = padded_to(config.tokens / 2);
  const bool are_many = 4 * tiles >= 3 * workers && 8 * padded <= 9 * padded_by_halves;
  return are_many && (config.use == Nvfp4Use::many_tiles || is_short || are_full(tiles, workers));
}

int best_config(const GemmNvfp4Problem& p, int sms) {
  int i = 0;
  while (!fits(kNvfp4Configs[i], p, sms)) {  // the last config takes every problem
    ++i;
  }
  return i;
}

// The number of tiles under stream-K. It is 0 where adding up parts costs more than a last round
// with idle workers. It is also 0 where tiles are large and the last round is nearly full: as
// measured, stream-K takes longer then, although it has fewer chunks one after the other. Otherwise
// a multiple of the workers is left to be computed whole, so that each worker has about one
// stream-K tile or more.
int stream_k_tiles_of(const Nvfp4Config& config, int tiles, int chunks, int workers) {
  const int rounds = ceil_div(tiles, workers);
  const int idle = rounds * workers - tiles;
  if (std::int64_t{idle} * chunks <= std::int64_t{config.reduction_chunks()} * workers ||
      (config.is_large() && are_full(tiles, workers))) {
    return 0;
  }
  return tiles < workers ? tiles : tiles % workers + workers;
}

}  // namespace

Nvfp4Plan plan_nvfp4(const GemmNvfp4Problem& p, int sms, std::optional<int> wanted) {
  const int index = wanted ? *wanted : best_config(p, sms);
  const Nvfp4Config& config = kNvfp4Configs[index];
  const int tiles = tiles_of(p, config);
  const int chunks = chunks_of(p, config);
  const int most_workers = workers_of(config, sms);
  const int stream_k_workers =
      std::max<int>(std::min(tiles, most_workers),
                    static_cast<int>(std::min<std::int64_t>(
                        most_workers, std::int64_t{tiles} * chunks / GemmSchedule::kLeastPart)));
  const int stream_k_tiles =
      p.batch_invariant ? 0 : stream_k_tiles_of(config, tiles, chunks, stream_k_workers);
  return {.config = index,
          .order = order_of(p, config),
          .tiles = tiles,
          .stream_k_tiles = stream_k_tiles,
          .chunks = chunks,
          .workers = stream_k_tiles > 0 ? stream_k_workers : std::min(tiles, most_workers)};
}

Nvfp4Workspace nvfp4_workspace(const GemmNvfp4Problem& p, const Nvfp4Plan& plan) {
  constexpr std::size_t kAlignment_bytes = 256;
  const Nvfp4Config& config = kNvfp4Configs[plan.config];
  Nvfp4Workspace workspace{};
  const auto place = [&](std::size_t bytes) {
    const std::size_t at = workspace.bytes;
    workspace.bytes += (bytes + kAlignment_bytes - 1) / kAlignment_bytes * kAlignment_bytes;
    return at;
  };
  const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
  const std::size_t slots = plan.stream_k_tiles > 0 ? size(plan.workers) * size(config.cluster) : 0;
  workspace.sums = place(slots * size(config.rows()) * size(config.tokens) * sizeof(float));
  workspace.flags = place(slots * sizeof(std::uint64_t));
  workspace.ticket = place(slots > 0 ? sizeof(std::uint64_t) : 0);
  workspace.activations = place(
      p.a_dtype == DType::e2m1x2 ? size(p.l) * size(p.m) * size(p.k) * size_bytes(DType::bf16) : 0);
  const auto [row_tiles, row_bytes] = packed_nvfp4_weight_shape(p.n, p.k);
  workspace.weight = place(p.b_is_packed ? 0 : size(p.l) * size(row_tiles) * size(row_bytes));
  return workspace;
}

}  // namespace tilewright::cuda
