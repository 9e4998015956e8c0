#include "cuda/attention/shared_prefix/launch.hpp"

#include "cuda/attention/decode/launch.hpp"
#include "cuda/attention/prefill/launch.hpp"

namespace tilewright::cuda {
namespace {

void launch_pass(const AttentionWithKvCacheParams& pass, const DecodePlan& plan, Stream stream) {
  launch_decode_rows(pass, {.plan = plan, .at = decode_workspace(plan, pass.value_dim)}, stream);
}

void launch_pass(const AttentionWithKvCacheParams& pass, const PrefillPlan& plan, Stream stream) {
  launch_prefill_tiles(pass, plan, stream);
}

}  // namespace

void launch_shared_prefix(const AttentionWithKvCacheParams& p, const SharedPrefixDetails& details,
                          Stream stream) {
  const int splits = prefix_splits(details);
  const SharedPrefixCalls calls = calls_of(p, details.at, splits);
  launch_split_keys(p, calls.lengths, calls.prefix_q, stream);
  launch_pass(calls.suffix, details.suffix, stream);
  std::visit([&](const auto& plan) { launch_pass(calls.prefix, plan, stream); }, details.prefix);
  launch_merge_passes(calls, splits, stream);
}

}  // namespace tilewright::cuda
