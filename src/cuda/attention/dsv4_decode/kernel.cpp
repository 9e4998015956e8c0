// The kernel dsv4_decode in the table of kernels.
#include <array>
#include <limits>

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

Plan plan(const Dsv4AttentionProblem& problem, const DeviceInfo& device) {
  const Dsv4Details details = plan_dsv4_decode(problem, device.multiprocessors);
  return Plan(details.at.bytes, details);
}

std::optional<Reason> refuses(const Row& kernel, const Dsv4AttentionProblem& problem,
                              const DeviceInfo& device) {
  constexpr std::int64_t kMostUnits = std::numeric_limits<int>::max();
  const Dsv4Plan planned = plan_dsv4_decode(problem, device.multiprocessors).plan;
  if (planned.items > kMostUnits / planned.most_parts) {
    return takes_reason(kernel.info, "q", "a batch with 2^31 or more parts", "fewer");
  }
  return std::nullopt;
}

}  // namespace

Row dsv4_decode_kernel() {
  return {
      .info = {.name = "dsv4_decode",
               .summary = "rows are widened once, two consumers share keys and columns",
               .device = DeviceKind::cuda,
               .architectures = {90},
               .dtypes = {DType::bf16},
               .alignment_bytes = 16,
               .doc = "docs/worklog/dsv4-decode.md"},
      .facts = {.window_formats = kFormats, .compressed_formats = kFormats, .features = kFeatures},
      .refuses = refuses,
      .plan = plan,
      .launch = built<launch_dsv4_decode>()};
}

}  // namespace tilewright::cuda
