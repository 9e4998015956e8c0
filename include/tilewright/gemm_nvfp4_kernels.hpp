// The operation gemm_nvfp4(), as the registry describes it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tilewright/gemm_nvfp4.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// The forms of gemm_nvfp4()'s weight.
enum class WeightForm : std::uint8_t {
  codes,   // with scales
  packed,  // by prepack_nvfp4_weight()
};

constexpr std::string_view name(WeightForm form) {
  return form == WeightForm::codes ? "codes" : "packed";
}

// What a kernel takes of gemm_nvfp4().
struct GemmNvfp4Facts {
  std::span<const DType> out_dtypes = {};  // of c
  int n_multiple = 1;                      // N and K must be multiples of these
  int k_multiple = 1;
  std::span<const WeightForm> weight_forms = {};
};

// A GEMM, as far as it decides which kernels can run it: c (l, m, n) = a (l, m, k) times the
// transpose of b (l, n, k).
struct GemmNvfp4Problem {
  DType a_dtype = DType::bf16;  // e2m1x2: NVFP4
  DType c_dtype = DType::bf16;
  std::int64_t m = 1;
  std::int64_t n = 16;
  std::int64_t k = 64;
  std::int64_t l = 1;
  bool b_is_packed = false;
  bool batch_invariant = false;
};

struct GemmNvfp4Params;

struct GemmNvfp4 {
  static constexpr std::string_view kName = "gemm_nvfp4";
  using Tensors = GemmNvfp4Tensors;
  using Options = GemmNvfp4Options;
  using Problem = GemmNvfp4Problem;
  using Facts = GemmNvfp4Facts;
  using Params = GemmNvfp4Params;
};

// The library has the table.
template <>
std::span<const Kernel<GemmNvfp4>> Table<GemmNvfp4>::rows();
extern template struct Table<GemmNvfp4>;

}  // namespace tilewright
