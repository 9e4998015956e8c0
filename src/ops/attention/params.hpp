// A checked attention call, as all of its kernels receive it.
#pragma once

#include "common/attention_parts.hpp"
#include "common/strides.hpp"
#include "tilewright/attention.hpp"

namespace tilewright {

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

  KeyWindow window;
  float softcap = 0.0f;  // 0: none
  Sinks sinks;

  // If sequences are packed, `batch` is their number and batch strides are 0; q_len (kv_len) is the
  // rows of the whole tensor, which may be more than the last sequence's end.
  PackedRows packed_q;
  KvLengths kv_lengths;

  RowStatistics statistics;  // if there are any, o is FP32

  int multiprocessors = 0;  // of the GPU
};

}  // namespace tilewright
