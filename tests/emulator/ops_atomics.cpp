// atom, red, and their vector forms.
#include <algorithm>

#include "emulator/ops.hpp"
#include "emulator/ops_memory.hpp"
#include "emulator/tma.hpp"

namespace tilewright::emulator {
namespace {

enum class Operation { exch, cas, add, inc, dec, min, max, bit_and, bit_or, bit_xor };

template <typename T, Operation kOperation>
T apply(T old, T b, T c) {
  if constexpr (kOperation == Operation::exch) {
    return b;
  } else if constexpr (kOperation == Operation::cas) {
    return old == b ? c : old;
  } else if constexpr (kOperation == Operation::add) {
    if constexpr (std::is_integral_v<T>) {
      using U = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<U>(old) + static_cast<U>(b));
    } else {
      return old + b;
    }
  } else if constexpr (kOperation == Operation::inc) {
    return old >= b ? T{0} : old + 1;
  } else if constexpr (kOperation == Operation::dec) {
    return old == 0 || old > b ? b : old - 1;
  } else if constexpr (kOperation == Operation::min) {
    return std::min(old, b);
  } else if constexpr (kOperation == Operation::max) {
    return std::max(old, b);
  } else if constexpr (kOperation == Operation::bit_and) {
    return old & b;
  } else if constexpr (kOperation == Operation::bit_or) {
    return old | b;
  } else {
    return old ^ b;
  }
}

template <typename T, Operation kOperation>
void atomic(Warp& warp, const Instruction& in, LaneMask lanes) {
  for (LaneMask left = lanes; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    constexpr auto kBytes = static_cast<std::uint32_t>(sizeof(T));
    std::byte* const place = resolve(warp, in, lane, kBytes, kBytes);
    T old;
    std::memcpy(&old, place, kBytes);
    const T b = get<T>(warp.row<T>(in.b), lane);
    const T c = get<T>(warp.row<T>(in.c), lane);
    const T value = apply<T, kOperation>(old, b, c);
    std::memcpy(place, &value, kBytes);
    if (std::memcmp(&old, &value, kBytes) != 0) {
      ++warp.grid->events;
    }
    put<T>(warp.row<T>(in.d), lane, old);
  }
  warp.polled = 128;  // it may be part of a loop that waits
}

template <typename T>
Handler integer_handler(std::string_view operation, std::string_view type) {
  if (operation == "exch") return atomic<T, Operation::exch>;
  if (operation == "cas") return atomic<T, Operation::cas>;
  if (operation == "add") return atomic<T, Operation::add>;
  if (operation == "inc") return atomic<T, Operation::inc>;
  if (operation == "dec") return atomic<T, Operation::dec>;
  if (operation == "and") return atomic<T, Operation::bit_and>;
  if (operation == "or") return atomic<T, Operation::bit_or>;
  if (operation == "xor") return atomic<T, Operation::bit_xor>;
  using S = std::make_signed_t<T>;
  const bool is_signed = type.starts_with('s');
  if (operation == "min") return is_signed ? atomic<S, Operation::min> : atomic<T, Operation::min>;
  if (operation == "max") return is_signed ? atomic<S, Operation::max> : atomic<T, Operation::max>;
  return nullptr;
}

// Additions of f16, bf16 and of vectors. option: the format; details: d, a: the vectors' rows,
// of pairs if an element has 16 bits and `packed` (bit 16).
void atomic_add(Warp& warp, const Instruction& in, LaneMask lanes) {
  const auto format = static_cast<NumberFormat>(in.option & 0xff);
  const auto word = in.option >> 24;  // bytes of a register that count
  const Details& details = *in.details;
  const auto words = static_cast<std::uint32_t>(details.a.size());
  const auto element = static_cast<std::uint32_t>(bits_of(format)) / 8;
  for (LaneMask left = lanes; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    std::byte* const place = resolve(warp, in, lane, words * word, words * word);
    for (std::uint32_t i = 0; i < words; ++i) {
      if (!details.d.empty()) {
        std::uint32_t old = 0;
        std::memcpy(&old, place + i * word, word);
        warp.row<std::uint32_t>(details.d[i])[lane] = old;
      }
      const std::uint32_t value = warp.row<std::uint32_t>(details.a[i])[lane];
      reduce_add(format, place + i * word, reinterpret_cast<const std::byte*>(&value),
                 word / element);
    }
  }
  ++warp.grid->events;
}

bool decode_vector_add(Builder& builder, const Statement& s, Instruction& in, bool returns) {
  std::string_view type = s.last();
  const bool packed = type.ends_with("x2");
  if (packed) {
    type.remove_suffix(2);
  }
  const auto format = format_named(type);
  if (!format || !s.has("add")) {
    return false;
  }
  Details& details = builder.details(in);
  const auto list = [](const Operand& operand) {
    return operand.kind == Operand::Kind::vector ? operand.parts : std::vector<Operand>{operand};
  };
  if (returns) {
    for (const Operand& part : list(s.operands.at(0))) {
      details.d.push_back(builder.destination(part, Width::w32));
    }
  }
  for (const Operand& part : list(s.operands.at(returns ? 2 : 1))) {
    details.a.push_back(builder.source(part, Width::w32, type));
  }
  const std::uint32_t word = packed || type == "f32" ? 4 : 2;
  in.option = static_cast<std::uint32_t>(*format) | word << 24;
  in.run = atomic_add;
  return true;
}

}  // namespace

bool decode_atomics(Builder& builder, const Statement& s, Instruction& in) {
  const bool returns = s.part(0) == "atom";
  if ((!returns && s.part(0) != "red") || s.has("async")) {
    return false;
  }
  const std::size_t at = returns ? 1 : 0;
  builder.address(in, s.operands.at(at));
  in.space = space_of(builder, s, s.operands[at]);
  const std::string_view type = s.last();
  if (type.starts_with("f16") || type.starts_with("bf16") || s.has("v2") || s.has("v4") ||
      s.has("v8")) {
    return decode_vector_add(builder, s, in, returns);
  }
  static const std::vector<std::string_view> kOperations = {"exch", "cas", "add", "inc", "dec",
                                                            "and",  "or",  "xor", "min", "max"};
  const auto operation =
      std::find_first_of(s.parts.begin(), s.parts.end(), kOperations.begin(), kOperations.end());
  if (operation == s.parts.end()) {
    return false;
  }
  const Width width = width_of_type(type);
  in.d = returns ? builder.destination(s.operands[0], width) : builder.sink(width);
  in.b = builder.source(s.operands.at(at + 1), width, type);
  if (*operation == "cas") {
    in.c = builder.source(s.operands.at(at + 2), width, type);
  }
  if (type == "f32") {
    in.run = atomic<float, Operation::add>;
  } else if (type == "f64") {
    in.run = atomic<double, Operation::add>;
  } else if (type.ends_with("16")) {
    in.run = *operation == "cas" ? atomic<std::uint16_t, Operation::cas> : nullptr;
  } else {
    in.run = width == Width::w64 ? integer_handler<std::uint64_t>(*operation, type)
                                 : integer_handler<std::uint32_t>(*operation, type);
  }
  return in.run != nullptr;
}

}  // namespace tilewright::emulator
