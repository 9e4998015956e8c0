#include "emulator/convert.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

namespace tilewright::emulator {
namespace {

// How a floating-point format stores its values.
struct Layout {
  int exponent_bits;
  int mantissa_bits;
  std::uint64_t largest;  // the bits of the largest finite value
  std::uint64_t nan;      // the bits of the canonical NaN
  bool has_infinity = true;
  bool overflows = true;  // to largest + 1, which is infinity or NaN; otherwise it saturates
  int shift = 0;          // zeros below the mantissa

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int sign_bit() const { return exponent_bits + mantissa_bits; }
};

Layout layout_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::f64:
      return {11, 52, 0x7fefffffffffffff, 0x7ff8000000000000};
    case NumberFormat::f32:
      return {8, 23, 0x7f7fffff, 0x7fffffff};
    case NumberFormat::tf32:
      return {
          .exponent_bits = 8, .mantissa_bits = 10, .largest = 0x3fbff, .nan = 0x3ffff, .shift = 13};
    case NumberFormat::f16:
      return {5, 10, 0x7bff, 0x7fff};
    case NumberFormat::bf16:
      return {8, 7, 0x7f7f, 0x7fff};
    case NumberFormat::e4m3:
      return {4, 3, 0x7e, 0x7f, false};
    case NumberFormat::e5m2:
      return {5, 2, 0x7b, 0x7f};
    case NumberFormat::e2m1:
      return {2, 1, 0x7, 0x7, false, false};
    case NumberFormat::e2m3:
      return {2, 3, 0x1f, 0x1f, false, false};
    default:
      return {3, 2, 0x1f, 0x1f, false, false};  // e3m2
  }
}

// A number as significand x 2^exponent. The significand of a finite number has its top bit set.
struct Number {
  enum class Kind : std::uint8_t { zero, finite, infinity, nan };
  Kind kind = Kind::zero;
  bool negative = false;
  int exponent = 0;
  std::uint64_t significand = 0;
};

Number finite(bool negative, int exponent, std::uint64_t significand) {
  if (significand == 0) {
    return {.negative = negative};
  }
  const int zeros = std::countl_zero(significand);
  return {Number::Kind::finite, negative, exponent - zeros, significand << zeros};
}

Number unpack_scale(std::uint64_t bits) {  // ue8m0
  if (bits == 0xff) {
    return {.kind = Number::Kind::nan};
  }
  return finite(false, static_cast<int>(bits) - 127, 1);
}

Number unpack(NumberFormat format, std::uint64_t bits) {
  if (format == NumberFormat::ue8m0) {
    return unpack_scale(bits & 0xff);
  }
  const Layout layout = layout_of(format);
  bits >>= layout.shift;
  const bool negative = bits >> layout.sign_bit() & 1;
  const std::uint64_t magnitude = bits & ((std::uint64_t{1} << layout.sign_bit()) - 1);
  if (magnitude > layout.largest) {
    const bool infinite = layout.has_infinity && magnitude == layout.largest + 1;
    return {.kind = infinite ? Number::Kind::infinity : Number::Kind::nan, .negative = negative};
  }
  const std::uint64_t one = std::uint64_t{1} << layout.mantissa_bits;
  const int exponent = static_cast<int>(magnitude >> layout.mantissa_bits);
  const std::uint64_t significand = magnitude % one + (exponent > 0 ? one : 0);
  return finite(negative, std::max(exponent, 1) - layout.bias() - layout.mantissa_bits,
                significand);
}

Number unpack_integer(NumberFormat format, std::uint64_t bits) {
  const int unused = 64 - bits_of(format);
  const bool is_signed = format >= NumberFormat::s8;
  if (!is_signed) {
    return finite(false, 0, bits << unused >> unused);
  }
  const std::int64_t value = static_cast<std::int64_t>(bits << unused) >> unused;
  const auto magnitude = static_cast<std::uint64_t>(value);
  return finite(value < 0, 0, value < 0 ? -magnitude : magnitude);
}

