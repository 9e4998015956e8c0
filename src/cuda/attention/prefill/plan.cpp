#include "cuda/attention/prefill/plan.hpp"

#include <algorithm>
#include <numeric>

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/expected_lengths.hpp"
#include "cuda/attention/blocks/flash_sections.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

constexpr std::int64_t kTmaAlignment_bytes = 128;  // of what TMA writes to

std::int64_t value_dim(const Problem& p) { return p.value_dim > 0 ? p.value_dim : p.head_dim; }

// Several packed sequences: no host knows how many new tokens each has.
bool are_several_packed(const Problem& p) { return p.packed && p.batch > 1; }

// The fewest new tokens of a sequence, as far as the host knows: each other one may have the most.
std::int64_t shortest_q_len(const Problem& p) {
  const std::int64_t longest = longest_q_len(p);
  return std::min(longest, p.q_len - (p.packed ? p.batch - 1 : 0) * longest);
}

// The tiles of sequences with more than `others_tokens` new tokens, as far as the host knows. The
// last tile of each packed one is taken to be half full.
std::int64_t expected_prefill_tiles(const Problem& p, std::int64_t br, int others_tokens) {
  const std::int64_t of_sequence = ceil_div(longest_q_len(p), br);
  if (!are_several_packed(p)) {
    return p.heads * p.batch * of_sequence;
  }
  const std::int64_t sequences =
      std::clamp(p.q_len / (others_tokens + 1), std::int64_t{1}, p.batch);
  return p.heads * std::min(sequences * of_sequence, ceil_div(p.q_len + sequences * br / 2, br));
}

// Keys are split if SMs would idle otherwise, but not under a window, whose keys are few. The
// number of splits depends on the batch, so that a batch-invariant problem has none.
int splits_of_keys(const Problem& p, int sms, int br, int others_tokens) {
  constexpr std::int64_t kMaxSplits = 32;
  const std::int64_t tiles = expected_prefill_tiles(p, br, others_tokens);
  const std::int64_t pieces = longest_kv_len(p) / kMinPrefillSplit;
  if (p.window || p.batch_invariant || 2 * tiles > sms || pieces < 2) {
    return 1;
  }
  return static_cast<int>(std::min({sms / tiles, pieces, kMaxSplits}));
}

// Gives the plan splits, which leave their results behind all else in the workspace.
void split_keys(PrefillDetails& details, const Problem& p, int sms) {
  PrefillPlan& plan = details.plan;
  // As many as over a cache of 16 bits, so that the bits are the same, too.
  plan.splits = splits_of_keys(p, sms, kPrefillConfigs[plan.config].br(), plan.others_tokens);
  if (plan.splits == 1) {
    return;
  }
  constexpr std::size_t kAlignment = 256;
  const auto place = [&](std::int64_t columns) {
    const std::int64_t tokens = p.packed ? p.q_len : p.batch * p.q_len;
    const auto floats = static_cast<std::size_t>(tokens * p.heads * plan.splits * columns);
    const std::size_t start = details.bytes;
    details.bytes += ceil_div(sizeof(float) * floats, kAlignment) * kAlignment;
    return start;
  };
  details.splits.row_max = place(1);
  details.splits.row_sum = place(1);
  details.splits.o = place(value_dim(p));
}

// The new tokens of a sequence beside chunks: one, or a few that were drafted. The average number
// says nothing of them, as chunks raise it. Where the host knows the longest sequence, as many as
// can be are taken to be as long, with one token at least left for each other.
std::int64_t tokens_beside_chunks(const Problem& p) {
  constexpr std::int64_t kDraftedTokens = 4;
  if (p.max_seqlen_q == 0) {
    return kDraftedTokens;
  }
  const std::int64_t longest = longest_q_len(p);
  const std::int64_t chunks = (p.q_len - p.batch) / (longest - 1);
  const std::int64_t others = std::max<std::int64_t>(p.batch - chunks, 1);
  return std::clamp(ceil_div(p.q_len - chunks * longest, others), std::int64_t{1}, kDraftedTokens);
}

// The config in which decode runs the packed sequences that are left to it.
int config_of_few_tokens(const Problem& p, int sms) {
  Problem few = p;
  if (p.packed && may_have_chunks(p)) {
    few.q_len = std::min(p.q_len, p.batch * tokens_beside_chunks(p));
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

// TMA is slower than copies if boxes have fewer than four keys, and with one consumer if they have
// one, as timed with D = 128 and 256.
bool copies_rows(const Problem& p) {
  const PrefillConfig& config = kPrefillConfigs[prefill_config(p).value_or(0)];
  const int least_box = copying_rows(config).consumers > 1 ? 4 : 2;
  return p.cache_dtype != DType::e4m3 && largest_box(p.page_size, config.bc) < least_box;
}

bool prefill_loads(const Problem& p) {
  return copies_rows(p) || p.page_size % prefill_page_rows(p) == 0;
}

int most_decode_tokens(const Problem& p) {
  return kMostDecodeTokens[prefill_config(p).value_or(0)];
}

bool may_have_chunks(const Problem& p) { return longest_q_len(p) > most_decode_tokens(p); }

bool may_have_few_tokens(const Problem& p) {
  const bool goes_by_itself = p.packed && p.batch_invariant;
  return goes_by_itself || shortest_q_len(p) <= most_decode_tokens(p);
}

int largest_box(std::int64_t page_size, int bc) {
  return page_size > 0 ? static_cast<int>(std::gcd(page_size, std::int64_t{bc})) : bc;
}

namespace {

// The plan for all sequences, whose keys are not split.
PrefillDetails plan_unsplit(const Problem& p, int config) {
  PrefillDetails details{};
  details.plan.config = config;
  details.plan.section = heads_of_section({.sequences = p.batch,
                                           .heads = p.heads,
                                           .kv_heads = p.kv_heads,
                                           .kv_len = longest_kv_len(p),
                                           .dims = p.head_dim + value_dim(p)});
  details.plan.sequences = static_cast<int>(p.batch);
  details.plan.copies_rows = copies_rows(p);
  details.plan.box_rows =
      details.plan.copies_rows ? 1 : largest_box(p.page_size, prefill_tiles(p, config).bc);
  details.plan.splits = 1;
  details.bytes = kPrefillDecodeAt;
  return details;
}

}  // namespace

PrefillDetails plan_prefill(const Problem& p, int sms, int config) {
  PrefillDetails details = plan_unsplit(p, config);
  split_keys(details, p, sms);
  return details;
}

PrefillDetails plan_chunks(const Problem& p, int sms) {
  PrefillDetails details = plan_unsplit(p, prefill_config(p).value());
  if (may_have_few_tokens(p)) {
    const bool are_all = !may_have_chunks(p);  // even one that has more than expected
    details.plan.others_tokens = are_all ? static_cast<int>(p.q_len) : most_decode_tokens(p);
    details.decode = plan_decode(p, sms, config_of_few_tokens(p, sms));
    details.decode.plan.most_tokens = details.plan.others_tokens;
    details.plan.joins = !are_all;
    details.decode.plan.next_may_join = details.plan.joins;
    details.bytes += details.decode.at.bytes;
  }
  if (may_have_chunks(p)) {
    split_keys(details, p, sms);
  }
  return details;
}

}  // namespace tilewright::cuda
