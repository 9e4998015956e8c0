// Conversions against a search among all values of a format, and against CUDA's on the host.
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <vector>

#include "emulator/convert.hpp"

namespace tilewright::emulator {
namespace {

constexpr std::array kRoundings = {Rounding::nearest_even, Rounding::nearest_away, Rounding::zero,
                                   Rounding::down, Rounding::up};

constexpr std::array kNarrow = {NumberFormat::f16,  NumberFormat::bf16, NumberFormat::e4m3,
                                NumberFormat::e5m2, NumberFormat::e2m1, NumberFormat::e2m3,
                                NumberFormat::e3m2};

// Sign, exponent and mantissa bits by the formats' definitions.
struct Definition {
  int exponent_bits;
  int mantissa_bits;
  int finite;  // non-negative codes that are finite
};

Definition definition(NumberFormat format) {
  switch (format) {
    case NumberFormat::f16:
      return {5, 10, 0x7c00};
    case NumberFormat::bf16:
      return {8, 7, 0x7f80};
    case NumberFormat::e4m3:
      return {4, 3, 0x7f};
    case NumberFormat::e5m2:
      return {5, 2, 0x7c};
    case NumberFormat::e2m1:
      return {2, 1, 8};
    case NumberFormat::e2m3:
      return {2, 3, 32};
    default:
      return {3, 2, 32};
  }
}

// The value that code `bits` has, or would have if the format had no special values.
double value_by_definition(NumberFormat format, int bits) {
  const Definition the = definition(format);
  const int bias = (1 << (the.exponent_bits - 1)) - 1;
  const int exponent = bits >> the.mantissa_bits;
  const int mantissa = bits & ((1 << the.mantissa_bits) - 1);
  const double significand =
      exponent > 0 ? mantissa + std::ldexp(1.0, the.mantissa_bits) : mantissa;
  return std::ldexp(significand, std::max(exponent, 1) - bias - the.mantissa_bits);
}

// All finite magnitudes, and the next one that a wider exponent would have.
std::vector<double> magnitudes(NumberFormat format) {
  std::vector<double> values;
  for (int bits = 0; bits <= definition(format).finite; ++bits) {
    values.push_back(value_by_definition(format, bits));
  }
  return values;
}

// The code without its sign, by a search; `values.size() - 1` means beyond the largest.
int nearest(const std::vector<double>& values, double magnitude, bool negative, Rounding rounding) {
  const auto above = std::upper_bound(values.begin(), values.end(), magnitude);
  if (above == values.end()) {
    return static_cast<int>(values.size()) - 1;
  }
  const int low = static_cast<int>(above - values.begin()) - 1;
  const double below_by = magnitude - values[low];
  const double above_by = *above - magnitude;
  if (below_by == 0) {
    return low;
  }
  switch (rounding) {
    case Rounding::nearest_even:
      return below_by < above_by || (below_by == above_by && low % 2 == 0) ? low : low + 1;
    case Rounding::nearest_away:
      return below_by < above_by ? low : low + 1;
    case Rounding::zero:
      return low;
    case Rounding::down:
      return negative ? low + 1 : low;
    default:
      return negative ? low : low + 1;
  }
}

// Exponents and the bits that rounding looks at one by one; below them nothing, or something.
template <typename Check>
void for_many_floats(Check check) {
  for (std::uint32_t high = 0; high < 1u << 16; ++high) {
    for (const std::uint32_t low : {0u, 1u, 0x1000u, 0x8000u, 0xffffu}) {
      check(std::bit_cast<float>(high << 16 | low));
    }
  }
}

std::uint64_t run(std::string_view opcode, std::uint64_t a, std::uint64_t b = 0) {
  const auto conversion = parse_conversion(opcode);
  EXPECT_TRUE(conversion) << opcode;
  return conversion ? convert(*conversion, a, b) : 0;
}

std::uint64_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }
std::uint64_t bits(double value) { return std::bit_cast<std::uint64_t>(value); }

TEST(Convert, DecodesEveryNarrowCode) {
  for (const NumberFormat format : kNarrow) {
    const Definition the = definition(format);
    const int sign = 1 << (the.exponent_bits + the.mantissa_bits);
    for (int code = 0; code < sign; ++code) {
      const double positive = decode(format, static_cast<std::uint64_t>(code));
      const double negative = decode(format, static_cast<std::uint64_t>(code | sign));
      if (code < the.finite) {
        ASSERT_EQ(positive, value_by_definition(format, code));
        ASSERT_EQ(negative, -positive);
        ASSERT_TRUE(std::signbit(negative));
        ASSERT_EQ(encode(format, positive), static_cast<std::uint64_t>(code));
        ASSERT_EQ(encode(format, negative), static_cast<std::uint64_t>(code | sign));
      } else if (code == the.finite && format != NumberFormat::e4m3) {
        ASSERT_EQ(positive, std::numeric_limits<double>::infinity());
      } else {
        ASSERT_TRUE(std::isnan(positive)) << code;
      }
    }
  }
}

TEST(Convert, RoundsToTheNearestByASearch) {
  for (const NumberFormat format : kNarrow) {
    const std::vector<double> values = magnitudes(format);
    const int beyond = static_cast<int>(values.size()) - 1;
    const Definition the = definition(format);
    const bool always_saturates = bits_of(format) < 8 || the.finite == 32;
    for (const Rounding rounding : kRoundings) {
      for (const bool satfinite : {false, true}) {
        for_many_floats([&](float value) {
          if (std::isnan(value)) {
            return;
          }
          const bool negative = std::signbit(value);
          int code = nearest(values, std::fabs(value), negative, rounding);
          const bool toward_zero =
              rounding == Rounding::zero || rounding == (negative ? Rounding::up : Rounding::down);
          if (code >= beyond) {
            const bool stays =
                satfinite || always_saturates || (toward_zero && std::isfinite(value));
            code = stays ? beyond - 1 : beyond;
          }
          const int sign = negative ? 1 << (the.exponent_bits + the.mantissa_bits) : 0;
          ASSERT_EQ(encode(format, value, {rounding, satfinite}),
                    static_cast<std::uint64_t>(code | sign))
              << value << " rounding " << static_cast<int>(rounding);
        });
      }
    }
  }
}

TEST(Convert, IsCudasToFp8AndFp4) {
  for_many_floats([](float value) {
    const auto fp8 = [&](const char* opcode) { return run(opcode, bits(value), bits(-value)); };
    const auto expected = [](float v, __nv_fp8_interpretation_t kind) {
      return __nv_cvt_float_to_fp8(v, __NV_SATFINITE, kind);
    };
    if (!std::isnan(value)) {
      ASSERT_EQ(fp8("cvt.rn.satfinite.e4m3x2.f32"),
                expected(value, __NV_E4M3) << 8 | expected(-value, __NV_E4M3));
      ASSERT_EQ(fp8("cvt.rn.satfinite.e5m2x2.f32"),
                expected(value, __NV_E5M2) << 8 | expected(-value, __NV_E5M2));
      ASSERT_EQ(run("cvt.rn.satfinite.e2m1x2.f32", bits(value), 0) >> 4,
                __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest));
      if (value >= 0) {
        ASSERT_EQ(run("cvt.rp.satfinite.ue8m0x2.f32", bits(value), 0) >> 8,
                  __nv_cvt_float_to_e8m0(value, __NV_SATFINITE, cudaRoundPosInf))
            << value;
        ASSERT_EQ(run("cvt.rz.satfinite.ue8m0x2.f32", bits(value), 0) >> 8,
                  __nv_cvt_float_to_e8m0(value, __NV_SATFINITE, cudaRoundZero))
            << value;
      }
    }
  });
}

