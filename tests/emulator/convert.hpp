// Numbers of PTX: their formats, and every `cvt` between them.
//
// Source    PTX ISA, "Data Movement and Conversion Instructions: cvt"; OCP 8-bit Floating Point
//           Specification (E4M3, E5M2); OCP Microscaling Formats (E2M1, E2M3, E3M2, UE8M0).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace tilewright::emulator {

// clang-format off
enum class NumberFormat : std::uint8_t {
  f64, f32, tf32, f16, bf16, e4m3, e5m2, e2m1, e2m3, e3m2, ue8m0,
  u8, u16, u32, u64, s8, s16, s32, s64,
};
// clang-format on

// rni, rzi, rmi and rpi are rn, rz, rm and rp to an integer. `rna` rounds ties away from zero.
enum class Rounding : std::uint8_t { nearest_even, nearest_away, zero, down, up };

bool is_integer(NumberFormat format);
int bits_of(NumberFormat format);  // 8 for e2m3 and e3m2, which lie in bytes; 4 for e2m1

// "f32", "bf16", "e4m3", ... as PTX writes them. A trailing "x2" is not part of it.
std::optional<NumberFormat> format_named(std::string_view name);

// The value of a floating-point format. Exact.
double decode(NumberFormat format, std::uint64_t bits);

struct EncodeOptions {
  Rounding rounding = Rounding::nearest_even;
  bool satfinite = false;  // beyond the largest finite value: that value. NaN: the format's NaN
};

// The nearest value of a floating-point format. Formats without infinity (e4m3: NaN; e2m1, e2m3,
// e3m2, which lack NaN too: always satfinite; ue8m0) do as PTX says. NaN becomes the canonical NaN.
std::uint64_t encode(NumberFormat format, double value, EncodeOptions options = {});

// A `cvt`. Packed ones convert `lanes` values: d = {cvt(a), cvt(b)} with a in the upper half if the
// source is f32, or both halves of a.
struct Conversion {
  NumberFormat to = NumberFormat::f32;
  NumberFormat from = NumberFormat::f32;
  Rounding rounding = Rounding::nearest_even;
  bool to_integral = false;  // .rni and so on between floating-point formats
  bool ftz = false;          // subnormal f32 sources and results become zeros of the same sign
  bool sat = false;          // integers: clamp to the range of `to`; floats: clamp to [0, 1]
  bool satfinite = false;
  bool relu = false;
  int lanes = 1;
};

// Reads an opcode, "cvt.rn.satfinite.relu.e4m3x2.f32". Nothing if it is not one.
std::optional<Conversion> parse_conversion(std::string_view opcode);

// The result in the low bits. `a` and `b` hold the operands in their low bits; `b` counts only for
// a packed conversion from f32. A signed integer result is sign-extended to 64 bits, so that the
// caller may store it in a wider register, as PTX does.
std::uint64_t convert(const Conversion& conversion, std::uint64_t a, std::uint64_t b = 0);

// The approximate functions of PTX (ex2.approx and so on) as the exact results rounded to f32.
// Hardware differs in the last bits. With `ftz`, subnormal arguments and results become zeros.
enum class Function : std::uint8_t { ex2, lg2, rcp, sqrt, rsqrt, tanh, sin, cos };
float evaluate(Function function, float x, bool ftz = false);

// A subnormal as the zero of its sign; anything else as it is.
float flush_subnormal(float x);

}  // namespace tilewright::emulator
