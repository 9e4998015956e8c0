// The checked form of an attention call: what every backend's kernels receive.
#pragma once

#include <cstdint>
#include <limits>

#include "tilewright/attention.hpp"

namespace tilewright {

// Element strides of the outer dimensions; the head dimension has stride 1.
struct OuterStrides {
  std::int64_t batch = 0;
  std::int64_t seq = 0;
  std::int64_t head = 0;
};

// A side of the window without a limit: larger than any distance, small enough to be added to one.
inline constexpr int kNoLimit = std::numeric_limits<int>::max() / 2;

struct AttentionParams {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;  // may be null
  void* workspace = nullptr;

  DType dtype = DType::bf16;
  int batch = 0;
  int q_len = 0;
  int kv_len = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;

  OuterStrides q_stride;
  OuterStrides k_stride;
  OuterStrides v_stride;
  OuterStrides o_stride;
  OuterStrides lse_stride;  // seq: the query's stride

  float scale = 0.0f;
  bool causal = false;

  int window_left = kNoLimit;
  int window_right = kNoLimit;
  float softcap = 0.0f;          // 0: none
  const float* sinks = nullptr;  // may be null
  std::int64_t sinks_stride = 0;
};

// Runs one kernel on checked arguments. CPU kernels ignore the stream.
using AttentionLaunch = void (*)(const AttentionParams&, Stream);

}  // namespace tilewright
