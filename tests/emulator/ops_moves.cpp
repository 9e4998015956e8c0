// mov, cvt, cvta and what else only moves values.
#include <chrono>
#include <cmath>

#include "emulator/ops.hpp"

namespace tilewright::emulator {
namespace {

template <typename T>
void move(Warp& warp, const Instruction& in, LaneMask lanes) {
  auto* const d = warp.row<T>(in.d);
  const auto* const a = warp.row<T>(in.a);
  for_lanes(lanes, [&](int lane) { d[lane] = a[lane]; });
}

// d = {parts}: the first is the lowest. option: bits of a part.
template <typename T>
void pack(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Details& details = *in.details;
  for_lanes(lanes, [&](int lane) {
    std::uint64_t value = 0;
    const std::uint64_t mask = (std::uint64_t{1} << in.option) - 1;
    for (std::size_t i = 0; i < details.a.size(); ++i) {
      value |= (warp.row<std::uint32_t>(details.a[i])[lane] & mask) << (i * in.option);
    }
    warp.row<T>(in.d)[lane] = static_cast<T>(value);
  });
}

template <typename T>
void unpack(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Details& details = *in.details;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t value = warp.row<T>(in.a)[lane];
    const std::uint64_t mask = (std::uint64_t{1} << in.option) - 1;
    for (std::size_t i = 0; i < details.d.size(); ++i) {
      warp.row<std::uint32_t>(details.d[i])[lane] =
          static_cast<std::uint32_t>(value >> (i * in.option) & mask);
    }
  });
}

template <typename T>
void read_clock(Warp& warp, const Instruction& in, LaneMask lanes) {
  const auto now = static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                              std::chrono::nanoseconds(1));
  const bool high = static_cast<Special>(in.option) == Special::globaltimer_hi;
  for_lanes(lanes,
            [&](int lane) { warp.row<T>(in.d)[lane] = static_cast<T>(high ? now >> 32 : now); });
  warp.polled = 32;  // who looks at the clock may be waiting
}

bool decode_vector_move(Builder& builder, const Statement& s, Instruction& in) {
  const Width width = width_of_type(s.last());
  const std::uint32_t bits = width == Width::w64 ? 64 : s.last().ends_with("16") ? 16 : 32;
  Details& details = builder.details(in);
  const bool packs = s.operands[1].kind == Operand::Kind::vector;
  const Operand& vector = packs ? s.operands[1] : s.operands[0];
  in.option = bits / static_cast<std::uint32_t>(vector.parts.size());
  if (in.option > 32) {
    return false;
  }
  const std::string_view part_type = in.option == 16 ? "b16" : "b32";
  for (const Operand& part : vector.parts) {
    if (packs) {
      details.a.push_back(builder.source(part, Width::w32, part_type));
    } else {
      details.d.push_back(builder.destination(part, Width::w32));
    }
  }
  if (packs) {
    in.d = builder.destination(s.operands[0], width);
    in.run = width == Width::w64 ? pack<std::uint64_t> : pack<std::uint32_t>;
  } else {
    in.a = builder.source(s.operands[1], width);
    in.run = width == Width::w64 ? unpack<std::uint64_t> : unpack<std::uint32_t>;
  }
  return true;
}

bool decode_move(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view type = s.last();
  if (s.operands.at(0).kind == Operand::Kind::vector ||
      s.operands.at(1).kind == Operand::Kind::vector) {
    return decode_vector_move(builder, s, in);
  }
  const Width width = width_of_type(type);
  in.d = builder.destination(s.operands[0], width);
  const Operand& from = s.operands[1];
  if (from.kind == Operand::Kind::special && changes_with_time(from.special)) {
    in.option = static_cast<std::uint32_t>(from.special);
    in.run = width == Width::w64 ? read_clock<std::uint64_t> : read_clock<std::uint32_t>;
    return true;
  }
  if (from.kind == Operand::Kind::symbol) {
    const Variable* const variable = builder.find_variable(from.name);
    if (variable != nullptr && variable->space == Space::parameter) {
      in.a = builder.special(Special::parameters, Width::w64);
      in.b = builder.immediate(Width::w64, variable->address);
      in.run = binary<std::uint64_t, [](std::uint64_t a, std::uint64_t b) { return a + b; }>;
      return true;
    }
  }
  in.a = builder.source(from, width, type);
  in.run = width == Width::w64 ? move<std::uint64_t> : move<std::uint32_t>;
  return true;
}

