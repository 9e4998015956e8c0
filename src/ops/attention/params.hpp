// A checked attention call, as all of its kernels receive it.
#pragma once

#include <cstdint>
#include <limits>

#include "common/strides.hpp"
#include "tilewright/attention.hpp"

namespace tilewright {

// A window's side without a limit: more than any distance, and not too much to be added to one.
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
  int value_dim = 0;  // head dim of v and o

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

  // If sequences are packed, `batch` is their number and batch strides are 0; q_len (kv_len) is the
  // rows of the whole tensor, which may be more than the last sequence's end. Null if each sequence
  // is a batch entry of that length.
  const int* cu_seqlens_q = nullptr;
  const int* cu_seqlens_k = nullptr;
  const int* seqused_k = nullptr;  // null: all keys count

  // Un-normalised: o is FP32. Null otherwise.
  float* row_max = nullptr;
  float* row_sum = nullptr;
  OuterStrides row_max_stride;
  OuterStrides row_sum_stride;

  int multiprocessors = 0;  // of the GPU
};

}  // namespace tilewright
