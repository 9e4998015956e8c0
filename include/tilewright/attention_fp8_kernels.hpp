// The operation attention_fp8(), as the registry describes it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tilewright/attention_fp8.hpp"
#include "tilewright/attention_kernels.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Features beyond plain attention, which a kernel may or may not have.
enum class Fp8Feature : std::uint8_t {
  window,
  softcap,
  sinks,
  packed,
  unnormalized,
  values_in_rows,  // v
  v_transposed,
  block_descales,
};

constexpr std::string_view name(Fp8Feature feature) {
  switch (feature) {
    case Fp8Feature::window:
      return "window";
    case Fp8Feature::softcap:
      return "softcap";
    case Fp8Feature::sinks:
      return "sinks";
    case Fp8Feature::packed:
      return "packed";
    case Fp8Feature::unnormalized:
      return "unnormalized";
    case Fp8Feature::values_in_rows:
      return "v";
    case Fp8Feature::v_transposed:
      return "v_transposed";
    case Fp8Feature::block_descales:
      return "descale_rows";
  }
  return "unknown";
}

// What a kernel takes. The dtypes of its KernelInfo are those of o; o is fp32 in un-normalised
// results.
struct AttentionFp8Facts {
  std::span<const HeadDims> head_dims = {};  // empty: any up to 16384
  std::span<const Fp8Feature> features = {};
};

// A problem, as far as it decides which kernels can run it. `dtype` is that of o; in an
// un-normalised problem it does not matter.
struct AttentionFp8Problem : AttentionProblem {
  bool v_transposed = false;
  int descale_rows = 0;

  bool asks_for(Fp8Feature feature) const;
};

struct AttentionFp8Params;

struct AttentionFp8 {
  static constexpr std::string_view kName = "attention_fp8";
  using Tensors = AttentionFp8Tensors;
  using Options = AttentionFp8Options;
  using Problem = AttentionFp8Problem;
  using Facts = AttentionFp8Facts;
  using Params = AttentionFp8Params;
};

// The library has the tables.
template <>
std::span<const Kernel<AttentionFp8>> Table<AttentionFp8>::rows();
extern template struct Table<AttentionFp8>;

}  // namespace tilewright
