// Integers and floating-point numbers of 32 and 64 bits: add, mul, fma, div, ex2, setp and so on.
#include <cfenv>
#include <cmath>
#include <limits>

#include "emulator/ops.hpp"

namespace tilewright::emulator {
namespace {

__extension__ using Signed128 = __int128;
__extension__ using Unsigned128 = unsigned __int128;

// An integer as what its arithmetic wraps around in.
template <typename T>
using Wrapping = std::make_unsigned_t<std::common_type_t<T, std::int32_t>>;

template <typename T>
constexpr auto kAdd = [](T a, T b) -> T {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) + static_cast<Wrapping<T>>(b));
  } else {
    return a + b;
  }
};
template <typename T>
constexpr auto kSub = [](T a, T b) -> T {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) - static_cast<Wrapping<T>>(b));
  } else {
    return a - b;
  }
};
template <typename T>
constexpr auto kMul = [](T a, T b) -> T {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<Wrapping<T>>(a) * static_cast<Wrapping<T>>(b));
  } else {
    return a * b;
  }
};
template <typename T>
constexpr auto kMin = [](T a, T b) -> T {
  if constexpr (std::is_floating_point_v<T>) {
    if (a == b) {
      return std::signbit(a) ? a : b;
    }
    return std::isnan(a) ? b : std::isnan(b) || a < b ? a : b;
  } else {
    return a < b ? a : b;
  }
};
template <typename T>
constexpr auto kMax = [](T a, T b) -> T {
  if constexpr (std::is_floating_point_v<T>) {
    if (a == b) {
      return std::signbit(a) ? b : a;
    }
    return std::isnan(a) ? b : std::isnan(b) || a > b ? a : b;
  } else {
    return a > b ? a : b;
  }
};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr auto kMinNan = [](float a, float b) {
  return std::isnan(a) || std::isnan(b) ? kNan : kMin<float>(a, b);
};
constexpr auto kMaxNan = [](float a, float b) {
  return std::isnan(a) || std::isnan(b) ? kNan : kMax<float>(a, b);
};
template <typename T>
constexpr auto kFma = [](T a, T b, T c) -> T { return std::fma(a, b, c); };

template <typename T>
using Twice = std::conditional_t<
    std::is_signed_v<T>,
    std::conditional_t<sizeof(T) == 2, std::int32_t,
                       std::conditional_t<sizeof(T) == 4, std::int64_t, Signed128>>,
    std::conditional_t<sizeof(T) == 2, std::uint32_t,
                       std::conditional_t<sizeof(T) == 4, std::uint64_t, Unsigned128>>>;
template <typename T>
constexpr auto kMulHi =
    [](T a, T b) -> T { return static_cast<T>((static_cast<Twice<T>>(a) * b) >> (8 * sizeof(T))); };
template <typename T>
constexpr auto kMulWide = [](T a, T b) -> Twice<T> { return static_cast<Twice<T>>(a) * b; };
template <typename T>
constexpr auto kDiv = [](T a, T b) -> T {
  if constexpr (std::is_floating_point_v<T>) {
    return a / b;
  } else {
    if (b == 0) {
      return static_cast<T>(-1);
    }
    if constexpr (std::is_signed_v<T>) {
      if (b == -1) {
        return kSub<T>(0, a);
      }
    }
    return static_cast<T>(a / b);
  }
};
template <typename T>
constexpr auto kRem = [](T a, T b) -> T {
  if (b == 0) {
    return a;
  }
  if constexpr (std::is_signed_v<T>) {
    if (b == -1) {
      return 0;
    }
  }
  return static_cast<T>(a % b);
};

// a operation b in another rounding than to nearest.
enum class Operation { add, sub, mul, fma, div, sqrt };

template <typename T, Operation kOperation, int kRounding>
[[gnu::noinline]] T rounded(T a, T b, T c) {
  volatile T x = a;
  volatile T y = b;
  volatile T z = c;
  std::fesetround(kRounding);
  volatile T result;
  if constexpr (kOperation == Operation::add) {
    result = x + y;
  } else if constexpr (kOperation == Operation::sub) {
    result = x - y;
  } else if constexpr (kOperation == Operation::mul) {
    result = x * y;
  } else if constexpr (kOperation == Operation::div) {
    result = x / y;
  } else if constexpr (kOperation == Operation::sqrt) {
    result = std::sqrt(x);
  } else {
    result = std::fma(static_cast<T>(x), static_cast<T>(y), static_cast<T>(z));
  }
  std::fesetround(FE_TONEAREST);
  return result;
}

