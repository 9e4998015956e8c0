// The test oracle of tilewright/nvfp4.hpp: formats as tables of their values, rounding as a search
// for the nearest of them, arithmetic in float64 rounded to FP32 where the contract rounds.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tilewright/nvfp4.hpp"

namespace tilewright::reference {

inline constexpr int kBlock = 16;  // of NVFP4

// The value of a code, 0 ... 15, and of a scale of dtype e4m3 or e8m0.
double e2m1_value(int code);
double scale_value(DType dtype, int bits);

// To nearest, ties to the even code, saturating. NaN gives the largest code, and NaN.
int round_to_e2m1(double value);
int round_to_e4m3(double value);

// Of a matrix (M, K), dense, with linear scales.
struct QuantizedNvfp4 {
  std::vector<std::uint8_t> codes;   // (M, K / 2)
  std::vector<std::uint8_t> scales;  // (M, K / 16)
  float global_scale = 1.0f;
};

// The given global scale, or the computed one where there is none.
QuantizedNvfp4 quantize_nvfp4(const ConstTensorView& x, std::optional<float> global_scale,
                              GlobalScale kind);

// A value in float64, with the rounding to FP32 that the contract has: before that to out's dtype.
double dequantize_nvfp4(int code, DType scale_dtype, int scale, float global_scale,
                        GlobalScale kind);

// The byte of a scale tensor's row r and block j in the swizzled layout, from its nested form
// (32, 4, tiles of rows, 4, tiles of blocks).
std::int64_t swizzled_index(std::int64_t row, std::int64_t block, std::int64_t blocks);

}  // namespace tilewright::reference