TEST(Convert, WidensEveryCode) {
  for (std::uint64_t code = 0; code < 1u << 16; ++code) {
    const auto half = static_cast<float>(decode(NumberFormat::f16, code));
    if (!std::isnan(half)) {
      ASSERT_EQ(run("cvt.f32.f16", code), bits(half));
      ASSERT_EQ(run("cvt.f64.f16", code), bits(static_cast<double>(half)));
    }
    const float bf16 = std::bit_cast<float>(static_cast<std::uint32_t>(code << 16));
    if (!std::isnan(bf16)) {
      ASSERT_EQ(run("cvt.f32.bf16", code), code << 16);
      ASSERT_EQ(decode(NumberFormat::bf16, code), bf16);
    }
    const std::uint64_t pair = run("cvt.rn.f16x2.e4m3x2", code);
    for (const int lane : {0, 1}) {
      const double expected = decode(NumberFormat::e4m3, code >> (8 * lane) & 0xff);
      const double got = decode(NumberFormat::f16, pair >> (16 * lane) & 0xffff);
      ASSERT_TRUE(expected == got || (std::isnan(expected) && std::isnan(got)));
    }
  }
}

TEST(Convert, NarrowsDoublesAndIntegersAsTheHostDoes) {
  const std::array<std::pair<int, std::string>, 4> modes = {
      {{FE_TONEAREST, "rn"}, {FE_TOWARDZERO, "rz"}, {FE_DOWNWARD, "rm"}, {FE_UPWARD, "rp"}}};
  std::uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const volatile auto integer = static_cast<std::int64_t>(state) >> (i % 60);
    const auto unsigned_integer = static_cast<std::uint64_t>(integer);
    const volatile auto real = std::ldexp(static_cast<double>(integer), i % 300 - 200);
    for (const auto& [mode, name] : modes) {
      std::fesetround(mode);
      const volatile auto narrow = static_cast<float>(real);
      const volatile auto from_integer = static_cast<float>(integer);
      const volatile auto to_double = static_cast<double>(integer);
      const volatile double integral = std::nearbyint(real);
      std::fesetround(FE_TONEAREST);
      ASSERT_EQ(run("cvt." + name + ".f32.f64", bits(real)), bits(narrow));
      ASSERT_EQ(run("cvt." + name + ".f32.s64", unsigned_integer), bits(from_integer));
      ASSERT_EQ(run("cvt." + name + ".f64.s64", unsigned_integer), bits(to_double));
      ASSERT_EQ(run("cvt." + name + "i.f64.f64", bits(real)), bits(integral));
      const double clamped = std::clamp(double{integral}, -2147483648.0, 2147483647.0);
      ASSERT_EQ(run("cvt." + name + "i.s32.f64", bits(real)),
                static_cast<std::uint64_t>(static_cast<std::int64_t>(clamped)));
    }
  }
}