template <typename T, Operation kOperation, int kRounding>
Handler rounded_handler() {
  if constexpr (kOperation == Operation::fma) {
    return ternary<T, [](T a, T b, T c) { return rounded<T, kOperation, kRounding>(a, b, c); }>;
  } else if constexpr (kOperation == Operation::sqrt) {
    return unary<T, [](T a) { return rounded<T, kOperation, kRounding>(a, 0, 0); }>;
  } else {
    return binary<T, [](T a, T b) { return rounded<T, kOperation, kRounding>(a, b, 0); }>;
  }
}

template <typename T, Operation kOperation>
Handler directed(const Statement& s) {
  if (s.has("rz")) return rounded_handler<T, kOperation, FE_TOWARDZERO>();
  if (s.has("rm")) return rounded_handler<T, kOperation, FE_DOWNWARD>();
  if (s.has("rp")) return rounded_handler<T, kOperation, FE_UPWARD>();
  return nullptr;
}

// Results clamped to [0, 1] (.sat), or without subnormals (.ftz), after any handler of f32.
void after(Warp& warp, const Instruction& in, LaneMask lanes, bool saturate, bool flush) {
  auto* const d = warp.row<float>(in.d);
  for_lanes(lanes, [&](int lane) {
    float x = get<float>(d, lane);
    if (saturate) {
      x = x > 0 ? std::min(x, 1.0f) : 0.0f;
    }
    put<float>(d, lane, flush ? flush_subnormal(x) : x);
  });
}

template <Handler kHandler, bool kSaturate, bool kFlush>
void with_after(Warp& warp, const Instruction& in, LaneMask lanes) {
  kHandler(warp, in, lanes);
  after(warp, in, lanes, kSaturate, kFlush);
}

template <Handler kHandler>
Handler with_modifiers(const Statement& s) {
  const bool saturate = s.has("sat");
  const bool flush = s.has("ftz");
  if (saturate) return flush ? with_after<kHandler, true, true> : with_after<kHandler, true, false>;
  return flush ? with_after<kHandler, false, true> : kHandler;
}

Handler float_handler(const Statement& s, std::string_view name, std::string_view type) {
  const auto choose = [&]<typename T, Operation kOperation, Handler kNearest>() -> Handler {
    if (const Handler handler = directed<T, kOperation>(s)) {
      return handler;
    }
    return std::is_same_v<T, float> ? with_modifiers<kNearest>(s) : kNearest;
  };
  const auto of_type = [&]<typename T>() -> Handler {
    if (name == "add") return choose.template operator()<T, Operation::add, binary<T, kAdd<T>>>();
    if (name == "sub") return choose.template operator()<T, Operation::sub, binary<T, kSub<T>>>();
    if (name == "mul") return choose.template operator()<T, Operation::mul, binary<T, kMul<T>>>();
    if (name == "fma" || name == "mad") {
      return choose.template operator()<T, Operation::fma, ternary<T, kFma<T>>>();
    }
    if (name == "div") return choose.template operator()<T, Operation::div, binary<T, kDiv<T>>>();
    if (name == "sqrt") {
      return choose.template
      operator()<T, Operation::sqrt, unary<T, [](T a) -> T { return std::sqrt(a); }>>();
    }
    if (name == "rcp") return unary<T, [](T a) -> T { return T{1} / a; }>;
    if (name == "rsqrt") {
      return unary<T, [](T a) -> T { return static_cast<T>(1.0 / std::sqrt(double{a})); }>;
    }
    if (name == "neg") return unary<T, [](T a) -> T { return -a; }>;
    if (name == "abs") return unary<T, [](T a) -> T { return std::fabs(a); }>;
    if (name == "copysign") return binary<T, [](T a, T b) -> T { return std::copysign(b, a); }>;
    return nullptr;
  };
  if (name == "min" || name == "max") {
    const bool is_min = name == "min";
    if (type == "f64") return is_min ? binary<double, kMin<double>> : binary<double, kMax<double>>;
    if (s.operands.size() == 4) {
      return is_min ? ternary<float, [](float a, float b,
                                        float c) { return kMin<float>(kMin<float>(a, b), c); }>
                    : ternary<float, [](float a, float b, float c) {
                        return kMax<float>(kMax<float>(a, b), c);
                      }>;
    }
    if (s.has("NaN")) return is_min ? binary<float, kMinNan> : binary<float, kMaxNan>;
    return is_min ? with_modifiers<binary<float, kMin<float>>>(s)
                  : with_modifiers<binary<float, kMax<float>>>(s);
  }
  return type == "f32" ? of_type.template operator()<float>()
                       : of_type.template operator()<double>();
}

