#include "cuda/attention/flash/launch.hpp"

#include <array>
#include <utility>

namespace tilewright::cuda {
namespace {

using Launcher = void (*)(const AttentionParams&, const FlashPlan&, void*, Stream);

template <int... kIndices>
constexpr std::array<Launcher, sizeof...(kIndices)> launchers(
    std::integer_sequence<int, kIndices...>) {
  return {launch_flash_config<kIndices>...};
}

constexpr auto kLaunchers = launchers(std::make_integer_sequence<int, kFlashConfigCount>{});

// `p` with its outputs in the workspace, where each split counts as a batch of its own.
AttentionParams splits_of(const AttentionParams& p, const FlashWorkspace& at) {
  auto* const workspace = static_cast<char*>(p.workspace);
  const std::int64_t row_size = p.value_dim;
  AttentionParams splits = p;
  splits.sinks = {};  // the sink counts once, in the merge
  splits.lse = nullptr;
  splits.o = workspace + at.o;
  splits.o_stride = {
      .batch = p.q_len * p.heads * row_size, .seq = p.heads * row_size, .head = row_size};
  splits.statistics.max = reinterpret_cast<float*>(workspace + at.row_max);
  splits.statistics.sum = reinterpret_cast<float*>(workspace + at.row_sum);
  const std::int64_t q_len = p.q_len;
  splits.statistics.max_stride = {.batch = p.heads * q_len, .seq = 1, .head = q_len};
  splits.statistics.sum_stride = splits.statistics.max_stride;
  return splits;
}

}  // namespace

void launch_flash(const AttentionParams& p, const Plan& planned, Stream stream) {
  const auto [plan, at] = planned.details<FlashDetails>();
  void* const ticket = plan.is_dynamic ? static_cast<char*>(p.workspace) + at.ticket : nullptr;
  const Launcher launch = kLaunchers[static_cast<std::size_t>(plan.config)];
  if (plan.splits == 1) {
    return launch(p, plan, ticket, stream);
  }
  const AttentionParams splits = splits_of(p, at);
  launch(splits, plan, ticket, stream);
  launch_flash_merge(p, splits, plan.splits, stream);
}

}  // namespace tilewright::cuda
