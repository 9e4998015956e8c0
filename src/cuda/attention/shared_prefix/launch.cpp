#include "cuda/attention/shared_prefix/launch.hpp"

#include "cuda/attention/decode/launch.hpp"

namespace tilewright::cuda {

void launch_shared_prefix(const AttentionWithKvCacheParams& p, const SharedPrefixDetails& details,
                          Stream stream) {
  const SharedPrefixCalls calls = calls_of(p, details.at);
  launch_split_keys(p, calls.lengths, calls.packed_q, stream);
  const auto launch_pass = [&](const AttentionWithKvCacheParams& pass, const DecodePlan& plan) {
    launch_decode_rows(pass, {.plan = plan, .at = decode_workspace(plan, p.value_dim)}, stream);
  };
  launch_pass(calls.prefix, details.prefix);
  launch_pass(calls.suffix, details.suffix);
  launch_merge_passes(calls, stream);
}

}  // namespace tilewright::cuda
