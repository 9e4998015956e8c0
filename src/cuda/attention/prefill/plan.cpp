#include "cuda/attention/prefill/plan.hpp"

#include <numeric>

#include "cuda/attention/blocks/flash_sections.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

constexpr std::size_t kTicket_bytes = 256;  // 8 are used

std::int64_t value_dim(const Problem& p) { return p.value_dim > 0 ? p.value_dim : p.head_dim; }

}  // namespace

std::optional<int> prefill_config(const Problem& p) {
  for (int i = 0; i < kPrefillConfigCount; ++i) {
    if (kPrefillConfigs[i].head_dim == p.head_dim && kPrefillConfigs[i].value_dim == value_dim(p)) {
      return i;
    }
  }
  return std::nullopt;
}

bool has_chunks(const Problem& p) {
  return p.q_len > kMostDecodeTokens && (!p.packed || p.batch_invariant || p.q_len > p.batch);
}

int largest_box(std::int64_t page_size, int bc) {
  return page_size > 0 ? static_cast<int>(std::gcd(page_size, std::int64_t{bc})) : bc;
}

PrefillDetails plan_prefill(const Problem& p, int config) {
  PrefillDetails details{};
  details.plan.config = config;
  details.plan.section = heads_of_section({.sequences = p.batch,
                                           .heads = p.heads,
                                           .kv_heads = p.kv_heads,
                                           .kv_len = p.capacity,
                                           .dims = p.head_dim + value_dim(p)});
  details.plan.box_rows = largest_box(p.page_size, kPrefillConfigs[config].bc);
  details.decode_at = kTicket_bytes;
  details.bytes = kTicket_bytes;
  return details;
}

PrefillDetails plan_chunks(const Problem& p, int sms) {
  PrefillDetails details = plan_prefill(p, prefill_config(p).value());
  if (p.packed) {
    details.plan.others_tokens = kMostDecodeTokens;
    details.decode = plan_decode(p, sms, best_decode_config(p, sms).value());
    details.decode.plan.most_tokens = kMostDecodeTokens;
    details.bytes += details.decode.at.bytes;
  }
  return details;
}

}  // namespace tilewright::cuda