template <Function kFunction, bool kFlush>
constexpr auto kEvaluate = [](float x) { return evaluate(kFunction, x, kFlush); };

Handler approximate(const Statement& s, std::string_view name) {
  const bool flush = s.has("ftz");
  const auto choose = [&]<Function kFunction>() -> Handler {
    return flush ? unary<float, kEvaluate<kFunction, true>>
                 : unary<float, kEvaluate<kFunction, false>>;
  };
  if (name == "ex2") return choose.operator()<Function::ex2>();
  if (name == "lg2") return choose.operator()<Function::lg2>();
  if (name == "sin") return choose.operator()<Function::sin>();
  if (name == "cos") return choose.operator()<Function::cos>();
  if (name == "tanh") return choose.operator()<Function::tanh>();
  if (s.has("approx") && name == "rcp") return choose.operator()<Function::rcp>();
  if (s.has("approx") && name == "rsqrt") return choose.operator()<Function::rsqrt>();
  if (s.has("approx") && name == "sqrt") return choose.operator()<Function::sqrt>();
  return nullptr;
}

Handler integer_handler(const Statement& s, std::string_view name, std::string_view type) {
  return by_integer(type, [&]<typename T>() -> Handler {
    if (name == "add") {
      if (s.has("sat")) {
        return binary<std::int32_t, [](std::int32_t a, std::int32_t b) {
          return static_cast<std::int32_t>(std::min<std::int64_t>(
              std::max<std::int64_t>(std::int64_t{a} + b, INT32_MIN), INT32_MAX));
        }>;
      }
      return binary<T, kAdd<T>>;
    }
    if (name == "sub") {
      if (s.has("sat")) {
        return binary<std::int32_t, [](std::int32_t a, std::int32_t b) {
          return static_cast<std::int32_t>(std::min<std::int64_t>(
              std::max<std::int64_t>(std::int64_t{a} - b, INT32_MIN), INT32_MAX));
        }>;
      }
      return binary<T, kSub<T>>;
    }
    if (name == "mul") {
      if (s.has("hi")) return binary<T, kMulHi<T>>;
      return binary<T, kMul<T>>;
    }
    if (name == "mad") {
      if (s.has("hi")) {
        return ternary<T, [](T a, T b, T c) { return kAdd<T>(kMulHi<T>(a, b), c); }>;
      }
      return ternary<T, [](T a, T b, T c) { return kAdd<T>(kMul<T>(a, b), c); }>;
    }
    if (name == "div") return binary<T, kDiv<T>>;
    if (name == "rem") return binary<T, kRem<T>>;
    if (name == "abs") {
      return unary<T, [](T a) -> T { return a < T{0} ? kSub<T>(0, a) : a; }>;
    }
    if (name == "neg") return unary<T, [](T a) -> T { return kSub<T>(0, a); }>;
    const bool relu = s.has("relu");
    if (name == "min") {
      return relu ? binary<T, [](T a, T b) { return kMax<T>(kMin<T>(a, b), 0); }>
                  : binary<T, kMin<T>>;
    }
    if (name == "max") {
      return relu ? binary<T, [](T a, T b) { return kMax<T>(kMax<T>(a, b), 0); }>
                  : binary<T, kMax<T>>;
    }
    if (name == "sad") {
      return ternary<T, [](T a, T b, T c) {
        return kAdd<T>(c, a < b ? kSub<T>(b, a) : kSub<T>(a, b));
      }>;
    }
    return nullptr;
  });
}

// mul.wide and mad.wide.
bool decode_wide(Builder& builder, const Statement& s, Instruction& in, std::string_view type) {
  const Width narrow = Width::w32;
  const Width wide = type.ends_with("32") ? Width::w64 : Width::w32;
  in.d = builder.destination(s.operands.at(0), wide);
  in.a = builder.source(s.operands.at(1), narrow, type);
  in.b = builder.source(s.operands.at(2), narrow, type);
  const bool is_mad = s.part(0) == "mad";
  if (is_mad) {
    in.c = builder.source(s.operands.at(3), wide);
  }
  const auto choose = [&]<typename T>() -> Handler {
    using W = Twice<T>;
    if (is_mad) {
      return ternary_of<T, T, W, [](T a, T b, W c) { return kAdd<W>(kMulWide<T>(a, b), c); }>;
    }
    return binary<T, kMulWide<T>>;
  };
  in.run = type == "u16"   ? choose.operator()<std::uint16_t>()
           : type == "s16" ? choose.operator()<std::int16_t>()
           : type == "u32" ? choose.operator()<std::uint32_t>()
           : type == "s32" ? choose.operator()<std::int32_t>()
                           : nullptr;
  return in.run != nullptr;
}