// Registers may be wider than the types say.
template <typename To, typename From, typename Word, typename FromWord>
void convert_integer(Warp& warp, const Instruction& in, LaneMask lanes) {
  auto* const d = warp.row<Word>(in.d);
  const auto* const a = warp.row<FromWord>(in.a);
  for_lanes(lanes, [&](int lane) {
    const To value = static_cast<To>(static_cast<From>(a[lane]));
    if constexpr (std::is_signed_v<To>) {
      d[lane] = static_cast<Word>(static_cast<std::int64_t>(value));
    } else {
      d[lane] = static_cast<Word>(value);
    }
  });
}

template <typename F>
Handler by_any_integer(std::string_view type, F&& f) {
  if (type == "u8") return f.template operator()<std::uint8_t>();
  if (type == "s8") return f.template operator()<std::int8_t>();
  return by_integer(type, f);
}

Handler integer_conversion(std::string_view to, std::string_view from, bool wide, bool from_wide) {
  using U32 = std::uint32_t;
  using U64 = std::uint64_t;
  return by_any_integer(to, [&]<typename To>() {
    return by_any_integer(from, [&]<typename From>() -> Handler {
      if (wide) {
        return from_wide ? convert_integer<To, From, U64, U64>
                         : convert_integer<To, From, U64, U32>;
      }
      return from_wide ? convert_integer<To, From, U32, U64> : convert_integer<To, From, U32, U32>;
    });
  });
}

// Rounds to nearest even. NaN becomes the canonical NaN.
inline std::uint32_t to_bf16(std::uint32_t bits) {
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return is_nan ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// option: 1 if the operands have 64 bits, 2 if the result has.
void convert_any(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Conversion& conversion = in.details->conversion;
  const auto read = [&](std::uint32_t row, int lane) -> std::uint64_t {
    return (in.option & 1) != 0 ? warp.row<std::uint64_t>(row)[lane]
                                : warp.row<std::uint32_t>(row)[lane];
  };
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t result =
        convert(conversion, read(in.a, lane), in.b == 0 ? 0 : read(in.b, lane));
    if ((in.option & 2) != 0) {
      warp.row<std::uint64_t>(in.d)[lane] = result;
    } else {
      warp.row<std::uint32_t>(in.d)[lane] = static_cast<std::uint32_t>(result);
    }
  });
}

Handler quick_conversion(const Statement& s) {
  using U = std::uint32_t;
  if (s.opcode == "cvt.rn.bf16.f32") return unary<U, to_bf16>;
  if (s.opcode == "cvt.rn.bf16x2.f32") {
    return binary<U, [](U a, U b) -> U { return to_bf16(a) << 16 | to_bf16(b); }>;
  }
  if (s.opcode == "cvt.f32.bf16") return unary<U, [](U a) -> U { return a << 16; }>;
  if (s.opcode == "cvt.rn.f32.s32") {
    return unary<std::int32_t, [](std::int32_t a) { return static_cast<float>(a); }>;
  }
  if (s.opcode == "cvt.rn.f32.u32") {
    return unary<U, [](U a) { return static_cast<float>(a); }>;
  }
  return nullptr;
}

bool decode_conversion(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view to = s.parts[s.parts.size() - 2];
  const std::string_view from = s.last();
  const Width to_width = builder.width_of(s.operands.at(0), width_of_type(to));
  const Width from_width = builder.width_of(s.operands.at(1), width_of_type(from));
  in.d = builder.destination(s.operands[0], to_width);
  in.a = builder.source(s.operands[1], from_width, from);
  if (s.operands.size() > 2) {
    in.b = builder.source(s.operands[2], from_width, from);
  }
  if (s.operands.size() > 3) {
    return false;
  }
  if (s.parts.size() == 3) {
    in.run = integer_conversion(to, from, to_width == Width::w64, from_width == Width::w64);
  }
  if (in.run == nullptr && to_width == Width::w32 && from_width == Width::w32) {
    in.run = quick_conversion(s);
  }
  if (in.run == nullptr) {
    const auto conversion = parse_conversion(s.opcode);
    if (!conversion) {
      return false;
    }
    builder.details(in).conversion = *conversion;
    in.option = (from_width == Width::w64 ? 1 : 0) | (to_width == Width::w64 ? 2 : 0);
    in.run = convert_any;
  }
  return true;
}