TEST(Convert, IntegersWidenTruncateAndSaturate) {
  EXPECT_EQ(run("cvt.u32.u16", 0xdead8001), 0x8001u);
  EXPECT_EQ(run("cvt.s32.s16", 0x8001), 0xffffffffffff8001u);
  EXPECT_EQ(run("cvt.s64.s32", 0x80000000), 0xffffffff80000000u);
  EXPECT_EQ(run("cvt.u64.u32", 0xffffffff80000000), 0x80000000u);
  EXPECT_EQ(run("cvt.u64.s32", 0x80000000), 0xffffffff80000000u);
  EXPECT_EQ(run("cvt.u8.u32", 0x1ff), 0xffu);
  EXPECT_EQ(run("cvt.sat.u8.s32", 0xffffffff), 0u);
  EXPECT_EQ(run("cvt.sat.u8.s32", 300), 255u);
  EXPECT_EQ(run("cvt.sat.s8.s32", 0xffffff00), static_cast<std::uint64_t>(-128));
  EXPECT_EQ(run("cvt.rzi.u32.f32", bits(-1.5f)), 0u);
  EXPECT_EQ(run("cvt.rzi.s32.f32", bits(3e9f)), 0x7fffffffu);
  EXPECT_EQ(run("cvt.rni.s32.f32", bits(2.5f)), 2u);
  EXPECT_EQ(run("cvt.rzi.s32.f32", bits(std::nanf(""))), 0u);
  EXPECT_EQ(run("cvt.rzi.s64.f32", bits(std::nanf(""))), std::uint64_t{1} << 63);
}

TEST(Convert, ModifiersClamp) {
  EXPECT_EQ(run("cvt.rn.relu.bf16x2.f32", bits(-1.0f), bits(1.0f)), 0x00003f80u);
  EXPECT_EQ(run("cvt.rn.bf16x2.f32", bits(-1.0f), bits(1.0f)), 0xbf803f80u);
  EXPECT_EQ(run("cvt.sat.f32.f32", bits(1.5f)), bits(1.0f));
  EXPECT_EQ(run("cvt.sat.f32.f32", bits(std::nanf(""))), 0u);
  EXPECT_EQ(run("cvt.sat.f32.f32", bits(0.75f)), bits(0.75f));
  EXPECT_EQ(run("cvt.ftz.f32.f32", 0x80000001), 0x80000000u);
  EXPECT_EQ(run("cvt.rn.ftz.f32.f64", bits(1e-40)), 0u);
  EXPECT_EQ(run("cvt.rna.tf32.f32", 0x3f801000), 0x3f802000u);
  EXPECT_EQ(run("cvt.rn.bf16.f32", bits(std::nanf(""))), 0x7fffu);
  EXPECT_EQ(run("cvt.rn.f16.f32", bits(1e6f)), 0x7c00u);
  EXPECT_EQ(run("cvt.rn.satfinite.f16.f32", bits(1e6f)), 0x7bffu);
}

TEST(Convert, RefusesOtherOpcodes) {
  for (const char* opcode : {"add.f32", "cvt.rn.f32", "cvt.pack.sat.u8.s32.b32", "cvt.f32.f16.f16",
                             "cvt.rq.f32.f16", "cvt.rs.satfinite.e4m3x4.f32"}) {
    EXPECT_FALSE(parse_conversion(opcode)) << opcode;
  }
}

TEST(Evaluate, IsTheExactFunctionRounded) {
  EXPECT_EQ(evaluate(Function::ex2, 3.0f), 8.0f);
  EXPECT_EQ(evaluate(Function::ex2, -std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_EQ(evaluate(Function::ex2, -130.0f), std::ldexp(1.0f, -130));
  EXPECT_EQ(evaluate(Function::ex2, -130.0f, true), 0.0f);
  EXPECT_EQ(evaluate(Function::lg2, 0.0f), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(evaluate(Function::rcp, -0.0f), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(evaluate(Function::rsqrt, 4.0f), 0.5f);
  EXPECT_EQ(evaluate(Function::sqrt, 2.0f), std::sqrt(2.0f));
  EXPECT_EQ(evaluate(Function::tanh, 100.0f), 1.0f);
  EXPECT_TRUE(std::signbit(flush_subnormal(-1e-40f)));
}

}  // namespace
}  // namespace tilewright::emulator
