// Arithmetic of f16 and bf16, alone or in pairs.
#include <cmath>

#include "emulator/ops.hpp"

namespace tilewright::emulator {
namespace {

enum class Operation { add, sub, mul, fma, min, max, min_nan, max_nan, neg, abs, ex2, tanh };

double apply(Operation operation, double a, double b, double c) {
  switch (operation) {
    case Operation::add:
      return a + b;
    case Operation::sub:
      return a - b;
    case Operation::mul:
      return a * b;
    case Operation::fma:
      return a * b + c;
    case Operation::min:
      return std::isnan(a) ? b : std::isnan(b) || a < b ? a : b;
    case Operation::max:
      return std::isnan(a) ? b : std::isnan(b) || a > b ? a : b;
    case Operation::min_nan:
      return std::isnan(a) || std::isnan(b) ? NAN : std::min(a, b);
    case Operation::max_nan:
      return std::isnan(a) || std::isnan(b) ? NAN : std::max(a, b);
    case Operation::neg:
      return -a;
    case Operation::abs:
      return std::fabs(a);
    case Operation::ex2:
      return std::exp2(a);
    case Operation::tanh:
      return std::tanh(a);
  }
  return 0;
}

// option: the operation; bit 8: bf16; 9: a pair; 10: relu; 11: sat; 16 up: unused operands
void packed(Warp& warp, const Instruction& in, LaneMask lanes) {
  const auto operation = static_cast<Operation>(in.option & 0xff);
  const NumberFormat format = (in.option & 0x100) != 0 ? NumberFormat::bf16 : NumberFormat::f16;
  const int halves = (in.option & 0x200) != 0 ? 2 : 1;
  for_lanes(lanes, [&](int lane) {
    std::uint32_t result = 0;
    const auto half = [&](std::uint32_t row, int i) {
      return row == 0 ? 0.0
                      : decode(format, warp.row<std::uint32_t>(row)[lane] >> (16 * i) & 0xffff);
    };
    for (int i = 0; i < halves; ++i) {
      double value = apply(operation, half(in.a, i), half(in.b, i), half(in.c, i));
      if ((in.option & 0x400) != 0) {
        value = value > 0 ? value : std::isnan(value) ? value : 0;
      }
      if ((in.option & 0x800) != 0) {
        value = value > 0 ? std::min(value, 1.0) : 0;
      }
      result |= static_cast<std::uint32_t>(encode(format, value)) << (16 * i);
    }
    warp.row<std::uint32_t>(in.d)[lane] = result;
  });
}

// setp of f16 and bf16, alone: the comparison is in details->text's opcode.
template <typename F>
void compare(Warp& warp, const Instruction& in, LaneMask lanes) {
  const NumberFormat format = (in.option & 0x100) != 0 ? NumberFormat::bf16 : NumberFormat::f16;
  LaneMask result = 0;
  for_lanes(lanes, [&](int lane) {
    const double a = decode(format, warp.row<std::uint32_t>(in.a)[lane] & 0xffff);
    const double b = decode(format, warp.row<std::uint32_t>(in.b)[lane] & 0xffff);
    result |= LaneMask{F{}(a, b)} << lane;
  });
  LaneMask& d = warp.predicates[in.d];
  d = (d & ~lanes) | result;
}

// Pairs of 16-bit integers.
template <typename T, auto kF>
std::uint32_t pair(std::uint32_t a, std::uint32_t b) {
  const auto half = [&](int i) -> std::uint32_t {
    return static_cast<std::uint16_t>(kF(static_cast<T>(a >> i), static_cast<T>(b >> i)));
  };
  return half(16) << 16 | half(0);
}

bool decode_integer_pair(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  const auto choose = [&]<typename T>() -> Handler {
    using U = std::uint32_t;
    constexpr auto kSum = [](int x, int y) { return x + y; };
    constexpr auto kLess = [](int x, int y) { return x < y ? x : y; };
    constexpr auto kMore = [](int x, int y) { return x > y ? x : y; };
    if (name == "add") return binary<U, pair<T, kSum>>;
    if (s.has("relu")) return nullptr;
    if (name == "min") return binary<U, pair<T, kLess>>;
    if (name == "max") return binary<U, pair<T, kMore>>;
    return nullptr;
  };
  in.run =
      s.last() == "u16x2" ? choose.operator()<std::uint16_t>() : choose.operator()<std::int16_t>();
  if (in.run != nullptr) {
    set_operands(builder, s, in, Width::w32, "b32");
  }
  return in.run != nullptr;
}

struct Unordered {
  bool operator()(double a, double b) const { return std::isnan(a) || std::isnan(b); }
};
template <typename F>
struct OrUnordered {
  bool operator()(double a, double b) const { return Unordered{}(a, b) || F{}(a, b); }
};

bool decode_comparison(Builder& builder, const Statement& s, Instruction& in) {
  if (s.operands.size() != 3 || s.operands[0].kind != Operand::Kind::reg ||
      s.last().ends_with("x2")) {
    return false;
  }
  in.d = builder.destination(s.operands[0], Width::predicate);
  in.a = builder.source(s.operands[1], Width::w32, "b16");
  in.b = builder.source(s.operands[2], Width::w32, "b16");
  in.option = s.last() == "bf16" ? 0x100 : 0;
  const std::string_view name = s.part(1);
  struct NotEqual {
    bool operator()(double a, double b) const { return !Unordered{}(a, b) && a != b; }
  };
  in.run = name == "eq"    ? compare<std::equal_to<>>
           : name == "ne"  ? compare<NotEqual>
           : name == "lt"  ? compare<std::less<>>
           : name == "le"  ? compare<std::less_equal<>>
           : name == "gt"  ? compare<std::greater<>>
           : name == "ge"  ? compare<std::greater_equal<>>
           : name == "neu" ? compare<std::not_equal_to<>>
           : name == "equ" ? compare<OrUnordered<std::equal_to<>>>
           : name == "ltu" ? compare<OrUnordered<std::less<>>>
           : name == "leu" ? compare<OrUnordered<std::less_equal<>>>
           : name == "gtu" ? compare<OrUnordered<std::greater<>>>
           : name == "geu" ? compare<OrUnordered<std::greater_equal<>>>
           : name == "nan" ? compare<Unordered>
                           : nullptr;
  return in.run != nullptr;
}

}  // namespace

bool decode_packed(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view type = s.last();
  if (type == "u16x2" || type == "s16x2") {
    return decode_integer_pair(builder, s, in);
  }
  if (type != "f16" && type != "bf16" && type != "f16x2" && type != "bf16x2") {
    return false;
  }
  const std::string_view name = s.part(0);
  if (name == "setp") {
    return decode_comparison(builder, s, in);
  }
  static const std::unordered_map<std::string_view, Operation> kOperations = {
      {"add", Operation::add}, {"sub", Operation::sub},  {"mul", Operation::mul},
      {"fma", Operation::fma}, {"neg", Operation::neg},  {"abs", Operation::abs},
      {"ex2", Operation::ex2}, {"tanh", Operation::tanh}};
  Operation operation{};
  if (name == "min" || name == "max") {
    operation = s.has("NaN") ? (name == "min" ? Operation::min_nan : Operation::max_nan)
                             : (name == "min" ? Operation::min : Operation::max);
  } else if (const auto found = kOperations.find(name); found != kOperations.end()) {
    operation = found->second;
  } else {
    return false;
  }
  if (s.operands.size() > 4) {
    return false;
  }
  set_operands(builder, s, in, Width::w32, type.ends_with("x2") ? "b32" : "b16");
  in.option = static_cast<std::uint32_t>(operation) | (type.starts_with("bf16") ? 0x100 : 0) |
              (type.ends_with("x2") ? 0x200 : 0) | (s.has("relu") ? 0x400 : 0) |
              (s.has("sat") ? 0x800 : 0);
  in.run = packed;
  return true;
}

}  // namespace tilewright::emulator