constexpr std::uint64_t kOffsetBits = 0xffffffff;

// cvta from or to a window of the generic address space.
bool decode_cvta(Builder& builder, const Statement& s, Instruction& in) {
  using U = std::uint64_t;
  const bool to = s.has("to");
  if (s.last() != "u64") {
    return false;
  }
  in.d = builder.destination(s.operands.at(0), Width::w64);
  in.a = builder.source(s.operands.at(1), Width::w64);
  if (s.has("shared") || s.has("shared::cta") || s.has("shared::cluster")) {
    in.run = to ? unary<U, [](U a) -> U { return a & kOffsetBits; }>
                : unary<U, [](U a) -> U { return kSharedWindow | (a & kOffsetBits); }>;
  } else if (s.has("local")) {
    in.run = to ? unary<U, [](U a) -> U { return a & kOffsetBits; }>
                : unary<U, [](U a) -> U { return kLocalWindow | (a & kOffsetBits); }>;
  } else {
    in.run = move<U>;
  }
  return true;
}

// option: the window. 0: global.
void is_space(Warp& warp, const Instruction& in, LaneMask lanes) {
  LaneMask result = 0;
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t window = warp.row<std::uint64_t>(in.a)[lane] & kWindowMask;
    const bool is = in.option == 1   ? window == kSharedWindow
                    : in.option == 2 ? window == kLocalWindow
                                     : window != kSharedWindow && window != kLocalWindow;
    result |= LaneMask{is} << lane;
  });
  LaneMask& d = warp.predicates[in.d];
  d = (d & ~lanes) | result;
}

bool decode_is_space(Builder& builder, const Statement& s, Instruction& in) {
  in.d = builder.destination(s.operands.at(0), Width::predicate);
  in.a = builder.source(s.operands.at(1), Width::w64);
  in.option = s.part(1).starts_with("shared") ? 1 : s.part(1) == "local" ? 2 : 0;
  in.run = is_space;
  return true;
}

// mapa: the address of the same place in the block of a rank.
bool decode_mapa(Builder& builder, const Statement& s, Instruction& in) {
  using U = std::uint32_t;
  const bool wide = s.last() == "u64";
  const Width width = wide ? Width::w64 : Width::w32;
  in.d = builder.destination(s.operands.at(0), width);
  in.a = builder.source(s.operands.at(1), width);
  in.b = builder.source(s.operands.at(2), Width::w32);
  const auto map = [](auto a, U rank) {
    using A = decltype(a);
    return static_cast<A>((a & ~(A{0xff} << kRankShift)) | A{rank + 1} << kRankShift);
  };
  in.run = wide ? binary_of<std::uint64_t, U, map> : binary_of<U, U, map>;
  return true;
}

void rank_of(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    const std::uint64_t address =
        in.option != 0 ? warp.row<std::uint64_t>(in.a)[lane] : warp.row<std::uint32_t>(in.a)[lane];
    warp.row<std::uint32_t>(in.d)[lane] =
        shared_place(warp, static_cast<std::uint32_t>(address)).block->rank;
  });
}

bool decode_rank_of(Builder& builder, const Statement& s, Instruction& in) {
  in.d = builder.destination(s.operands.at(0), Width::w32);
  in.option = s.last() == "u64" ? 1 : 0;
  in.a = builder.source(s.operands.at(1), in.option != 0 ? Width::w64 : Width::w32);
  in.run = rank_of;
  return true;
}

}  // namespace

bool decode_moves(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  if (name == "mov" && s.last() != "pred") return decode_move(builder, s, in);
  if (name == "cvt") return decode_conversion(builder, s, in);
  if (name == "cvta") return decode_cvta(builder, s, in);
  if (name == "isspacep") return decode_is_space(builder, s, in);
  if (name == "mapa") return decode_mapa(builder, s, in);
  if (name == "getctarank") return decode_rank_of(builder, s, in);
  return false;
}

}  // namespace tilewright::emulator
