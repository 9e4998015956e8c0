#include "cuda/attention/prefill/launch.hpp"

#include <array>
#include <utility>

#include "cuda/attention/decode/launch.hpp"
#include "ops/append_kv/kernels.hpp"
#include "ops/attention_with_kvcache/kernels.hpp"

namespace tilewright::cuda {
namespace {

using Launcher = void (*)(const AttentionWithKvCacheParams&, const PrefillPlan&, Stream);

template <int... kIndices>
constexpr std::array<Launcher, sizeof...(kIndices)> launchers(
    std::integer_sequence<int, kIndices...>) {
  return {launch_prefill_config<kIndices>...};
}

constexpr auto kLaunchers = launchers(std::make_integer_sequence<int, kPrefillConfigCount>{});

// Queues the kernel and, if the keys are split, the merge.
void launch_chunks(const AttentionWithKvCacheParams& p, const PrefillDetails& details,
                   Stream stream) {
  if (details.plan.splits == 1) {
    return launch_prefill_tiles(p, details.plan, stream);
  }
  const AttentionWithKvCacheParams splits = splits_of(p, details.splits);
  launch_prefill_tiles(splits, details.plan, stream);
  launch_prefill_merge(p, splits, details.plan, stream);
}

}  // namespace

void launch_prefill_tiles(const AttentionWithKvCacheParams& p, const PrefillPlan& plan,
                          Stream stream) {
  kLaunchers[static_cast<std::size_t>(plan.config)](p, plan, stream);
}

void launch_prefill(const AttentionWithKvCacheParams& p, const Plan& planned, Stream stream) {
  const auto details = planned.details<PrefillDetails>();
  const bool is_packed = p.packed_q.cu_seqlens != nullptr;
  const int others_tokens = details.plan.others_tokens;
  if (p.added.k != nullptr) {
    launch_append_kv(new_rows_of(p), stream);
  }
  if (others_tokens > 0 && (is_packed || p.q_len <= others_tokens)) {
    AttentionWithKvCacheParams others = p;
    others.workspace = static_cast<char*>(p.workspace) + kPrefillDecodeAt;
    launch_decode_rows(others, details.decode, stream);
  }
  if (p.q_len > others_tokens) {
    launch_chunks(p, details, stream);
  }
}

}  // namespace tilewright::cuda
