#include "cuda/attention/flash/launch.hpp"

#include <array>
#include <optional>
#include <utility>

#include "cuda/attention/launchers.hpp"

namespace tilewright::cuda {
namespace {

using Launcher = void (*)(const AttentionParams&, const FlashPlan&, void*, Stream);

template <int... kIndices>
constexpr std::array<Launcher, sizeof...(kIndices)> launchers(
    std::integer_sequence<int, kIndices...>) {
  return {launch_flash_choice<kIndices>...};
}

constexpr auto kLaunchers = launchers(std::make_integer_sequence<int, kFlashChoiceCount>{});

AttentionProblem problem_of(const AttentionParams& p) {
  return {.dtype = p.dtype,
          .batch = p.batch,
          .q_len = p.q_len,
          .kv_len = p.kv_len,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .value_dim = p.value_dim,
          .causal = p.causal,
          .window = p.window_left != kNoLimit || p.window_right != kNoLimit,
          .softcap = p.softcap > 0.0f,
          .sinks = p.sinks != nullptr,
          .packed = p.cu_seqlens_q || p.cu_seqlens_k || p.seqused_k,
          .packed_queries = p.cu_seqlens_q != nullptr,
          .packed_keys = p.cu_seqlens_k != nullptr,
          .unnormalized = p.row_max != nullptr,
          .batch_invariant = p.batch_invariant};
}

// `p` with its outputs in the workspace: parts of the keys lie there as batches of their own.
AttentionParams parts_of(const AttentionParams& p, const FlashWorkspace& at) {
  auto* const workspace = static_cast<char*>(p.workspace);
  const std::int64_t row_size = p.value_dim;
  AttentionParams parts = p;
  parts.sinks = nullptr;  // it counts once, in the merge
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

void plan_and_launch(const AttentionParams& p, std::optional<int> row, Stream stream) {
  const AttentionProblem problem = problem_of(p);
  const FlashPlan plan = plan_flash(problem, p.multiprocessors, row);
  const FlashWorkspace at = flash_workspace(problem, plan);
  void* const ticket = plan.is_dynamic ? static_cast<char*>(p.workspace) + at.ticket : nullptr;
  const Launcher launch = kLaunchers[static_cast<std::size_t>(plan.choice)];
  if (plan.splits == 1) {
    return launch(p, plan, ticket, stream);
  }
  const AttentionParams parts = parts_of(p, at);
  launch(parts, plan, ticket, stream);
  launch_flash_merge(p, parts, plan.splits, stream);
}

}  // namespace

void launch_flash(const AttentionParams& p, Stream stream) {
  plan_and_launch(p, std::nullopt, stream);
}

void launch_flash_row(int row, const AttentionParams& p, Stream stream) {
  plan_and_launch(p, row, stream);
}

}  // namespace tilewright::cuda
