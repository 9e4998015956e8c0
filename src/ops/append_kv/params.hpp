// A checked call of append_kv(), as its kernels receive it.
#pragma once

#include "common/append_rows.hpp"
#include "common/rotary.hpp"
#include "common/strides.hpp"
#include "tilewright/append_kv.hpp"

namespace tilewright {

// The descales of k or v: given by sequence and head, or to be computed. Both are null where the
// cache is not quantised.
struct AppendDescales {
  const float* given = nullptr;
  std::int64_t sequence_stride = 0;
  std::int64_t head_stride = 0;
  float* computed = nullptr;
  OuterStrides computed_stride{};  // the page's as the batch's
};

// Strides of caches have the page's as the batch's.
struct AppendKvParams {
  const void* k = nullptr;
  const void* v = nullptr;
  const void* q = nullptr;  // null: none
  void* k_cache = nullptr;
  void* v_cache = nullptr;
  void* q_out = nullptr;

  DType dtype = DType::bf16;  // of k
  bool is_quantized = false;
  int heads = 0;  // of q
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;

  OuterStrides k_stride{};
  OuterStrides v_stride{};
  OuterStrides q_stride{};
  OuterStrides k_cache_stride{};
  OuterStrides v_cache_stride{};
  OuterStrides q_out_stride{};

  AppendRows rows;
  Rotary rotary;
  AppendDescales k_descale;
  AppendDescales v_descale;
};

}  // namespace tilewright
