#include "cuda/attention/flash/plan.hpp"

#include <algorithm>
#include <cstdint>

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/flash_sections.hpp"

namespace tilewright::cuda {
namespace {

constexpr std::int64_t kShortMask_len = 1024;
constexpr std::int64_t kMinSplit_len = 1024;

bool has_mask(const AttentionProblem& p) { return p.causal || p.window; }

std::int64_t value_dim(const AttentionProblem& p) {
  return p.value_dim == 0 ? p.head_dim : p.value_dim;
}

// The number of query tiles; for packed queries, the most that there can be.
std::int64_t row_tiles(const AttentionProblem& p, int br) {
  return p.packed_queries ? ceil_div(p.q_len, br) + p.batch : p.batch * ceil_div(p.q_len, br);
}

// Would tiles of one consumer less finish the problem's rows sooner, as fewer SMs idle in the last
// round? Per row these tiles take longer, by a factor of kGainOfLarger.
bool idles_more(const FlashConfig& config, const AttentionProblem& p, int sms) {
  constexpr double kGainOfLarger = 1.2;
  const auto rows_in_rounds = [&](int br) {
    return static_cast<double>(ceil_div(row_tiles(p, br) * p.heads, std::max(sms, 1)) * br);
  };
  const int br = config.br();
  return !p.batch_invariant && kGainOfLarger * rows_in_rounds(br - 64) < rows_in_rounds(br);
}

// Are there as many keys as the config asks for? A packed problem counts those of the whole batch.
// A batch-invariant call must not depend on that number, so that it counts as enough.
bool has_enough_keys(const FlashConfig& config, const AttentionProblem& p) {
  return p.kv_len >= config.min_len || (p.packed && p.batch_invariant);
}

// Does the config lack the faster soft cap of small scores? Its kernel has no registers for that.
bool caps_slowly(const FlashConfig& config, const AttentionProblem& p) {
  return p.softcap && config.cluster > 1;
}

// Do so few tiles leave SMs idle that the keys may be split?
bool would_idle(std::int64_t tiles, int sms) { return 2 * tiles <= sms; }

// Have all tiles about the same number of keys, because few or none are masked?
bool are_even(const AttentionProblem& p) {
  return !p.window && (!p.causal || p.kv_len >= 2 * p.q_len);
}

// Tiles of 64 rows finish sooner where those of 128, which are more efficient, are too few for all
// SMs; but not where there are more than 64 rows, and so many keys that splits of these fill the
// SMs with tiles of 128.
bool gains_by_few(const AttentionProblem& p, int sms) {
  const std::int64_t tiles = row_tiles(p, 128) * p.heads;
  const bool are_few = are_even(p) ? would_idle(tiles, sms) : tiles <= sms;
  const bool splits_fill = are_even(p) && p.q_len > 64 && p.kv_len / kMinSplit_len >= sms / tiles;
  return are_few && !splits_fill;
}

// Does the problem ask for nothing beyond a causal mask? It may not be split later.
bool is_plain(const AttentionProblem& p) {
  return !p.window && !p.softcap && !p.sinks && !p.packed && !p.unnormalized && !p.batch_invariant;
}

bool fits(const FlashConfig& config, const AttentionProblem& p, int sms) {
  if (config.head_dim != p.head_dim || config.value_dim != value_dim(p) || !config.takes(p.dtype) ||
      !can_share_keys(config, p) || !has_enough_keys(config, p) || caps_slowly(config, p)) {
    return false;
  }
  const auto gains_by_larger = [&] {
    return p.packed || !((has_mask(p) && p.kv_len <= kShortMask_len) || idles_more(config, p, sms));
  };
  switch (config.use) {
    case FlashUse::any:
      return true;
    case FlashUse::few_tiles:
      return !p.packed && !p.batch_invariant && gains_by_few(p, sms);
    case FlashUse::larger:
      return gains_by_larger();
    case FlashUse::larger_plain:
      return is_plain(p) && !would_idle(row_tiles(p, config.br()) * p.heads, sms) &&
             gains_by_larger();
  }
  return false;
}

}  // namespace

bool can_share_keys(const FlashConfig& config, const AttentionProblem& p) {
  return config.cluster == 1 ||
         (!has_mask(p) && !p.packed && ceil_div(p.q_len, config.br()) % config.cluster == 0);
}

std::optional<int> best_config(std::span<const FlashConfig> configs, const AttentionProblem& p,
                               int sms) {
  for (std::size_t i = configs.size(); i-- > 0;) {
    if (fits(configs[i], p, sms)) {
      return static_cast<int>(i);
    }
  }
  return std::nullopt;
}

FlashPlan plan_flash(const AttentionProblem& p, int sms, std::optional<int> config) {
  const int index = config ? *config : best_config(kFlashConfigs, p, sms).value();
  FlashPlan plan = plan_in_config(p, sms, kFlashConfigs[index], p.head_dim + value_dim(p));
  plan.config = index;
  return plan;
}

FlashPlan plan_in_config(const AttentionProblem& p, int sms, const FlashConfig& c,
                         std::int64_t dims) {
  FlashPlan plan{};
  plan.is_dynamic = has_mask(p) || p.packed;
  plan.section = plan.is_dynamic ? heads_of_section({.sequences = p.batch,
                                                     .heads = p.heads,
                                                     .kv_heads = p.kv_heads,
                                                     .kv_len = p.kv_len,
                                                     .dims = dims})
                                 : 1;

  // Keys are split if SMs would idle otherwise. A batch-invariant call counts the tiles of one
  // sequence alone.
  constexpr std::int64_t kMaxSplits = 32;
  const std::int64_t tiles = row_tiles(p, c.br()) * p.heads / (p.batch_invariant ? p.batch : 1);
  plan.splits = 1;
  plan.split_len = static_cast<int>(p.kv_len);
  // Used lengths are known on the GPU alone; here only the batch's upper bound is.
  const bool knows_keys = !p.packed || (!p.packed_queries && !p.packed_keys && !p.batch_invariant);
  const bool may_split = c.cluster == 1 && c.use != FlashUse::larger_plain;
  if (knows_keys && !p.window && may_split && would_idle(tiles, sms) &&
      p.kv_len >= 2 * kMinSplit_len) {
    const std::int64_t wanted = std::min(sms / tiles, kMaxSplits);
    const std::int64_t length = std::max(ceil_div(p.kv_len, wanted), kMinSplit_len);
    plan.split_len = static_cast<int>(ceil_div(length, c.bc) * c.bc);
    plan.splits = static_cast<int>(ceil_div(p.kv_len, plan.split_len));
  }
  return plan;
}

FlashWorkspace flash_workspace(const AttentionProblem& p, const FlashPlan& plan) {
  constexpr std::size_t kAlignment = 256;
  FlashWorkspace workspace{};
  const auto place = [&](std::size_t bytes) {
    const std::size_t at = workspace.bytes;
    workspace.bytes += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  workspace.ticket = place(plan.is_dynamic ? sizeof(std::uint64_t) : 0);
  const bool is_split = plan.splits > 1;
  const std::size_t rows = is_split ? static_cast<std::size_t>(plan.splits) *
                                          static_cast<std::size_t>(p.batch * p.heads * p.q_len)
                                    : 0;
  workspace.row_max = place(sizeof(float) * rows);
  workspace.row_sum = place(sizeof(float) * rows);
  workspace.o = place(sizeof(float) * rows * static_cast<std::size_t>(value_dim(p)));
  return workspace;
}

}  // namespace tilewright::cuda
