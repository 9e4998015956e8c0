#include "cuda/attention/dsv4_decode/launch.hpp"

#include <array>
#include <utility>

namespace tilewright::cuda {
namespace {

using Launcher = void (*)(const Dsv4AttentionParams&, const Dsv4Details&, Stream);

template <int... kFormats>
constexpr std::array<Launcher, sizeof...(kFormats)> launchers(
    std::integer_sequence<int, kFormats...>) {
  return {launch_dsv4_formats<kFormats>...};
}

constexpr auto kLaunchers = launchers(std::make_integer_sequence<int, kDsv4FormatsCount>{});

Dsv4Formats formats_of(const Dsv4AttentionParams& p) {
  Dsv4Formats formats{};
  for (const Dsv4ScopeParams* const scope : {&p.window, &p.compressed}) {
    if (scope->rows != nullptr) {
      formats.takes[static_cast<int>(scope->format)] = 1;
    }
  }
  if (p.fresh.rows != nullptr) {
    formats.takes[static_cast<int>(KvRowFormat::bf16)] = 1;
  }
  return formats;
}

}  // namespace

void launch_dsv4_decode(const Dsv4AttentionParams& p, const Plan& planned, Stream stream) {
  const auto set = static_cast<std::size_t>(first_set_with(formats_of(p)));
  const auto& details = planned.details<Dsv4Details>();
  kLaunchers[set](p, details, stream);
  if (details.plan.merges()) {
    launch_dsv4_merge(p, details, stream);
  }
}

}  // namespace tilewright::cuda
