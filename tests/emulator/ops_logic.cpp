// Bits, predicates, comparisons and selections.
#include <cmath>

#include "emulator/ops.hpp"

namespace tilewright::emulator {
namespace {

template <typename T>
constexpr auto kShl =
    [](T a, std::uint32_t b) -> T { return b >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << b); };
template <typename T>
constexpr auto kShr = [](T a, std::uint32_t b) -> T {
  constexpr std::uint32_t kBits = 8 * sizeof(T);
  if constexpr (std::is_signed_v<T>) {
    return static_cast<T>(a >> std::min(b, kBits - 1));
  } else {
    return b >= kBits ? T{0} : static_cast<T>(a >> b);
  }
};

template <typename T>
constexpr auto kBfe = [](T a, std::uint32_t b, std::uint32_t c) -> T {
  using U = std::make_unsigned_t<T>;
  constexpr std::uint32_t kBits = 8 * sizeof(T);
  const std::uint32_t position = b & 0xff;
  const std::uint32_t length = c & 0xff;
  if (length == 0) {
    return 0;
  }
  const bool negative =
      std::is_signed_v<T> && (static_cast<U>(a) >> std::min(position + length - 1, kBits - 1) & 1);
  U value = position >= kBits ? 0 : static_cast<U>(a) >> position;
  const std::uint32_t taken = std::min(length, position >= kBits ? 0 : kBits - position);
  const U mask = taken >= kBits ? ~U{0} : (U{1} << taken) - 1;
  value &= mask;
  return static_cast<T>(negative ? value | ~mask : value);
};

template <typename T>
void bfi(Warp& warp, const Instruction& in, LaneMask lanes) {
  constexpr std::uint32_t kBits = 8 * sizeof(T);
  const std::uint32_t position_row = in.c;
  const std::uint32_t length_row = in.option;
  for_lanes(lanes, [&](int lane) {
    const T a = get<T>(warp.row<T>(in.a), lane);
    const T b = get<T>(warp.row<T>(in.b), lane);
    const std::uint32_t position = warp.row<std::uint32_t>(position_row)[lane] & 0xff;
    const std::uint32_t length = warp.row<std::uint32_t>(length_row)[lane] & 0xff;
    T mask = length >= kBits ? ~T{0} : (T{1} << length) - 1;
    mask = position >= kBits ? 0 : mask << position;
    const T shifted = position >= kBits ? 0 : a << position;
    put<T>(warp.row<T>(in.d), lane, static_cast<T>((b & ~mask) | (shifted & mask)));
  });
}

void lop3(Warp& warp, const Instruction& in, LaneMask lanes) {
  auto* const d = warp.row<std::uint32_t>(in.d);
  const auto* const a = warp.row<std::uint32_t>(in.a);
  const auto* const b = warp.row<std::uint32_t>(in.b);
  const auto* const c = warp.row<std::uint32_t>(in.c);
  for_lanes(lanes, [&](int lane) {
    std::uint32_t result = 0;
    for (unsigned i = 0; i < 8; ++i) {
      if ((in.option >> i & 1) != 0) {
        result |= ((i & 4) != 0 ? a[lane] : ~a[lane]) & ((i & 2) != 0 ? b[lane] : ~b[lane]) &
                  ((i & 1) != 0 ? c[lane] : ~c[lane]);
      }
    }
    d[lane] = result;
  });
}

constexpr auto kPrmt = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const std::uint64_t bytes = std::uint64_t{b} << 32 | a;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t selector = c >> (4 * i) & 0xf;
    std::uint32_t byte = static_cast<std::uint32_t>(bytes >> (8 * (selector & 7))) & 0xff;
    if ((selector & 8) != 0) {
      byte = (byte & 0x80) != 0 ? 0xff : 0;
    }
    result |= byte << (8 * i);
  }
  return result;
};

