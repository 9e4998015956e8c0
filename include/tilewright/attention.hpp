// Forward attention: O = softmax(scale * Q K^T + mask) V, and its log-sum-exp; with a sliding
// window, a soft cap on the scores and attention sinks where asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "tilewright/error.hpp"
#include "tilewright/tensor.hpp"

struct CUstream_st;

namespace tilewright {

// A CUDA stream; null is the default stream. CPU kernels ignore it.
using Stream = CUstream_st*;

// Shapes: B batch, Nq and Nk sequence lengths, H query heads, Hk key/value heads, D head dim.
//   q    (B, Nq, H,  D)   k, v  (B, Nk, Hk, D)   o  (B, Nq, H, D), the dtype of q
//   lse  (B, H, Nq) fp32, natural log: lse = m + ln(l) with the scale included
// The head dimension is contiguous (stride 1); every other stride is free, in elements. H is a
// multiple of Hk: query head h reads key/value head h / (H / Hk). All sizes are at least 1. All
// tensors live on one device. Outputs may not overlap each other or an input.
//
// sinks  (H) fp32: a logit for each query head that enters its rows' denominators like the score of
//        one more key, whose value is 0. The LSE counts it.
struct AttentionTensors {
  ConstTensorView q;
  ConstTensorView k;
  ConstTensorView v;
  TensorView o;
  std::optional<TensorView> lse = std::nullopt;
  std::optional<ConstTensorView> sinks = std::nullopt;
};

// How far a query sees, in keys, to both sides of the diagonal: at least 0, without limit when
// absent.
struct Window {
  std::optional<std::int64_t> left = std::nullopt;
  std::optional<std::int64_t> right = std::nullopt;
};

struct AttentionOptions {
  // Query i stands at key i + Nk - Nq (aligned to the bottom right), and with causal sees no key
  // beyond it. A row that sees no key gives o = 0 and lse = -infinity (with sinks, its sink).
  bool causal = false;
  // Query i sees keys i + Nk - Nq - left ... i + Nk - Nq + right. Where causal too, both hold.
  Window window{};
  // Multiplies Q K^T; finite and at least 0. 1 / sqrt(D) when absent.
  std::optional<float> scale = std::nullopt;
  // Scaled scores s become softcap * tanh(s / softcap); finite and at least 0, where 0 leaves them.
  float softcap = 0.0f;
  // A name of kernels(), or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// Scratch memory on the tensors' device, 256-byte aligned; null where 0 bytes are needed.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// The bytes of workspace that attention() will need for these tensors. Looks at shapes, dtypes and
// devices only, never at data. Throws what attention() would throw, the workspace check aside.
std::size_t attention_workspace_bytes(const AttentionTensors& tensors,
                                      const AttentionOptions& options = {});

// Computes o and, where given, lse. On CUDA tensors the work is queued on `stream` and the call
// returns at once; it neither allocates nor synchronises and can be captured in a CUDA graph (make
// one ordinary call first: a kernel's first call on a device sets its shared-memory limit). On CPU
// tensors the results are there on return. Throws tilewright::Error, with nothing written, when an
// argument is wrong or no kernel can run the problem.
void attention(const AttentionTensors& tensors, const AttentionOptions& options = {},
               Workspace workspace = {}, Stream stream = nullptr);

}  // namespace tilewright
