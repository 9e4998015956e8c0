#include "cuda/attention/decode/launch.hpp"

#include <array>
#include <utility>

namespace tilewright::cuda {
namespace {

using Launcher = void (*)(const AttentionWithKvCacheParams&, const DecodeDetails&, Stream);

template <int... kIndices>
constexpr std::array<Launcher, sizeof...(kIndices)> launchers(
    std::integer_sequence<int, kIndices...>) {
  return {launch_decode_config<kIndices>...};
}

constexpr auto kLaunchers = launchers(std::make_integer_sequence<int, kDecodeConfigCount>{});

}  // namespace

void launch_decode(const AttentionWithKvCacheParams& p, const Plan& planned, Stream stream) {
  const auto details = planned.details<DecodeDetails>();
  kLaunchers[static_cast<std::size_t>(details.plan.config)](p, details, stream);
}

}  // namespace tilewright::cuda
