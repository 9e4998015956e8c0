#include "reference/nvfp4.hpp"

#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <limits>

#include "reference/host_tensor.hpp"
#include "reference/parallel_for.hpp"

namespace tilewright::reference {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int kE4m3NaN = 127;

// A sign, `exponent_bits` with their bias, `mantissa_bits`; no infinity.
double float_value(int bits, int exponent_bits, int mantissa_bits, int bias) {
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const double sign = (bits >> (exponent_bits + mantissa_bits)) != 0 ? -1.0 : 1.0;
  const int significand = exponent != 0 ? mantissa + (1 << mantissa_bits) : mantissa;
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - mantissa_bits);
}

// The code among 0 ... largest, whose values ascend, that is nearest to a magnitude: the first from
// it on, or the one below.
template <typename ValueOf>
int nearest(double magnitude, int largest, ValueOf value_of) {
  int first = 0;
  for (int end = largest; first < end;) {
    const int middle = (first + end) / 2;
    value_of(middle) < magnitude ? first = middle + 1 : end = middle;
  }
  if (first == 0 || value_of(first) < magnitude) {
    return first;
  }
  const double above = value_of(first) - magnitude;
  const double below = magnitude - value_of(first - 1);
  return below < above || (below == above && first % 2 != 0) ? first - 1 : first;
}

// The value of each byte.
const std::array<double, 256>& e4m3_values() {
  static const auto values = [] {
    std::array<double, 256> all{};
    for (int bits = 0; bits < 256; ++bits) {
      all[static_cast<std::size_t>(bits)] =
          (bits & 127) == kE4m3NaN ? kNaN : float_value(bits, 4, 3, 7);
    }
    return all;
  }();
  return values;
}

// One operation's rounding to FP32.
float fp32(double exact) { return static_cast<float>(exact); }

double at(const ConstTensorView& x, std::int64_t row, std::int64_t column) {
  return load(x, row * x.stride[0] + column * x.stride[1]);
}

float computed_global_scale(const ConstTensorView& x, GlobalScale kind) {
  double amax = 0;
  for (std::int64_t row = 0; row < x.shape[0]; ++row) {
    for (std::int64_t column = 0; column < x.shape[1]; ++column) {
      const double value = at(x, row, column);
      amax = std::isfinite(value) ? std::max(amax, std::abs(value)) : amax;
    }
  }
  if (amax == 0) {
    return 1.0f;
  }
  return kind == GlobalScale::encode ? fp32(std::min<double>(2688 / amax, FLT_MAX))
                                     : fp32(std::max<double>(fp32(amax / 2688), FLT_MIN));
}

float encode_scale(float global_scale, GlobalScale kind) {
  if (!(global_scale > 0) || !std::isfinite(global_scale)) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  return kind == GlobalScale::encode ? global_scale
                                     : fp32(std::min<double>(1.0 / global_scale, FLT_MAX));
}

double block_amax(const ConstTensorView& x, std::int64_t row, std::int64_t first) {
  double amax = 0;
  for (int i = 0; i < kBlock; ++i) {
    const double magnitude = std::abs(at(x, row, first + i));
    amax = std::isnan(magnitude) || std::isnan(amax) ? kNaN : std::max(amax, magnitude);
  }
  return amax;
}

// m of a block, from its scale.
double code_factor(int scale, float e) {
  const double value = scale_value(DType::e4m3, scale);
  if (std::isnan(value) || std::isnan(e)) {
    return kNaN;
  }
  return fp32(std::min<double>(e / (value == 0 ? double{1e-12f} : value), FLT_MAX));
}

}  // namespace

double e2m1_value(int code) { return float_value(code, 2, 1, 1); }

double scale_value(DType dtype, int bits) {
  if (dtype == DType::e8m0) {
    return bits == 255 ? kNaN : std::ldexp(1.0, bits - 127);
  }
  return e4m3_values()[static_cast<std::size_t>(bits)];
}

int round_to_e2m1(double value) {
  const int sign = std::signbit(value) ? 8 : 0;
  return sign + (std::isnan(value) ? 7 : nearest(std::abs(value), 7, e2m1_value));
}

int round_to_e4m3(double value) {
  const int sign = std::signbit(value) ? 128 : 0;
  const auto value_of = [](int bits) { return scale_value(DType::e4m3, bits); };
  return sign + (std::isnan(value) ? kE4m3NaN : nearest(std::abs(value), kE4m3NaN - 1, value_of));
}

QuantizedNvfp4 quantize_nvfp4(const ConstTensorView& x, std::optional<float> global_scale,
                              GlobalScale kind) {
  QuantizedNvfp4 result;
  result.global_scale = global_scale ? *global_scale : computed_global_scale(x, kind);
  const float e = encode_scale(result.global_scale, kind);
  const auto elements = static_cast<std::size_t>(x.shape[0] * x.shape[1]);
  result.scales.resize(elements / kBlock);
  result.codes.resize(elements / 2);
  parallel_for(x.shape[0], [&](std::int64_t row) {
    for (std::int64_t first = 0; first < x.shape[1]; first += kBlock) {
      const float sixth = fp32(block_amax(x, row, first) / 6.0);
      const int scale = round_to_e4m3(fp32(double{sixth} * e)) & 127;
      const double m = code_factor(scale, e);
      const auto element = static_cast<std::size_t>(row * x.shape[1] + first);
      result.scales[element / kBlock] = static_cast<std::uint8_t>(scale);
      std::array<int, kBlock> codes{};
      for (int i = 0; i < kBlock; ++i) {
        const double value = at(x, row, first + i);
        const int sign = std::signbit(value) ? 8 : 0;
        codes[i] = sign + round_to_e2m1(std::abs(fp32(value * m)));
      }
      for (std::size_t i = 0; i < kBlock; i += 2) {
        result.codes[(element + i) / 2] = static_cast<std::uint8_t>(codes[i] + 16 * codes[i + 1]);
      }
    }
  });
  return result;
}

double dequantize_nvfp4(int code, DType scale_dtype, int scale, float global_scale,
                        GlobalScale kind) {
  if (!(global_scale > 0) || !std::isfinite(global_scale)) {
    return kNaN;
  }
  const double value = fp32(e2m1_value(code) * scale_value(scale_dtype, scale));
  return kind == GlobalScale::encode ? fp32(value / global_scale) : fp32(value * global_scale);
}

std::int64_t swizzled_index(std::int64_t row, std::int64_t block, std::int64_t blocks) {
  const std::int64_t block_tiles = (blocks + 3) / 4;
  const std::int64_t row_in_32 = row % 32;
  const std::int64_t row_quarter = row / 32 % 4;
  const std::int64_t row_tile = row / 128;
  const std::int64_t block_in_4 = block % 4;
  const std::int64_t block_tile = block / 4;
  return row_in_32 * 16 + row_quarter * 4 + row_tile * 512 * block_tiles + block_in_4 +
         block_tile * 512;
}

}  // namespace tilewright::reference
