#include "cuda/attention/shared_prefix/launch.hpp"

#include "cuda/attention/decode/launch.hpp"

namespace tilewright::cuda {

void launch_shared_prefix(const AttentionWithKvCacheParams& p, const SharedPrefixDetails& details,
                          Stream stream) {
  const SharedPrefixCalls calls = calls_of(p, details.at);
  launch_split_keys(p, calls.lengths, calls.packed_q, stream);
  launch_decode_pass(calls.prefix, details.prefix, stream);
  launch_decode_pass(calls.suffix, details.suffix, stream);
  launch_merge_passes(calls, stream);
}

}  // namespace tilewright::cuda