// The modes of prmt other than the default, as its selectors.
template <int kMode>
constexpr auto kPrmtMode = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  constexpr std::uint32_t kSelectors[6][4] = {
      {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123},
      {0x0000, 0x1111, 0x2222, 0x3333}, {0x3210, 0x3211, 0x3222, 0x3333},
      {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232}};
  return kPrmt(a, b, kSelectors[kMode][c & 3]);
};

template <bool kLeft, bool kClamp>
constexpr auto kShf = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  const std::uint32_t n = kClamp ? std::min(c, 32u) : c & 31;
  const std::uint64_t both = std::uint64_t{b} << 32 | a;
  return static_cast<std::uint32_t>(kLeft ? both << n >> 32 : both >> n);
};

template <typename T>
constexpr auto kBrev = [](T a) -> T {
  T result = 0;
  for (unsigned i = 0; i < 8 * sizeof(T); ++i) {
    result = static_cast<T>(result << 1 | (a >> i & 1));
  }
  return result;
};

template <typename T, bool kShiftAmount>
constexpr auto kBfind = [](T a) -> std::uint32_t {
  using U = std::make_unsigned_t<T>;
  const U bits = static_cast<U>(std::is_signed_v<T> && a < T{0} ? ~a : a);
  if (bits == 0) {
    return 0xffffffffu;
  }
  const auto zeros = static_cast<std::uint32_t>(std::countl_zero(bits));
  return kShiftAmount ? zeros : static_cast<std::uint32_t>(8 * sizeof(T)) - 1 - zeros;
};

// Logic of integers.
Handler bits_handler(std::string_view name, bool wide) {
  const auto choose = [&]<typename T>() -> Handler {
    if (name == "and") return binary<T, [](T a, T b) -> T { return a & b; }>;
    if (name == "or") return binary<T, [](T a, T b) -> T { return a | b; }>;
    if (name == "xor") return binary<T, [](T a, T b) -> T { return a ^ b; }>;
    if (name == "not") return unary<T, [](T a) -> T { return ~a; }>;
    if (name == "cnot") return unary<T, [](T a) -> T { return a == 0 ? 1 : 0; }>;
    if (name == "brev") return unary<T, kBrev<T>>;
    return nullptr;
  };
  return wide ? choose.operator()<std::uint64_t>() : choose.operator()<std::uint32_t>();
}

LaneMask predicate(const Warp& warp, std::uint32_t where, bool negated) {
  const LaneMask mask = warp.predicates[where];
  return negated ? ~mask : mask;
}

void set_predicate(Warp& warp, std::uint32_t where, LaneMask lanes, LaneMask value) {
  LaneMask& mask = warp.predicates[where];
  mask = (mask & ~lanes) | (value & lanes);
}

// Logic of predicates. option: 1 negates a, 2 negates b.
template <typename F>
void predicate_logic(Warp& warp, const Instruction& in, LaneMask lanes) {
  const LaneMask a = predicate(warp, in.a, (in.option & 1) != 0);
  const LaneMask b = predicate(warp, in.b, (in.option & 2) != 0);
  set_predicate(warp, in.d, lanes, F{}(a, b));
}

struct First {
  LaneMask operator()(LaneMask a, LaneMask) const { return a; }
};

bool decode_predicate_logic(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  in.d = builder.destination(s.operands.at(0), Width::predicate);
  const auto take = [&](const Operand& operand, std::uint32_t bit) {
    if (operand.kind == Operand::Kind::immediate) {
      in.option |= operand.bits != 0 ? bit : 0;
      return builder.allocate(Width::predicate).where;  // which nobody writes: false
    }
    in.option |= operand.negated ? bit : 0;
    return builder.source(operand, Width::predicate);
  };
  in.a = take(s.operands.at(1), 1);
  if (s.operands.size() > 2) {
    in.b = take(s.operands[2], 2);
  }
  if (name == "and") in.run = predicate_logic<std::bit_and<>>;
  if (name == "or") in.run = predicate_logic<std::bit_or<>>;
  if (name == "xor") in.run = predicate_logic<std::bit_xor<>>;
  if (name == "mov") in.run = predicate_logic<First>;
  if (name == "not") {
    in.option ^= 1;
    in.run = predicate_logic<First>;
  }
  return in.run != nullptr;
}

