// Forward attention: O = softmax(scale * Q K^T + mask) V, and its log-sum-exp. Options are a
// sliding window, a soft cap on the scores, attention sinks, packed sequences of different lengths,
// and an un-normalised result to be merged with others later.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// Shapes: B batch, Nq and Nk sequence lengths, H query heads, Hk key/value heads, D head dim of q
// and k, Dv of v and o (mostly the same).
//   q    (B, Nq, H,  D)   k  (B, Nk, Hk, D)   v  (B, Nk, Hk, Dv)
//   o    (B, Nq, H, Dv), the dtype of q
//   lse  (B, H, Nq) fp32, natural log: lse = m + ln(l) with the scale included
// The head dimension is contiguous (stride 1); every other stride is free, in elements. H is a
// multiple of Hk: query head h reads key/value head h / (H / Hk). All sizes are at least 1. All
// tensors live on one device. No output may share a byte with another one or with an input.
//
// sinks  (H) fp32: a logit for each query head. It enters the denominators of the head's rows like
//        the score of one more key whose value is 0, and the LSE counts it. A sink of -infinity has
//        no effect, one of +infinity gives O = 0 and LSE = +infinity.
//
// A NaN in q, in a key that the row sees or in its sink makes o and all the row's statistics NaN. A
// key whose score is -infinity has no weight.
//
// Packed sequences. With cu_seqlens_q, q is (Tq, H, D) and holds B sequences one after the other:
// sequence b has the rows [cu_seqlens_q[b], cu_seqlens_q[b + 1]); o is (Tq, H, Dv) and the row
// statistics (H, Tq). With cu_seqlens_k, k and v are (Tk, Hk, D) and (Tk, Hk, Dv) likewise. Either
// may be packed without the other. Lengths may be 0; a mask's Nq and Nk are those of each
// sequence.
//   cu_seqlens_q, cu_seqlens_k  (B + 1) int32, from 0, ascending, up to Tq or Tk at most
//   seqused_k                   (B) int32, used lengths: only the first seqused_k[b] keys of
//                               sequence b count, and a mask's Nk is this number. It is at most the
//                               sequence's length. k need not be packed
// They lie on the tensors' device, contiguous. Outputs' rows beyond the end of the last sequence
// are not written. On CPU tensors the values are checked. On CUDA tensors they are checked only if
// options.check_lengths is set; without it the caller answers for them.
//
// Un-normalised. With row_max and row_sum, both fp32 of the shape of lse, o is fp32 and holds
// sum_j exp(s_j - m) v_j of each row, where m is the maximum of its scores s (scale, soft cap and
// sink included) and l = sum_j exp(s_j - m); m = -infinity, l = 0 and o = 0 in a row without
// scores. Two such results over different keys merge into one: m' = max(m1, m2), l' = l1 exp(m1 -
// m') + l2 exp(m2 - m'), and o' the same way. A sink may take part in one of them only.
struct AttentionTensors {
  ConstTensorView q;
  ConstTensorView k;
  ConstTensorView v;
  TensorView o;
  std::optional<TensorView> lse = std::nullopt;
  std::optional<ConstTensorView> sinks = std::nullopt;
  std::optional<ConstTensorView> cu_seqlens_q = std::nullopt;
  std::optional<ConstTensorView> cu_seqlens_k = std::nullopt;
  std::optional<ConstTensorView> seqused_k = std::nullopt;
  std::optional<TensorView> row_max = std::nullopt;
  std::optional<TensorView> row_sum = std::nullopt;
};

// How far a query sees to each side of the diagonal, in keys: 0 or more, and without limit if
// absent.
struct Window {
  std::optional<std::int64_t> left = std::nullopt;
  std::optional<std::int64_t> right = std::nullopt;
};

struct AttentionOptions {
  // Query i stands at key i + Nk - Nq (the diagonal ends at the bottom right), and if causal it
  // sees no key beyond that one. A row that sees no key gives o = 0 and lse = -infinity (or its
  // sink, if there is one). Keys and values that no query sees may be anything, even NaN.
  bool causal = false;
  // Query i sees keys i + Nk - Nq - left ... i + Nk - Nq + right. If causal too, both limits hold.
  Window window{};
  // Multiplies Q K^T. It is from 0 to 1e38, or 1 / sqrt(D) if absent. If a score is +infinity in
  // FP32, in units of log2, its row becomes NaN.
  std::optional<float> scale = std::nullopt;
  // Scaled scores s become softcap * tanh(s / softcap). 0 leaves them as they are; any other value
  // is from scale / 1e38 to 1e38.
  float softcap = 0.0f;
  // A row's result depends on its own sequence alone: not on the rest of the batch, nor on its
  // place there. Without this option, keys may be split if a batch is too small to fill the GPU.
  bool batch_invariant = false;
  // Copies cu_seqlens_q, cu_seqlens_k and seqused_k from the GPU to check their values. This waits
  // for the stream and cannot be captured in a CUDA graph. It is for debugging.
  bool check_lengths = false;
  // A name of a kernel or variant, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// The bytes of workspace that attention() needs for these tensors. It depends on shapes, dtypes and
// devices, never on data. Throws what attention() would throw, the workspace check aside.
std::size_t attention_workspace_bytes(const AttentionTensors& tensors,
                                      const AttentionOptions& options = {});

// Computes o and, where given, the row statistics. On CUDA tensors the work is queued on `stream`
// and the call returns at once; it neither allocates nor synchronises and can be captured in a CUDA
// graph, even where no call came before it. On CPU tensors the results are there on return. Throws
// tilewright::Error, with nothing written, when an argument is wrong or no kernel can run the
// problem.
void attention(const AttentionTensors& tensors, const AttentionOptions& options = {},
               Workspace workspace = {}, Stream stream = nullptr);

}  // namespace tilewright
