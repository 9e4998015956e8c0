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
AttentionParams parts_of(const AttentionParams& p, const FlashWorkspace& at) {
  auto* const workspace = static_cast<char*>(p.workspace);
  const std::int64_t row_size = p.value_dim;
  AttentionParams parts = p;
  parts.sinks = nullptr;  // the sink counts once, in the merge
  parts.lse = nullptr;
  parts.o = workspace + at.o;
  parts.o_stride = {
      .batch = p.q_len * p.heads * row_size, .seq = p.heads * row_size, .head = row_size};
  parts.row_max = reinterpret_cast<float*>(workspace + at.row_max);
  parts.row_sum = reinterpret_cast<float*>(workspace + at.row_sum);
  const std::int64_t q_len = p.q_len;
  parts.row_max_stride = {.batch = p.heads * q_len, .seq = 1, .head = q_len};
  parts.row_sum_stride = parts.row_max_stride;
  return parts;
}

}  // namespace

void launch_flash(const AttentionParams& p, const Plan& planned, Stream stream) {
  const auto [plan, at] = planned.details<FlashDetails>();
  void* const ticket = plan.is_dynamic ? static_cast<char*>(p.workspace) + at.ticket : nullptr;
  const Launcher launch = kLaunchers[static_cast<std::size_t>(plan.config)];
  if (plan.splits == 1) {
    return launch(p, plan, ticket, stream);
  }
  const AttentionParams parts = parts_of(p, at);
  launch(parts, plan, ticket, stream);
  launch_flash_merge(p, parts, plan.splits, stream);
}

}  // namespace tilewright::cuda