enum class Comparison { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };

template <typename T, Comparison kComparison>
bool holds(T a, T b) {
  bool unordered = false;
  if constexpr (std::is_floating_point_v<T>) {
    unordered = std::isnan(a) || std::isnan(b);
  }
  switch (kComparison) {
    case Comparison::eq:
      return a == b;
    case Comparison::ne:
      return !unordered && a != b;
    case Comparison::lt:
      return a < b;
    case Comparison::le:
      return a <= b;
    case Comparison::gt:
      return a > b;
    case Comparison::ge:
      return a >= b;
    case Comparison::equ:
      return unordered || a == b;
    case Comparison::neu:
      return unordered || a != b;
    case Comparison::ltu:
      return unordered || a < b;
    case Comparison::leu:
      return unordered || a <= b;
    case Comparison::gtu:
      return unordered || a > b;
    case Comparison::geu:
      return unordered || a >= b;
    case Comparison::num:
      return !unordered;
    case Comparison::nan:
      return unordered;
  }
  return false;
}

template <typename T, Comparison kComparison>
LaneMask compare(Warp& warp, const Instruction& in, LaneMask lanes) {
  const auto* const a = warp.row<T>(in.a);
  const auto* const b = warp.row<T>(in.b);
  if (lanes == kAllLanes) {
    LaneMask result = 0;
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      result |= LaneMask{holds<T, kComparison>(get<T>(a, lane), get<T>(b, lane))} << lane;
    }
    return result;
  }
  LaneMask result = 0;
  for_lanes(lanes, [&](int lane) {
    result |= LaneMask{holds<T, kComparison>(get<T>(a, lane), get<T>(b, lane))} << lane;
  });
  return result;
}

// option: bits 0 and 1: the combination with predicate c (none, and, or, xor); 2: c is negated;
// 3: there is a second destination, in `members`.
template <typename T, Comparison kComparison>
void setp(Warp& warp, const Instruction& in, LaneMask lanes) {
  const LaneMask result = compare<T, kComparison>(warp, in, lanes);
  if (in.option == 0) {
    set_predicate(warp, in.d, lanes, result);
    return;
  }
  const LaneMask c = predicate(warp, in.c, (in.option & 4) != 0);
  const auto combine = [&](LaneMask x) {
    switch (in.option & 3) {
      case 1:
        return x & c;
      case 2:
        return x | c;
      case 3:
        return x ^ c;
      default:
        return x;
    }
  };
  set_predicate(warp, in.d, lanes, combine(result));
  if ((in.option & 8) != 0) {
    set_predicate(warp, in.members, lanes, combine(~result));
  }
}

// A result of 0xffffffff or 1.0 (option 16).
template <typename T, Comparison kComparison>
void set_number(Warp& warp, const Instruction& in, LaneMask lanes) {
  const LaneMask result = compare<T, kComparison>(warp, in, lanes);
  const std::uint32_t yes = (in.option & 16) != 0 ? std::bit_cast<std::uint32_t>(1.0f) : ~0u;
  auto* const d = warp.row<std::uint32_t>(in.d);
  for_lanes(lanes, [&](int lane) { d[lane] = (result >> lane & 1) != 0 ? yes : 0; });
}

