#include "cuda/attention/prefill/plan.hpp"

#include <algorithm>
#include <numeric>

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/flash_sections.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

constexpr std::int64_t kTmaAlignment_bytes = 128;  // of what TMA writes to

std::int64_t value_dim(const Problem& p) { return p.value_dim > 0 ? p.value_dim : p.head_dim; }

// Several packed sequences: no host knows how many new tokens, and tiles, each has.
bool are_several_packed(const Problem& p) { return p.packed && p.batch > 1; }

// Keys are split if SMs would idle otherwise: not under a window, whose keys are few, and not of
// several packed sequences. The number of splits depends on the batch, so that a batch-invariant
// problem has none.
int splits_of_keys(const Problem& p, int sms, int br) {
  constexpr std::int64_t kMaxSplits = 32;
  const std::int64_t tiles = p.batch * p.heads * ceil_div(p.q_len, std::int64_t{br});
  const std::int64_t pieces = p.capacity / kMinPrefillSplit;
  if (are_several_packed(p) || p.window || p.batch_invariant || 2 * tiles > sms || pieces < 2) {
    return 1;
  }
  return static_cast<int>(std::min({sms / tiles, pieces, kMaxSplits}));
}

// The config in which decode runs the packed sequences that are left to it. Where there may be
// chunks the average number of tokens says nothing of them, as chunks raise it: they have one, or a
// few that were drafted.
int config_of_few_tokens(const Problem& p, int sms) {
  constexpr std::int64_t kDraftedTokens = 4;
  Problem few = p;
  if (p.packed && may_have_chunks(p)) {
    few.q_len = std::min(p.q_len, p.batch * kDraftedTokens);
  }
  return best_decode_config(few, sms).value();
}

}  // namespace

std::optional<int> prefill_config(const Problem& p) {
  for (int i = 0; i < kPrefillConfigCount; ++i) {
    if (kPrefillConfigs[i].head_dim == p.head_dim && kPrefillConfigs[i].value_dim == value_dim(p)) {
      return i;
    }
  }
  return std::nullopt;
}

const PrefillConfig& prefill_tiles(const Problem& p, int config) {
  return p.cache_dtype == DType::e4m3 ? kPrefillE4m3Configs[config] : kPrefillConfigs[config];
}

std::int64_t prefill_page_rows(const Problem& p) {
  // A box's rows lie in SMEM without gaps. They are as wide as the swizzle, or whole rows of E4M3.
  const std::int64_t swizzled_bytes = p.head_dim % 64 == 0 ? 128 : 64;
  const bool is_e4m3 = p.cache_dtype == DType::e4m3;
  const std::int64_t row_bytes = is_e4m3 ? std::gcd(p.head_dim, value_dim(p)) : swizzled_bytes;
  return kTmaAlignment_bytes / std::gcd(row_bytes, kTmaAlignment_bytes);
}

bool prefill_loads(const Problem& p) { return p.page_size % prefill_page_rows(p) == 0; }

int most_decode_tokens(const Problem& p) {
  const int config = prefill_config(p).value_or(0);
  const int tokens = kMostDecodeTokens[config];
  if (!are_several_packed(p) || p.batch_invariant) {
    return tokens;
  }
  // Tiles, if each sequence has one for each head. Half as many take twice as long as they could.
  const std::int64_t tiles = std::max<std::int64_t>(p.batch * p.heads, 1);
  const std::int64_t most = kPrefillConfigs[config].br();
  return static_cast<int>(std::clamp(tokens * kFullTiles / tiles, std::int64_t{tokens}, most));
}

bool may_have_chunks(const Problem& p) { return p.q_len > most_decode_tokens(p); }

bool may_have_few_tokens(const Problem& p) {
  const bool has_any_tokens = p.batch_invariant ? p.packed : are_several_packed(p);
  return has_any_tokens || p.q_len <= most_decode_tokens(p);
}

int largest_box(std::int64_t page_size, int bc) {
  return page_size > 0 ? static_cast<int>(std::gcd(page_size, std::int64_t{bc})) : bc;
}

PrefillSplits prefill_splits(std::int64_t rows, int splits, std::int64_t value_dim) {
  constexpr std::size_t kAlignment = 256;
  const std::size_t all = static_cast<std::size_t>(rows) * static_cast<std::size_t>(splits);
  const std::size_t statistic = ceil_div(sizeof(float) * all, kAlignment) * kAlignment;
  PrefillSplits places{};
  places.at.row_max = kPrefillDecodeAt;
  places.at.row_sum = places.at.row_max + statistic;
  places.at.o = places.at.row_sum + statistic;
  places.end = places.at.o + sizeof(float) * all * static_cast<std::size_t>(value_dim);
  return places;
}

PrefillDetails plan_prefill(const Problem& p, int sms, int config) {
  PrefillDetails details{};
  details.plan.config = config;
  details.plan.section = heads_of_section({.sequences = p.batch,
                                           .heads = p.heads,
                                           .kv_heads = p.kv_heads,
                                           .kv_len = p.capacity,
                                           .dims = p.head_dim + value_dim(p)});
  details.plan.sequences = static_cast<int>(p.batch);
  details.plan.box_rows = largest_box(p.page_size, prefill_tiles(p, config).bc);
  // As many as over a cache of 16 bits, so that the bits are the same, too.
  details.plan.splits = splits_of_keys(p, sms, kPrefillConfigs[config].br());
  details.bytes = kPrefillDecodeAt;
  if (details.plan.splits > 1) {
    details.bytes =
        prefill_splits(p.batch * p.heads * p.q_len, details.plan.splits, value_dim(p)).end;
  }
  return details;
}

PrefillDetails plan_chunks(const Problem& p, int sms) {
  PrefillDetails details = plan_prefill(p, sms, prefill_config(p).value());
  if (may_have_few_tokens(p)) {
    details.plan.others_tokens = most_decode_tokens(p);
    details.decode = plan_decode(p, sms, config_of_few_tokens(p, sms));
    details.decode.plan.most_tokens = details.plan.others_tokens;
    details.plan.joins = p.packed && may_have_chunks(p);
    details.decode.plan.next_may_join = details.plan.joins;
    details.bytes = kPrefillDecodeAt + details.decode.at.bytes;
    details.plan.splits = 1;
  }
  return details;
}

}  // namespace tilewright::cuda