// Additions with a carry, of 32 and 64 bits: add.cc, addc, sub.cc, subc, mad.lo.cc, madc.
template <typename T, bool kSubtract, bool kTakes, bool kGives>
void with_carry(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const T a = get<T>(warp.row<T>(in.a), lane);
    T b = get<T>(warp.row<T>(in.b), lane);
    const unsigned carry_in = kTakes ? warp.carry >> lane & 1 : 0;
    Unsigned128 sum = 0;
    if constexpr (kSubtract) {
      sum = static_cast<Unsigned128>(a) - b - carry_in;
    } else {
      sum = static_cast<Unsigned128>(a) + b + carry_in;
    }
    put<T>(warp.row<T>(in.d), lane, static_cast<T>(sum));
    if constexpr (kGives) {
      const LaneMask bit = 1u << lane;
      const bool carry = (sum >> (8 * sizeof(T)) & 1) != 0;
      warp.carry = carry ? warp.carry | bit : warp.carry & ~bit;
    }
  });
}

// d = (a * b, its low or high half) + c.
template <typename T, bool kHigh, bool kTakes, bool kGives>
void mad_with_carry(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const T a = get<T>(warp.row<T>(in.a), lane);
    const T b = get<T>(warp.row<T>(in.b), lane);
    const T c = get<T>(warp.row<T>(in.c), lane);
    const T product = kHigh ? kMulHi<T>(a, b) : static_cast<T>(a * b);
    const unsigned carry_in = kTakes ? warp.carry >> lane & 1 : 0;
    const Unsigned128 sum = static_cast<Unsigned128>(product) + c + carry_in;
    put<T>(warp.row<T>(in.d), lane, static_cast<T>(sum));
    if constexpr (kGives) {
      const LaneMask bit = 1u << lane;
      const bool carry = (sum >> (8 * sizeof(T)) & 1) != 0;
      warp.carry = carry ? warp.carry | bit : warp.carry & ~bit;
    }
  });
}

Handler carry_handler(const Statement& s, std::string_view name, bool wide) {
  const bool gives = s.has("cc");
  const auto of_type = [&]<typename T>() -> Handler {
    if (name == "add") return with_carry<T, false, false, true>;
    if (name == "sub") return with_carry<T, true, false, true>;
    if (name == "addc")
      return gives ? with_carry<T, false, true, true> : with_carry<T, false, true, false>;
    if (name == "subc")
      return gives ? with_carry<T, true, true, true> : with_carry<T, true, true, false>;
    if (name == "mad")
      return s.has("hi") ? mad_with_carry<T, true, false, true>
                         : mad_with_carry<T, false, false, true>;
    if (name == "madc" && s.has("hi"))
      return gives ? mad_with_carry<T, true, true, true> : mad_with_carry<T, true, true, false>;
    if (name == "madc")
      return gives ? mad_with_carry<T, false, true, true> : mad_with_carry<T, false, true, false>;
    return nullptr;
  };
  return wide ? of_type.operator()<std::uint64_t>() : of_type.operator()<std::uint32_t>();
}

}  // namespace

bool decode_arithmetic(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  static const std::vector<std::string_view> kNames = {
      "add", "sub", "mul", "mad",  "fma",      "div",  "rem",   "abs",
      "neg", "min", "max", "sad",  "rcp",      "sqrt", "rsqrt", "ex2",
      "lg2", "sin", "cos", "tanh", "copysign", "addc", "subc",  "madc"};
  if (std::find(kNames.begin(), kNames.end(), name) == kNames.end()) {
    return false;
  }
  const std::string_view type = s.last();
  if (type.starts_with("f16") || type.starts_with("bf16") || type == "u16x2" || type == "s16x2" ||
      type == "f32x2") {
    return false;
  }
  if (s.has("wide")) {
    return decode_wide(builder, s, in, type);
  }
  set_operands(builder, s, in, width_of_type(type), type);
  if (s.has("cc") || name == "addc" || name == "subc" || name == "madc") {
    in.run = carry_handler(s, name, width_of_type(type) == Width::w64);
  } else if (type == "f32" || type == "f64") {
    in.run = type == "f32" ? approximate(s, name) : nullptr;
    if (in.run == nullptr) {
      in.run = float_handler(s, name, type);
    }
  } else {
    in.run = integer_handler(s, name, type);
  }
  return in.run != nullptr;
}

}  // namespace tilewright::emulator
