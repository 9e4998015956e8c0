// A checked call of merge_states(), as its kernels receive it.
#pragma once

#include "common/attention_parts.hpp"
#include "common/strides.hpp"
#include "tilewright/merge_states.hpp"

namespace tilewright {

// Strides of tensors with parts have the part's as the batch's.
struct MergeStatesParams {
  const void* o = nullptr;
  const float* m = nullptr;  // lse or row_max
  const float* l = nullptr;  // row_sum; null where parts are normalised
  void* out = nullptr;
  float* lse_out = nullptr;  // may be null
  RowStatistics statistics;  // null where out is normalised
  Sinks sinks;

  DType dtype = DType::bf16;      // of o
  DType out_dtype = DType::bf16;  // of out
  int parts = 0;
  int tokens = 0;
  int heads = 0;
  int head_dim = 0;

  OuterStrides o_stride;
  OuterStrides m_stride;
  OuterStrides l_stride;
  OuterStrides out_stride;
  OuterStrides lse_stride;
};

}  // namespace tilewright
