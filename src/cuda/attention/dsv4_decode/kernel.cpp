// The kernel dsv4_decode in the table of kernels.
#include <array>
#include <limits>
#include <utility>

#include "cuda/attention/dsv4_decode/launch.hpp"
#include "cuda/attention/dsv4_decode/plan.hpp"
#include "ops/dsv4_attention/kernels.hpp"
#include "ops/kernel_table.hpp"

namespace tilewright::cuda {
namespace {

using Row = Kernel<Dsv4Attention>;

constexpr std::array kFormats = {KvRowFormat::bf16, KvRowFormat::e4m3_bf16, KvRowFormat::e4m3,
                                 KvRowFormat::e2m1};
constexpr std::array kFeatures = {Dsv4Feature::range,        Dsv4Feature::list,
                                  Dsv4Feature::packed,       Dsv4Feature::fresh_rows,
                                  Dsv4Feature::sinks,        Dsv4Feature::unnormalized,
                                  Dsv4Feature::inverse_rope, Dsv4Feature::e4m3_output};

using Problem = Dsv4AttentionProblem;

Plan plan_in(const Problem& problem, const DeviceInfo& device, int config) {
  const Dsv4Details details = plan_dsv4_decode(problem, device.multiprocessors, config);
  Plan plan(details.at.bytes, details);
  plan.variant = config;
  return plan;
}

Plan plan_best(const Problem& problem, const DeviceInfo& device) {
  return plan_in(problem, device, best_dsv4_config(problem, device.multiprocessors));
}

template <int kConfig>
Plan plan_config(const Problem& problem, const DeviceInfo& device) {
  return plan_in(problem, device, kConfig);
}

std::optional<Reason> refuses(const Row& kernel, const Problem& problem, const DeviceInfo& device) {
  constexpr std::int64_t kMostBlocks = std::numeric_limits<int>::max() / dsv4::kSpreadBlocks;
  const Dsv4Plan planned = plan_dsv4_decode(problem, device.multiprocessors, 0).plan;
  if (planned.items > kMostBlocks / planned.most_parts) {
    return takes_reason(kernel.info, "q", "a batch with 2^28 or more parts", "fewer");
  }
  return std::nullopt;
}

// The variant for config kConfig.
template <int kConfig>
Row variant_in(Row decode) {
  decode.info.summary = "dsv4_decode in this config";
  decode.plan = plan_config<kConfig>;
  return decode;
}

template <int... kConfigs>
std::vector<Row> variants_of(const Row& decode, std::integer_sequence<int, kConfigs...>) {
  return finished_variants<Dsv4Attention>(decode.info.name, {variant_in<kConfigs>(decode)...});
}

}  // namespace

Row dsv4_decode_kernel() {
  Row decode{
      .info = {.name = "dsv4_decode",
               .summary = "pairs of key tiles merge in order, whichever blocks compute them",
               .device = DeviceKind::cuda,
               .architectures = {90},
               .dtypes = {DType::bf16},
               .alignment_bytes = 16,
               .doc = "docs/worklog/dsv4-decode.md"},
      .facts = {.window_formats = kFormats, .compressed_formats = kFormats, .features = kFeatures},
      .refuses = refuses,
      .plan = plan_best,
      .launch = built<launch_dsv4_decode>()};
  static const auto& variants =
      kept(variants_of(decode, std::make_integer_sequence<int, kDsv4Configs.size()>{}));
  decode.variants = variants;
  return decode;
}

}  // namespace tilewright::cuda