// significand / 2^shift as an integer; shift > 0.
std::uint64_t shift_and_round(std::uint64_t significand, int shift, Rounding rounding,
                              bool negative) {
  const std::uint64_t kept = shift < 64 ? significand >> shift : 0;
  const std::uint64_t half =
      shift <= 64 ? std::uint64_t{1} << (shift - 1) : std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t rest =
      shift < 64 ? significand & ((std::uint64_t{1} << shift) - 1) : significand;
  switch (rounding) {
    case Rounding::nearest_even:
      return kept + (shift <= 64 && (rest > half || (rest == half && kept % 2 == 1)));
    case Rounding::nearest_away:
      return kept + (shift <= 64 && rest >= half);
    case Rounding::zero:
      return kept;
    case Rounding::down:
      return kept + (rest != 0 && negative);
    case Rounding::up:
      return kept + (rest != 0 && !negative);
  }
  return kept;
}

bool rounds_to_zero(Rounding rounding, bool negative) {
  return rounding == Rounding::zero || rounding == (negative ? Rounding::up : Rounding::down);
}

std::uint64_t pack_scale(const Number& number, EncodeOptions options) {  // ue8m0
  const int largest = options.satfinite ? 254 : 255;                     // 255 is NaN
  if (number.kind == Number::Kind::nan) {
    return 0xff;
  }
  if (number.kind == Number::Kind::zero) {
    return 0;
  }
  if (number.kind == Number::Kind::infinity) {
    return static_cast<std::uint64_t>(largest);
  }
  const std::uint64_t rounded = shift_and_round(number.significand, 63, options.rounding, false);
  const int exponent = number.exponent + 63 + static_cast<int>(rounded) - 1 + 127;
  return static_cast<std::uint64_t>(std::clamp(exponent, 0, largest));
}

// The bits of a finite number without its sign; beyond layout.largest if it overflows.
std::uint64_t pack_magnitude(const Layout& layout, const Number& number, Rounding rounding) {
  const int smallest = 1 - layout.bias();
  const int exponent = std::max(number.exponent + 63, smallest);
  if (exponent > static_cast<int>(layout.largest >> layout.mantissa_bits) - layout.bias()) {
    return layout.largest + 1;
  }
  const std::uint64_t rounded =
      shift_and_round(number.significand, exponent - layout.mantissa_bits - number.exponent,
                      rounding, number.negative);
  // The leading one of a normal number adds 1 to the exponent's field.
  return (static_cast<std::uint64_t>(exponent - smallest) << layout.mantissa_bits) + rounded;
}

std::uint64_t pack(NumberFormat format, const Number& number, EncodeOptions options) {
  if (format == NumberFormat::ue8m0) {
    return pack_scale(number, options);
  }
  const Layout layout = layout_of(format);
  if (number.kind == Number::Kind::nan) {
    return layout.nan << layout.shift;
  }
  const bool saturates = options.satfinite || !layout.overflows;
  std::uint64_t bits = 0;
  if (number.kind == Number::Kind::infinity) {
    bits = saturates ? layout.largest : layout.largest + 1;
  } else if (number.kind == Number::Kind::finite) {
    bits = pack_magnitude(layout, number, options.rounding);
    if (bits > layout.largest) {
      const bool stays = saturates || rounds_to_zero(options.rounding, number.negative);
      bits = stays ? layout.largest : layout.largest + 1;
    }
  }
  return (bits | std::uint64_t{number.negative} << layout.sign_bit()) << layout.shift;
}

// The magnitude of `number`, and whether it fits 64 bits. The number is finite or zero.
std::pair<std::uint64_t, bool> integral_magnitude(const Number& number, Rounding rounding) {
  if (number.kind == Number::Kind::zero) {
    return {0, true};
  }
  if (number.exponent >= 0) {
    return {number.significand, number.exponent == 0};
  }
  return {shift_and_round(number.significand, -number.exponent, rounding, number.negative), true};
}

Number round_to_integral(const Number& number, Rounding rounding) {
  if (number.kind != Number::Kind::finite || number.exponent >= 0) {
    return number;
  }
  return finite(number.negative, 0, integral_magnitude(number, rounding).first);
}

// The nearest integer of the format; NaN as PTX has it.
std::uint64_t clamp_to_integer(NumberFormat format, NumberFormat from, const Number& number,
                               Rounding rounding) {
  const int bits = bits_of(format);
  const bool is_signed = format >= NumberFormat::s8;
  const std::uint64_t top = std::uint64_t{1} << (bits - 1);
  const std::uint64_t smallest = is_signed ? -top : 0;  // sign-extended
  const std::uint64_t largest = is_signed ? top - 1 : top + (top - 1);
  if (number.kind == Number::Kind::nan) {
    const std::uint64_t wide_nan = is_signed ? smallest : top;
    return bits == 64 || from == NumberFormat::f64 ? wide_nan : 0;
  }
  if (number.kind == Number::Kind::infinity) {
    return number.negative ? smallest : largest;
  }
  const auto [magnitude, fits] = integral_magnitude(number, rounding);
  if (number.negative) {
    return !fits || magnitude > -smallest ? smallest : -magnitude;
  }
  return !fits || magnitude > largest ? largest : magnitude;
}

