// Bits of integers: and, shl, prmt, bfe and so on.
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
  return false;
}

}  // namespace tilewright::emulator
