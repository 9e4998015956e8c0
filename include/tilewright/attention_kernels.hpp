// The operation attention(), as the registry describes it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tilewright/attention.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Features beyond plain attention, which a kernel may or may not have.
enum class Feature : std::uint8_t { window, softcap, sinks, packed, unnormalized };

constexpr std::string_view name(Feature feature) {
  switch (feature) {
    case Feature::window:
      return "window";
    case Feature::softcap:
      return "softcap";
    case Feature::sinks:
      return "sinks";
    case Feature::packed:
      return "packed";
    case Feature::unnormalized:
      return "unnormalized";
  }
  return "unknown";
}

// A pair of head dims that a kernel takes: of q and k, and of v and o.
struct HeadDims {
  int qk;
  int v;

  friend constexpr bool operator==(HeadDims, HeadDims) = default;
};

// "128", or "192 (v 128)" where they differ.
inline std::string name(HeadDims dims) {
  return std::to_string(dims.qk) + (dims.v == dims.qk ? "" : " (v " + std::to_string(dims.v) + ")");
}

// What an attention kernel takes.
struct AttentionFacts {
  std::span<const HeadDims> head_dims = {};  // empty: any up to 16384
  std::span<const Feature> features = {};
};

// An attention problem, as far as it decides which kernels can run it. It has no strides: these are
// checked against alignment_bytes when the tensors are given. If packed, `batch` is the number of
// sequences, and q_len and kv_len are the tokens of all of them together. Sizes are at least 1 and
// less than 2^30, like those of tensors.
struct AttentionProblem {
  DType dtype = DType::bf16;
  std::int64_t batch = 1;
  std::int64_t q_len = 1;
  std::int64_t kv_len = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;
  std::int64_t value_dim = 0;  // of v and o; 0: head_dim
  bool causal = false;
  bool window = false;
  bool softcap = false;
  bool sinks = false;
  bool packed = false;          // cu_seqlens_q, cu_seqlens_k or seqused_k
  bool packed_queries = false;  // cu_seqlens_q
  bool packed_keys = false;     // cu_seqlens_k
  bool unnormalized = false;
  bool batch_invariant = false;

  bool asks_for(Feature feature) const;
};

struct AttentionParams;

struct Attention {
  static constexpr std::string_view kName = "attention";
  using Tensors = AttentionTensors;
  using Options = AttentionOptions;
  using Problem = AttentionProblem;
  using Facts = AttentionFacts;
  using Params = AttentionParams;
};

// The library has the tables.
template <>
std::span<const Kernel<Attention>> Table<Attention>::rows();
extern template struct Table<Attention>;

}  // namespace tilewright