std::uint64_t truncate(NumberFormat format, std::uint64_t value) {
  const int unused = 64 - bits_of(format);
  if (format >= NumberFormat::s8) {
    return static_cast<std::uint64_t>(static_cast<std::int64_t>(value << unused) >> unused);
  }
  return value << unused >> unused;
}

bool is_subnormal_f32(std::uint64_t bits) {
  return (bits & 0x7f800000) == 0 && (bits & 0x007fffff) != 0;
}

std::uint64_t flushed(NumberFormat format, bool ftz, std::uint64_t bits) {
  return ftz && format == NumberFormat::f32 && is_subnormal_f32(bits) ? bits & 0x80000000 : bits;
}

// .sat and .relu of a floating-point result.
Number clamped(const Conversion& conversion, const Number& number) {
  const bool nan = number.kind == Number::Kind::nan;
  if (conversion.sat) {
    const Number one = finite(false, 0, 1);
    const bool above_one = number.kind == Number::Kind::infinity ||
                           (number.kind == Number::Kind::finite && number.exponent >= -63);
    return nan || number.negative ? Number{} : above_one ? one : number;
  }
  return conversion.relu && number.negative && !nan ? Number{} : number;
}

std::uint64_t convert_one(const Conversion& conversion, std::uint64_t bits) {
  const NumberFormat from = conversion.from;
  const NumberFormat to = conversion.to;
  if (is_integer(from) && is_integer(to) && !conversion.sat) {
    return truncate(to, truncate(from, bits));
  }
  const Number number = is_integer(from) ? unpack_integer(from, bits)
                                         : unpack(from, flushed(from, conversion.ftz, bits));
  if (is_integer(to)) {
    return clamp_to_integer(to, from, number, conversion.rounding);
  }
  const Number integral =
      conversion.to_integral ? round_to_integral(number, conversion.rounding) : number;
  const std::uint64_t result =
      pack(to, clamped(conversion, integral), {conversion.rounding, conversion.satfinite});
  return flushed(to, conversion.ftz, result);
}

struct NamedFormat {
  std::string_view name;
  NumberFormat format;
};

constexpr std::array<NamedFormat, 19> kFormats = {{
    {"f64", NumberFormat::f64},   {"f32", NumberFormat::f32},     {"tf32", NumberFormat::tf32},
    {"f16", NumberFormat::f16},   {"bf16", NumberFormat::bf16},   {"e4m3", NumberFormat::e4m3},
    {"e5m2", NumberFormat::e5m2}, {"e2m1", NumberFormat::e2m1},   {"e2m3", NumberFormat::e2m3},
    {"e3m2", NumberFormat::e3m2}, {"ue8m0", NumberFormat::ue8m0}, {"u8", NumberFormat::u8},
    {"u16", NumberFormat::u16},   {"u32", NumberFormat::u32},     {"u64", NumberFormat::u64},
    {"s8", NumberFormat::s8},     {"s16", NumberFormat::s16},     {"s32", NumberFormat::s32},
    {"s64", NumberFormat::s64},
}};

std::optional<Rounding> rounding_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, Rounding>, 5> kNames = {{
      {"rn", Rounding::nearest_even},
      {"rna", Rounding::nearest_away},
      {"rz", Rounding::zero},
      {"rm", Rounding::down},
      {"rp", Rounding::up},
  }};
  const auto* const found = std::find_if(kNames.begin(), kNames.end(),
                                         [&](const auto& named) { return named.first == name; });
  return found == kNames.end() ? std::nullopt : std::optional(found->second);
}

