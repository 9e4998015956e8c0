// The splits of an attention, as its kernel computes them and as merge_splits.cuh merges them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewright::cuda {

// Where splits leave their results, in bytes from the workspace's start.
struct SplitPlaces {
  std::size_t row_max;  // (splits * B, H, Nq) FP32
  std::size_t row_sum;  // likewise
  std::size_t o;        // (splits * B, Nq, H, Dv) FP32
};

// `p` with its outputs in the workspace, where each split counts as a batch of its own. `Params`
// are as of merge_splits.cuh.
template <typename Params>
Params splits_of(const Params& p, const SplitPlaces& at) {
  auto* const workspace = static_cast<char*>(p.workspace);
  const std::int64_t row_size = p.value_dim;
  Params splits = p;
  splits.sinks = {};  // the sink counts once, in the merge
  splits.lse = nullptr;
  splits.o = workspace + at.o;
  splits.o_stride = {
      .batch = p.q_len * p.heads * row_size, .seq = p.heads * row_size, .head = row_size};
  splits.statistics.max = reinterpret_cast<float*>(workspace + at.row_max);
  splits.statistics.sum = reinterpret_cast<float*>(workspace + at.row_sum);
  const std::int64_t q_len = p.q_len;
  splits.statistics.max_stride = {.batch = p.heads * q_len, .seq = 1, .head = q_len};
  splits.statistics.sum_stride = splits.statistics.max_stride;
  return splits;
}

}  // namespace tilewright::cuda
