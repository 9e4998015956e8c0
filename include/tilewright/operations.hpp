// All operations, as a list of types.
#pragma once

#include "tilewright/append_kv.hpp"
#include "tilewright/attention_fp8_kernels.hpp"
#include "tilewright/attention_kernels.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"
#include "tilewright/dsv4_attention_kernels.hpp"
#include "tilewright/gemm_bf16_kernels.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"
#include "tilewright/kv_rows.hpp"
#include "tilewright/merge_states.hpp"
#include "tilewright/nvfp4_kernels.hpp"
#include "tilewright/rope.hpp"
#include "tilewright/rotate_quantize.hpp"

namespace tilewright {

template <class... Ops>
struct OperationList {};

using Operations =
    OperationList<Attention, AttentionWithKvCache, GemmBf16, GemmNvfp4, QuantizeNvfp4,
                  DequantizeNvfp4, ConvertScales, PrepackNvfp4Weight, UnpackNvfp4Weight,
                  MergeStates, AppendKv, AttentionFp8, RotateQuantize, QuantizeKvRows,
                  DequantizeKvRows, Rope, Dsv4Attention>;

}  // namespace tilewright
