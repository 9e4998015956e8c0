// Forward attention on FP8: attention() of E4M3 queries, keys and values, which have descales.
// rotate_quantize() makes them of FP16 and BF16.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "tilewright/attention.hpp"
#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// Shapes as of attention(): B batch, Nq and Nk sequence lengths, H query heads, Hk key/value heads,
// D head dim of q and k, Dv of v and o.
//   q    (B, Nq, H,  D)   k  (B, Nk, Hk, D)   v  (B, Nk, Hk, Dv)   all e4m3
//   o    (B, Nq, H, Dv)   bf16 or fp16; fp32 with row_max and row_sum
// In place of v, values may come transposed:
//   v_transposed  (B, Hk, Dv, Nk') e4m3, where Nk' is a multiple of 16 and at least Nk. The last
//                 dimension is contiguous. Columns of no key may be anything, even NaN. With
//                 cu_seqlens_k it is (Hk, Dv, Tk'), where Tk' is a multiple of 16 and at least
//                 16 (Tk / 16 + B), and key j of sequence b, whose keys begin at
//                 c = cu_seqlens_k[b], has column 16 (c / 16 + b) + j (divisions round down): each
//                 sequence begins at a multiple of 16, and no two overlap
// Exactly one of v and v_transposed is given. lse, sinks, cu_seqlens_q, cu_seqlens_k, seqused_k,
// row_max and row_sum are those of AttentionTensors, and so is what else it says of strides,
// overlap, packed sequences, NaN and un-normalised results.
//
// Descales, fp32, each of them optional; one that is absent is 1:
//   value = descale * byte
// They are finite and not negative. Any of them may be of one number for its tensor, (1). With
// options.descale_rows = 0 it may also be of one number for each sequence and key/value head:
//   q_descale, k_descale, v_descale  (B, Hk); q's is that of all query heads of a key/value head
// With options.descale_rows = M, 64 or 128, it may instead be of one for each M rows of a head:
//   q_descale             (B, H,  ceil(Nq / M))   with cu_seqlens_q (H,  Tq / M + B)
//   k_descale, v_descale  (B, Hk, ceil(Nk / M))   with cu_seqlens_k (Hk, Tk / M + B)
// where row i of a sequence has block i / M. In a packed tensor, row i of sequence b, whose rows
// begin at c = cu_seqlens[b], has block c / M + b + i / M (all divisions round down): no two
// sequences share a block. Blocks without rows may be anything. Strides are free.
struct AttentionFp8Tensors {
  ConstTensorView q;
  ConstTensorView k;
  TensorView o;
  std::optional<ConstTensorView> v = std::nullopt;
  std::optional<ConstTensorView> v_transposed = std::nullopt;
  std::optional<ConstTensorView> q_descale = std::nullopt;
  std::optional<ConstTensorView> k_descale = std::nullopt;
  std::optional<ConstTensorView> v_descale = std::nullopt;
  std::optional<TensorView> lse = std::nullopt;
  std::optional<ConstTensorView> sinks = std::nullopt;
  std::optional<ConstTensorView> cu_seqlens_q = std::nullopt;
  std::optional<ConstTensorView> cu_seqlens_k = std::nullopt;
  std::optional<ConstTensorView> seqused_k = std::nullopt;
  std::optional<TensorView> row_max = std::nullopt;
  std::optional<TensorView> row_sum = std::nullopt;
};

// causal, window, scale, softcap and batch_invariant are those of AttentionOptions.
struct AttentionFp8Options {
  bool causal = false;
  Window window{};
  std::optional<float> scale = std::nullopt;
  float softcap = 0.0f;
  bool batch_invariant = false;
  // The rows of a sequence that share a descale: 64 or 128. 0: descales have no blocks.
  int descale_rows = 0;
  // Copies cu_seqlens_q, cu_seqlens_k, seqused_k and the descales from the GPU to check their
  // values. This waits for the stream and cannot be captured in a CUDA graph. It is for debugging.
  // Values on the CPU are always checked.
  bool check_values = false;
  // A name of a kernel or variant, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// The bytes of workspace that attention_fp8() needs for these tensors. It depends on shapes, dtypes
// and devices, never on data. Throws what attention_fp8() would throw, the workspace check aside.
std::size_t attention_fp8_workspace_bytes(const AttentionFp8Tensors& tensors,
                                          const AttentionFp8Options& options = {});

// Computes o and, where given, the row statistics:
//
//   s = q_descale * k_descale * scale * (q . k), capped and masked
//   o = sum_j exp(s_j - m) v_descale v_j / l    m = max s_j, l = sum_j exp(s_j - m)
//
// Scores, sums and statistics are FP32. On a GPU the weights exp(s_j - m) of the second product are
// rounded to E4M3, scaled by a power of two so that none saturates. Those of row_sum and lse are
// not; o may be divided by the sum of rounded ones if only o is wanted. On the CPU none is rounded.
//
// On CUDA tensors the work is queued on `stream` and the call returns at once; it neither allocates
// nor synchronises and can be captured in a CUDA graph, even where no call came before it. On CPU
// tensors the results are there on return. Throws tilewright::Error, with nothing written, when an
// argument is wrong or no kernel can run the problem.
void attention_fp8(const AttentionFp8Tensors& tensors, const AttentionFp8Options& options = {},
                   Workspace workspace = {}, Stream stream = nullptr);

}  // namespace tilewright