// Takes one modifier of an opcode into the conversion; false if there is no such modifier.
bool take_modifier(std::string_view modifier, Conversion& conversion) {
  if (modifier == "ftz") {
    conversion.ftz = true;
  } else if (modifier == "sat") {
    conversion.sat = true;
  } else if (modifier == "satfinite") {
    conversion.satfinite = true;
  } else if (modifier == "relu") {
    conversion.relu = true;
  } else if (const auto rounding = rounding_named(modifier)) {
    conversion.rounding = *rounding;
  } else if (const auto integral = modifier.ends_with('i')
                                       ? rounding_named(modifier.substr(0, modifier.size() - 1))
                                       : std::nullopt) {
    conversion.rounding = *integral;
    conversion.to_integral = true;
  } else {
    return false;
  }
  return true;
}

std::string_view take_token(std::string_view& rest) {
  const std::size_t dot = rest.find('.');
  const std::string_view token = rest.substr(0, dot);
  rest = dot == std::string_view::npos ? std::string_view{} : rest.substr(dot + 1);
  return token;
}

}  // namespace

bool is_integer(NumberFormat format) { return format >= NumberFormat::u8; }

int bits_of(NumberFormat format) {
  constexpr std::array<int, 19> kBits = {64, 32, 32, 16, 16, 8, 8,  4,  8, 8,
                                         8,  8,  16, 32, 64, 8, 16, 32, 64};
  return kBits[static_cast<std::size_t>(format)];
}

std::optional<NumberFormat> format_named(std::string_view name) {
  const auto* const found = std::find_if(kFormats.begin(), kFormats.end(),
                                         [&](const auto& named) { return named.name == name; });
  return found == kFormats.end() ? std::nullopt : std::optional(found->format);
}

double decode(NumberFormat format, std::uint64_t bits) {
  const Number number = unpack(format, bits);
  double magnitude = 0.0;
  if (number.kind == Number::Kind::nan) {
    magnitude = std::numeric_limits<double>::quiet_NaN();
  } else if (number.kind == Number::Kind::infinity) {
    magnitude = std::numeric_limits<double>::infinity();
  } else if (number.kind == Number::Kind::finite) {
    magnitude = std::ldexp(static_cast<double>(number.significand), number.exponent);
  }
  return number.negative ? -magnitude : magnitude;
}

std::uint64_t encode(NumberFormat format, double value, EncodeOptions options) {
  return pack(format, unpack(NumberFormat::f64, std::bit_cast<std::uint64_t>(value)), options);
}

std::optional<Conversion> parse_conversion(std::string_view opcode) {
  Conversion conversion;
  if (take_token(opcode) != "cvt") {
    return std::nullopt;
  }
  std::array<std::string_view, 2> names;
  std::size_t found = 0;
  while (!opcode.empty()) {
    const std::string_view token = take_token(opcode);
    if (found > 0 || !take_modifier(token, conversion)) {
      if (found == names.size()) {
        return std::nullopt;
      }
      names[found++] = token;
    }
  }
  std::array<std::optional<NumberFormat>, 2> formats;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (names[i].ends_with("x2")) {
      conversion.lanes = 2;
      names[i].remove_suffix(2);
    }
    formats[i] = format_named(names[i]);
  }
  if (!formats[0] || !formats[1]) {
    return std::nullopt;
  }
  conversion.to = *formats[0];
  conversion.from = *formats[1];
  return conversion;
}

std::uint64_t convert(const Conversion& conversion, std::uint64_t a, std::uint64_t b) {
  if (conversion.lanes == 1) {
    return convert_one(conversion, a);
  }
  const bool two_operands = conversion.from == NumberFormat::f32;
  const std::uint64_t high = two_operands ? a : a >> bits_of(conversion.from);
  const std::uint64_t low = two_operands ? b : a;
  return convert_one(conversion, high) << bits_of(conversion.to) | convert_one(conversion, low);
}

float flush_subnormal(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

float evaluate(Function function, float x, bool ftz) {
  const double argument = ftz ? flush_subnormal(x) : x;
  const double result = [&] {
    switch (function) {
      case Function::ex2:
        return std::exp2(argument);
      case Function::lg2:
        return std::log2(argument);
      case Function::rcp:
        return 1.0 / argument;
      case Function::sqrt:
        return std::sqrt(argument);
      case Function::rsqrt:
        return 1.0 / std::sqrt(argument);
      case Function::tanh:
        return std::tanh(argument);
      case Function::sin:
        return std::sin(argument);
      case Function::cos:
        return std::cos(argument);
    }
    return argument;
  }();
  const auto rounded = static_cast<float>(result);
  return ftz ? flush_subnormal(rounded) : rounded;
}

}  // namespace tilewright::emulator
