// The quantiser's arithmetic as tilewright/nvfp4.hpp states it, for CPU and GPU alike. It has
// quotients and products only, which no compiler can fuse into one operation.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <limits>

#include "common/block_scale.hpp"
#include "common/e2m1.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::nvfp4 {

inline constexpr int kBlock = 16;
inline constexpr int kMxBlock = 32;

// |x| as a float's bits: magnitudes are ordered like integers, numbers below infinity below NaN.
inline constexpr std::uint32_t kMagnitude = 0x7fffffffu;
inline constexpr std::uint32_t kInfinity = 0x7f800000u;

// The global scale of a matrix whose largest finite magnitude is amax.
constexpr float global_scale_of(float amax, GlobalScale kind) {
  constexpr float kRange = kE2m1Max * kE4m3Max;
  if (amax == 0.0f) {
    return 1.0f;
  }
  return kind == GlobalScale::encode ? std::min(kRange / amax, FLT_MAX)
                                     : std::max(amax / kRange, FLT_MIN);
}

constexpr bool is_positive_and_finite(float value) { return value > 0.0f && value <= FLT_MAX; }

// e; NaN if the global scale is not positive and finite.
constexpr float encode_scale(float global_scale, GlobalScale kind) {
  if (!is_positive_and_finite(global_scale)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return kind == GlobalScale::encode ? global_scale : std::min(1.0f / global_scale, FLT_MAX);
}

// A block's scale before it is rounded.
constexpr float exact_scale(float block_amax, float e) { return block_amax / kE2m1Max * e; }

// m; NaN if e or the scale is. (If a first argument is NaN, std::min and std::max return it.)
constexpr float code_factor(std::uint32_t scale, float e) {
  constexpr float kNoZero = 1e-12f;
  return std::min(e / std::max(e4m3_to_float(scale), kNoZero), FLT_MAX);
}

// A value from its code. If `scale` is NaN, the value is that NaN, with the same bits everywhere.
constexpr float decode(std::uint32_t code, float scale, float global_scale, GlobalScale kind) {
  if (scale != scale) {
    return scale;
  }
  const float value = e2m1_to_float(code) * scale;
  return kind == GlobalScale::encode ? value / global_scale : value * global_scale;
}

// A block's scale as decode() takes it: NaN if the global scale is not positive and finite.
constexpr float decode_scale(std::uint32_t bits, bool is_mxfp4, float global_scale) {
  if (!is_positive_and_finite(global_scale)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return is_mxfp4 ? e8m0_to_float(bits) : e4m3_to_float(bits);
}

}  // namespace tilewright::nvfp4
