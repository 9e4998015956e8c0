// The operation gemm_bf16(), as the registry describes it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tilewright/gemm_bf16.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

struct GemmBf16Facts {
  int n_multiple = 1;
  int k_multiple = 1;
};

struct GemmBf16Problem {
  std::int64_t m = 1;
  std::int64_t n = 16;
  std::int64_t k = 64;
};

struct GemmBf16Params;

struct GemmBf16 {
  static constexpr std::string_view kName = "gemm_bf16";
  using Tensors = GemmBf16Tensors;
  using Options = GemmBf16Options;
  using Problem = GemmBf16Problem;
  using Facts = GemmBf16Facts;
  using Params = GemmBf16Params;
};

// The library has the table.
template <>
std::span<const Kernel<GemmBf16>> Table<GemmBf16>::rows();
extern template struct Table<GemmBf16>;

}  // namespace tilewright
