// Predicates: comparisons, their logic, and selections by them.
#include <cmath>

#include "emulator/ops.hpp"

namespace tilewright::emulator {
namespace {

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

bool decode_selp(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view type = s.last();
  const Width width = width_of_type(type);
  in.d = builder.destination(s.operands.at(0), width);
  in.a = builder.source(s.operands.at(1), width, type);
  in.b = builder.source(s.operands.at(2), width, type);
  in.c = builder.source(s.operands.at(3), Width::predicate);
  in.option = s.operands[3].negated ? 1 : 0;
  in.run = width == Width::w64 ? selp<std::uint64_t> : selp<std::uint32_t>;
  return true;
}

bool decode_slct(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view type = s.last();
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

bool decode_testp(Builder& builder, const Statement& s, Instruction& in) {
  in.d = builder.destination(s.operands.at(0), Width::predicate);
  in.a = builder.source(s.operands.at(1), Width::w32, s.last());
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

}  // namespace

bool decode_predicates(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  const std::string_view type = s.last();
  if (type == "pred" &&
      (name == "and" || name == "or" || name == "xor" || name == "not" || name == "mov")) {
    return decode_predicate_logic(builder, s, in);
  }
  if ((name == "setp" || name == "set") && !type.starts_with("f16") && !type.starts_with("bf16")) {
    return decode_comparison(builder, s, in);
  }
  if (name == "selp") return decode_selp(builder, s, in);
  if (name == "slct") return decode_slct(builder, s, in);
  if (name == "testp" && type == "f32") return decode_testp(builder, s, in);
  return false;
}

}  // namespace tilewright::emulator
