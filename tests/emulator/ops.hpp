// Handlers of instructions that do the same in every lane, made from a function of one lane.
#pragma once

#include <type_traits>
#include <utility>

#include "emulator/machine.hpp"
#include "emulator/parser.hpp"

namespace tilewright::emulator {

inline void check_whole_warp(LaneMask lanes) {
  if (lanes != kAllLanes) {
    throw EmulationError("not all lanes of the warp execute this instruction");
  }
}

// d = kF(a), d = kF(a, b), d = kF(a, b, c). The result may have another type than the operands.
template <typename A, auto kF>
void unary(Warp& warp, const Instruction& in, LaneMask lanes) {
  using D = decltype(kF(A{}));
  auto* const d = warp.row<D>(in.d);
  const auto* const a = warp.row<A>(in.a);
  for_lanes(lanes, [&](int lane) { put<D>(d, lane, kF(get<A>(a, lane))); });
}

template <typename A, typename B, auto kF>
void binary_of(Warp& warp, const Instruction& in, LaneMask lanes) {
  using D = decltype(kF(A{}, B{}));
  auto* const d = warp.row<D>(in.d);
  const auto* const a = warp.row<A>(in.a);
  const auto* const b = warp.row<B>(in.b);
  for_lanes(lanes, [&](int lane) { put<D>(d, lane, kF(get<A>(a, lane), get<B>(b, lane))); });
}

template <typename T, auto kF>
void binary(Warp& warp, const Instruction& in, LaneMask lanes) {
  binary_of<T, T, kF>(warp, in, lanes);
}

template <typename A, typename B, typename C, auto kF>
void ternary_of(Warp& warp, const Instruction& in, LaneMask lanes) {
  using D = decltype(kF(A{}, B{}, C{}));
  auto* const d = warp.row<D>(in.d);
  const auto* const a = warp.row<A>(in.a);
  const auto* const b = warp.row<B>(in.b);
  const auto* const c = warp.row<C>(in.c);
  for_lanes(lanes, [&](int lane) {
    put<D>(d, lane, kF(get<A>(a, lane), get<B>(b, lane), get<C>(c, lane)));
  });
}

template <typename T, auto kF>
void ternary(Warp& warp, const Instruction& in, LaneMask lanes) {
  ternary_of<T, T, T, kF>(warp, in, lanes);
}

// f.template operator()<T>() for the type's T; null if it is none of them.
template <typename F>
Handler by_integer(std::string_view type, F&& f) {
  if (type == "u16" || type == "b16") return f.template operator()<std::uint16_t>();
  if (type == "s16") return f.template operator()<std::int16_t>();
  if (type == "u32" || type == "b32") return f.template operator()<std::uint32_t>();
  if (type == "s32") return f.template operator()<std::int32_t>();
  if (type == "u64" || type == "b64") return f.template operator()<std::uint64_t>();
  if (type == "s64") return f.template operator()<std::int64_t>();
  return nullptr;
}

template <typename F>
Handler by_number(std::string_view type, F&& f) {
  if (type == "f32") return f.template operator()<float>();
  if (type == "f64") return f.template operator()<double>();
  return by_integer(type, f);
}

// Sets d, a, b, c from the operands, all of one width.
inline void set_operands(Builder& builder, const Statement& s, Instruction& in, Width width,
                         std::string_view type) {
  in.d = builder.destination(s.operands.at(0), width);
  in.a = builder.source(s.operands.at(1), width, type);
  if (s.operands.size() > 2) {
    in.b = builder.source(s.operands[2], width, type);
  }
  if (s.operands.size() > 3) {
    in.c = builder.source(s.operands[3], width, type);
  }
}

}  // namespace tilewright::emulator