template <typename T>
Handler setp_of(std::string_view name, bool is_set) {
  const auto choose = [&]<Comparison kComparison>() -> Handler {
    return is_set ? set_number<T, kComparison> : setp<T, kComparison>;
  };
  if (name == "eq") return choose.template operator()<Comparison::eq>();
  if (name == "ne") return choose.template operator()<Comparison::ne>();
  if (name == "lt" || name == "lo") return choose.template operator()<Comparison::lt>();
  if (name == "le" || name == "ls") return choose.template operator()<Comparison::le>();
  if (name == "gt" || name == "hi") return choose.template operator()<Comparison::gt>();
  if (name == "ge" || name == "hs") return choose.template operator()<Comparison::ge>();
  if constexpr (std::is_floating_point_v<T>) {
    if (name == "equ") return choose.template operator()<Comparison::equ>();
    if (name == "neu") return choose.template operator()<Comparison::neu>();
    if (name == "ltu") return choose.template operator()<Comparison::ltu>();
    if (name == "leu") return choose.template operator()<Comparison::leu>();
    if (name == "gtu") return choose.template operator()<Comparison::gtu>();
    if (name == "geu") return choose.template operator()<Comparison::geu>();
    if (name == "num") return choose.template operator()<Comparison::num>();
    if (name == "nan") return choose.template operator()<Comparison::nan>();
  }
  return nullptr;
}

bool decode_comparison(Builder& builder, const Statement& s, Instruction& in) {
  const bool is_set = s.part(0) == "set";
  const std::string_view type = s.last();
  if (is_set) {
    in.d = builder.destination(s.operands.at(0), Width::w32);
    in.option |= s.parts[s.parts.size() - 2] == "f32" ? 16 : 0;
  } else if (s.operands.at(0).kind == Operand::Kind::pair) {
    in.d = builder.destination(s.operands[0].parts[0], Width::predicate);
    in.members = builder.destination(s.operands[0].parts[1], Width::predicate);
    in.option |= 8;
  } else {
    in.d = builder.destination(s.operands[0], Width::predicate);
  }
  const Width width = width_of_type(type);
  in.a = builder.source(s.operands.at(1), width, type);
  in.b = builder.source(s.operands.at(2), width, type);
  if (s.operands.size() > 3) {
    in.c = builder.source(s.operands[3], Width::predicate);
    in.option |= s.operands[3].negated ? 4 : 0;
    in.option |= s.part(2) == "and" ? 1 : s.part(2) == "or" ? 2 : 3;
  }
  in.run = by_number(type, [&]<typename T>() { return setp_of<T>(s.part(1), is_set); });
  return in.run != nullptr;
}

template <typename T>
void selp(Warp& warp, const Instruction& in, LaneMask lanes) {
  auto* const d = warp.row<T>(in.d);
  const auto* const a = warp.row<T>(in.a);
  const auto* const b = warp.row<T>(in.b);
  const LaneMask p = predicate(warp, in.c, in.option != 0);
  for_lanes(lanes, [&](int lane) { d[lane] = (p >> lane & 1) != 0 ? a[lane] : b[lane]; });
}

template <typename T, typename C>
void slct(Warp& warp, const Instruction& in, LaneMask lanes) {
  const auto* const c = warp.row<C>(in.c);
  for_lanes(lanes, [&](int lane) {
    warp.row<T>(in.d)[lane] =
        get<C>(c, lane) >= 0 ? warp.row<T>(in.a)[lane] : warp.row<T>(in.b)[lane];
  });
}

void testp(Warp& warp, const Instruction& in, LaneMask lanes) {
  LaneMask result = 0;
  for_lanes(lanes, [&](int lane) {
    const float x = get<float>(warp.row<float>(in.a), lane);
    const bool is = in.option == 0   ? std::isfinite(x)
                    : in.option == 1 ? std::isinf(x)
                    : in.option == 2 ? !std::isnan(x)
                    : in.option == 3 ? std::isnan(x)
                    : in.option == 4 ? std::isnormal(x)
                                     : std::fpclassify(x) == FP_SUBNORMAL;
    result |= LaneMask{is} << lane;
  });
  set_predicate(warp, in.d, lanes, result);
}

bool decode_shift(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view type = s.last();
  const Width width = width_of_type(type);
  in.d = builder.destination(s.operands.at(0), width);
  in.a = builder.source(s.operands.at(1), width, type);
  in.b = builder.source(s.operands.at(2), Width::w32);
  const bool left = s.part(0) == "shl";
  in.run = by_integer(type, [&]<typename T>() -> Handler {
    return left ? binary_of<T, std::uint32_t, kShl<T>> : binary_of<T, std::uint32_t, kShr<T>>;
  });
  return in.run != nullptr;
}

