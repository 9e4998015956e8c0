#include "cuda/attention/decode/launch.hpp"

#include <array>
#include <utility>

#include "cuda/attention/shared_prefix/launch.hpp"
#include "ops/append_kv/kernels.hpp"
#include "ops/attention_with_kvcache/kernels.hpp"

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
  if (p.added.k != nullptr) {
    launch_append_kv(new_rows_of(p), stream);
  }
  if (p.prefixes.groups != nullptr) {
    launch_shared_prefix(p, planned.details<SharedPrefixDetails>(), stream);
  } else {
    launch_decode_rows(p, planned.details<DecodeDetails>(), stream);
  }
}

void launch_decode_rows(const AttentionWithKvCacheParams& p, const DecodeDetails& details,
                        Stream stream) {
  kLaunchers[static_cast<std::size_t>(details.plan.config)](p, details, stream);
}

}  // namespace tilewright::cuda
