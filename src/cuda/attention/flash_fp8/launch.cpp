#include "cuda/attention/flash_fp8/launch.hpp"

#include <array>
#include <utility>

#include "cuda/attention/blocks/split_params.hpp"
#include "cuda/attention/flash/launch.hpp"
#include "cuda/attention/flash_fp8/configs.hpp"

namespace tilewright::cuda {
namespace {

using Launcher = void (*)(const AttentionFp8Params&, const FlashPlan&, void*, Stream);

template <int... kIndices>
constexpr std::array<Launcher, sizeof...(kIndices)> launchers(
    std::integer_sequence<int, kIndices...>) {
  return {launch_fp8_config<kIndices>...};
}

constexpr auto kLaunchers = launchers(std::make_integer_sequence<int, kFp8ConfigCount>{});

}  // namespace

void launch_flash_fp8(const AttentionFp8Params& p, const Plan& planned, Stream stream) {
  const auto [plan, at] = planned.details<FlashDetails>();
  void* const ticket = plan.is_dynamic ? static_cast<char*>(p.workspace) + at.ticket : nullptr;
  const Launcher launch = kLaunchers[static_cast<std::size_t>(plan.config)];
  if (plan.splits == 1) {
    return launch(p, plan, ticket, stream);
  }
  const AttentionFp8Params splits =
      splits_of(p, {.row_max = at.row_max, .row_sum = at.row_sum, .o = at.o});
  launch(splits, plan, ticket, stream);
  launch_flash_merge(p, splits, plan.splits, stream);
}

}  // namespace tilewright::cuda