// Instructions of 32-bit results from an operand of 32 or 64 bits.
bool decode_count(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  const std::string_view type = s.last();
  in.d = builder.destination(s.operands.at(0), Width::w32);
  in.a = builder.source(s.operands.at(1), width_of_type(type), type);
  in.run = by_integer(type, [&]<typename T>() -> Handler {
    using U = std::make_unsigned_t<T>;
    if (name == "popc") {
      return unary<U, [](U a) { return static_cast<std::uint32_t>(std::popcount(a)); }>;
    }
    if (name == "clz") {
      return unary<U, [](U a) { return static_cast<std::uint32_t>(std::countl_zero(a)); }>;
    }
    return s.has("shiftamt") ? unary<T, kBfind<T, true>> : unary<T, kBfind<T, false>>;
  });
  return in.run != nullptr;
}

bool decode_prmt(Builder& builder, const Statement& s, Instruction& in) {
  set_operands(builder, s, in, Width::w32, "b32");
  const std::string_view mode = s.part(2);
  using U = std::uint32_t;
  in.run = mode.empty()     ? ternary<U, kPrmt>
           : mode == "f4e"  ? ternary<U, kPrmtMode<0>>
           : mode == "b4e"  ? ternary<U, kPrmtMode<1>>
           : mode == "rc8"  ? ternary<U, kPrmtMode<2>>
           : mode == "ecl"  ? ternary<U, kPrmtMode<3>>
           : mode == "ecr"  ? ternary<U, kPrmtMode<4>>
           : mode == "rc16" ? ternary<U, kPrmtMode<5>>
                            : nullptr;
  return in.run != nullptr;
}

bool decode_bit_fields(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view type = s.last();
  const Width width = width_of_type(type);
  in.d = builder.destination(s.operands.at(0), width);
  in.a = builder.source(s.operands.at(1), width, type);
  if (s.part(0) == "bfi") {
    in.b = builder.source(s.operands.at(2), width, type);
    in.c = builder.source(s.operands.at(3), Width::w32);
    in.option = builder.source(s.operands.at(4), Width::w32);
    in.run = width == Width::w64 ? bfi<std::uint64_t> : bfi<std::uint32_t>;
    return true;
  }
  in.b = builder.source(s.operands.at(2), Width::w32);
  in.c = builder.source(s.operands.at(3), Width::w32);
  using U = std::uint32_t;
  in.run = type == "u32"   ? ternary_of<std::uint32_t, U, U, kBfe<std::uint32_t>>
           : type == "s32" ? ternary_of<std::int32_t, U, U, kBfe<std::int32_t>>
           : type == "u64" ? ternary_of<std::uint64_t, U, U, kBfe<std::uint64_t>>
                           : ternary_of<std::int64_t, U, U, kBfe<std::int64_t>>;
  return true;
}

template <bool kSignedA, bool kSignedB>
constexpr auto kDp4a = [](std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  for (int i = 0; i < 32; i += 8) {
    const std::int32_t x =
        kSignedA ? static_cast<std::int8_t>(a >> i) : static_cast<std::uint8_t>(a >> i);
    const std::int32_t y =
        kSignedB ? static_cast<std::int8_t>(b >> i) : static_cast<std::uint8_t>(b >> i);
    c += static_cast<std::uint32_t>(x * y);
  }
  return c;
};

bool decode_dp4a(Builder& builder, const Statement& s, Instruction& in) {
  set_operands(builder, s, in, Width::w32, "b32");
  using U = std::uint32_t;
  const bool a = s.part(1) == "s32";
  const bool b = s.part(2) == "s32";
  in.run = a ? (b ? ternary<U, kDp4a<true, true>> : ternary<U, kDp4a<true, false>>)
             : (b ? ternary<U, kDp4a<false, true>> : ternary<U, kDp4a<false, false>>);
  return true;
}

}  // namespace

