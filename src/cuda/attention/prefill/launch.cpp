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

}  // namespace

void launch_prefill(const AttentionWithKvCacheParams& p, const Plan& planned, Stream stream) {
  const auto details = planned.details<PrefillDetails>();
  if (p.added.k != nullptr) {
    launch_append_kv(new_rows_of(p), stream);
  }
  if (details.plan.others_tokens > 0) {
    AttentionWithKvCacheParams others = p;
    others.workspace = static_cast<char*>(p.workspace) + kPrefillDecodeAt;
    launch_decode_rows(others, details.decode, stream);
  }
  const Launcher launch = kLaunchers[static_cast<std::size_t>(details.plan.config)];
  const int count = details.plan.splits;
  if (count == 1) {
    return launch(p, details.plan, stream);
  }
  const std::int64_t rows = std::int64_t{p.batch} * p.heads * p.q_len;
  const AttentionWithKvCacheParams splits =
      splits_of(p, prefill_splits(rows, count, p.value_dim).at);
  launch(splits, details.plan, stream);
  launch_prefill_merge(p, splits, count, stream);
}

}  // namespace tilewright::cuda