bool decode_logic(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  const std::string_view type = s.last();
  const Width width = width_of_type(type);
  if (name == "and" || name == "or" || name == "xor" || name == "not" || name == "cnot" ||
      name == "brev") {
    if (type == "pred") {
      return decode_predicate_logic(builder, s, in);
    }
    set_operands(builder, s, in, width, type);
    in.run = bits_handler(name, width == Width::w64);
    if (type == "b16" && (name == "not" || name == "brev")) {
      in.run = name == "not" ? unary<std::uint16_t,
                                     [](std::uint16_t a) -> std::uint16_t {
                                       return static_cast<std::uint16_t>(~a);
                                     }>
                             : nullptr;
    }
    return in.run != nullptr;
  }
  if (name == "mov" && type == "pred") return decode_predicate_logic(builder, s, in);
  if ((name == "setp" || name == "set") && !type.starts_with("f16") && !type.starts_with("bf16")) {
    return decode_comparison(builder, s, in);
  }
  if (name == "shl" || name == "shr") return decode_shift(builder, s, in);
  if (name == "popc" || name == "clz" || name == "bfind") return decode_count(builder, s, in);
  if (name == "prmt") return decode_prmt(builder, s, in);
  if (name == "bfi" || name == "bfe") return decode_bit_fields(builder, s, in);
  if (name == "dp4a") return decode_dp4a(builder, s, in);
  if (name == "lop3") {
    set_operands(builder, s, in, Width::w32, "b32");
    in.option = static_cast<std::uint32_t>(s.operands.at(4).bits);
    in.run = s.operands.size() == 5 ? lop3 : nullptr;
    return in.run != nullptr;
  }
  if (name == "shf") {
    set_operands(builder, s, in, Width::w32, "b32");
    using U = std::uint32_t;
    in.run =
        s.has("l")
            ? (s.has("clamp") ? ternary<U, kShf<true, true>> : ternary<U, kShf<true, false>>)
            : (s.has("clamp") ? ternary<U, kShf<false, true>> : ternary<U, kShf<false, false>>);
    return true;
  }
  if (name == "selp") {
    in.d = builder.destination(s.operands.at(0), width);
    in.a = builder.source(s.operands.at(1), width, type);
    in.b = builder.source(s.operands.at(2), width, type);
    in.c = builder.source(s.operands.at(3), Width::predicate);
    in.option = s.operands[3].negated ? 1 : 0;
    in.run = width == Width::w64 ? selp<std::uint64_t> : selp<std::uint32_t>;
    return true;
  }
  if (name == "slct") {
    const std::string_view value = s.parts[s.parts.size() - 2];
    in.d = builder.destination(s.operands.at(0), width_of_type(value));
    in.a = builder.source(s.operands.at(1), width_of_type(value), value);
    in.b = builder.source(s.operands.at(2), width_of_type(value), value);
    in.c = builder.source(s.operands.at(3), Width::w32, type);
    const bool wide = width_of_type(value) == Width::w64;
    in.run = type == "f32"
                 ? (wide ? slct<std::uint64_t, float> : slct<std::uint32_t, float>)
                 : (wide ? slct<std::uint64_t, std::int32_t> : slct<std::uint32_t, std::int32_t>);
    return true;
  }
  if (name == "testp" && type == "f32") {
    in.d = builder.destination(s.operands.at(0), Width::predicate);
    in.a = builder.source(s.operands.at(1), Width::w32, type);
    const std::string_view test = s.part(1);
    in.option = test == "finite"       ? 0
                : test == "infinite"   ? 1
                : test == "number"     ? 2
                : test == "notanumber" ? 3
                : test == "normal"     ? 4
                                       : 5;
    in.run = testp;
    return true;
  }
  return false;
}

}  // namespace tilewright::emulator
