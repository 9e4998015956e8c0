// Instructions in which the lanes of a warp see each other: shfl, vote, match, redux, elect.
#include <algorithm>
#include <cmath>

#include "emulator/ops.hpp"

namespace tilewright::emulator {
namespace {

enum class Shuffle { up, down, bfly, idx };

// b: lane or offset; c: clamp and segment mask; option: predicate + 1.
template <Shuffle kShuffle>
void shuffle(Warp& warp, const Instruction& in, LaneMask lanes) {
  const LaneRegisters values = warp.registers(in.a);
  const LaneRegisters offsets = warp.registers(in.b);
  const LaneRegisters limits = warp.registers(in.c);
  LaneMask inside = 0;
  LaneRegisters& d = warp.registers(in.d);
  for_lanes(lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    const int b = static_cast<int>(offsets[l] & 31);
    const int clamp = static_cast<int>(limits[l] & 31);
    const int segment = static_cast<int>(limits[l] >> 8 & 31);
    const int max = (lane & segment) | (clamp & ~segment);
    const int min = lane & segment;
    int from = 0;
    bool is_inside = false;
    if constexpr (kShuffle == Shuffle::up) {
      from = lane - b;
      is_inside = from >= max;
    } else if constexpr (kShuffle == Shuffle::down) {
      from = lane + b;
      is_inside = from <= max;
    } else if constexpr (kShuffle == Shuffle::bfly) {
      from = lane ^ b;
      is_inside = from <= max;
    } else {
      from = min | (b & ~segment);
      is_inside = from <= max;
    }
    from = is_inside ? from : lane;
    // What a lane that does not take part gives is undefined.
    constexpr std::uint32_t kUndefined = std::uint32_t{kPoison} << 16 | kPoison;
    d[l] = (lanes >> from & 1) != 0 ? values[static_cast<std::size_t>(from)] : kUndefined;
    inside |= LaneMask{is_inside} << lane;
  });
  if (in.option != 0) {
    LaneMask& p = warp.predicates[in.option - 1];
    p = (p & ~lanes) | inside;
  }
}

bool decode_shuffle(Builder& builder, const Statement& s, Instruction& in) {
  const Operand& to = s.operands.at(0);
  if (to.kind == Operand::Kind::pair) {
    in.d = builder.destination(to.parts[0], Width::w32);
    in.option = builder.destination(to.parts[1], Width::predicate) + 1;
  } else {
    in.d = builder.destination(to, Width::w32);
  }
  in.a = builder.source(s.operands.at(1), Width::w32);
  in.b = builder.source(s.operands.at(2), Width::w32);
  in.c = builder.source(s.operands.at(3), Width::w32);
  in.members = builder.source(s.operands.at(4), Width::w32);
  const std::string_view mode = s.part(2);
  in.run = mode == "up"     ? shuffle<Shuffle::up>
           : mode == "down" ? shuffle<Shuffle::down>
           : mode == "bfly" ? shuffle<Shuffle::bfly>
                            : shuffle<Shuffle::idx>;
  return true;
}

// Calls f(group) for the lanes of each member mask: usually all lanes have the same one.
template <typename F>
void for_groups(Warp& warp, const Instruction& in, LaneMask lanes, F&& f) {
  const auto* const masks = warp.row<std::uint32_t>(in.members);
  while (lanes != 0) {
    const std::uint32_t mask = masks[std::countr_zero(lanes)];
    LaneMask group = 0;
    for_lanes(lanes, [&](int lane) { group |= LaneMask{masks[lane] == mask} << lane; });
    f(group);
    lanes &= ~group;
  }
}

enum class Vote { all, any, uni, ballot };

template <Vote kVote>
void vote(Warp& warp, const Instruction& in, LaneMask lanes) {
  const LaneMask p = in.option != 0 ? ~warp.predicates[in.a] : warp.predicates[in.a];
  for_groups(warp, in, lanes, [&](LaneMask group) {
    const LaneMask ayes = p & group;
    if constexpr (kVote == Vote::ballot) {
      for_lanes(group, [&](int lane) { warp.row<std::uint32_t>(in.d)[lane] = ayes; });
    } else {
      const bool result = kVote == Vote::all   ? ayes == group
                          : kVote == Vote::any ? ayes != 0
                                               : ayes == group || ayes == 0;
      LaneMask& d = warp.predicates[in.d];
      d = result ? d | group : d & ~group;
    }
  });
}

bool decode_vote(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view mode = s.part(2);
  in.d = builder.destination(s.operands.at(0), mode == "ballot" ? Width::w32 : Width::predicate);
  if (s.operands.at(1).kind == Operand::Kind::immediate) {
    in.a = builder.allocate(Width::predicate).where;  // which nobody writes: false
    in.option = s.operands[1].bits != 0 ? 1 : 0;
  } else {
    in.a = builder.source(s.operands[1], Width::predicate);
    in.option = s.operands[1].negated ? 1 : 0;
  }
  in.members = builder.source(s.operands.at(2), Width::w32);
  in.run = mode == "ballot" ? vote<Vote::ballot>
           : mode == "all"  ? vote<Vote::all>
           : mode == "any"  ? vote<Vote::any>
                            : vote<Vote::uni>;
  return true;
}

// option: 0 any, 1 all, whose predicate is in b - 1.
template <typename T>
void match(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_groups(warp, in, lanes, [&](LaneMask group) {
    const auto* const a = warp.row<T>(in.a);
    LaneMask all_same = group;
    LaneRegisters masks{};
    for_lanes(group, [&](int lane) {
      LaneMask same = 0;
      for_lanes(group, [&](int other) { same |= LaneMask{a[other] == a[lane]} << other; });
      masks[static_cast<std::size_t>(lane)] = same;
      all_same &= same;
    });
    const bool is_same = all_same == group;
    for_lanes(group, [&](int lane) {
      warp.row<std::uint32_t>(in.d)[lane] = in.option == 0 ? masks[static_cast<std::size_t>(lane)]
                                            : is_same      ? group
                                                           : 0;
    });
    if (in.b != 0) {
      LaneMask& p = warp.predicates[in.b - 1];
      p = is_same ? p | group : p & ~group;
    }
  });
}

bool decode_match(Builder& builder, const Statement& s, Instruction& in) {
  const Operand& to = s.operands.at(0);
  in.option = s.has("all") ? 1 : 0;
  if (to.kind == Operand::Kind::pair) {
    in.d = builder.destination(to.parts[0], Width::w32);
    in.b = builder.destination(to.parts[1], Width::predicate) + 1;
  } else {
    in.d = builder.destination(to, Width::w32);
  }
  const Width width =
      width_of_type(s.parts[s.has("sync") && s.last() == "sync" ? 2 : s.parts.size() - 1]);
  in.a = builder.source(s.operands.at(1), width);
  in.members = builder.source(s.operands.at(2), Width::w32);
  in.run = width == Width::w64 ? match<std::uint64_t> : match<std::uint32_t>;
  return true;
}

template <typename T, auto kF>
void redux(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_groups(warp, in, lanes, [&](LaneMask group) {
    const auto* const a = warp.row<T>(in.a);
    T result = get<T>(a, std::countr_zero(group));
    for_lanes(group & (group - 1), [&](int lane) { result = kF(result, get<T>(a, lane)); });
    for_lanes(group, [&](int lane) { put<T>(warp.row<T>(in.d), lane, result); });
  });
}

bool decode_redux(Builder& builder, const Statement& s, Instruction& in) {
  in.d = builder.destination(s.operands.at(0), Width::w32);
  in.a = builder.source(s.operands.at(1), Width::w32);
  in.members = builder.source(s.operands.at(2), Width::w32);
  using U = std::uint32_t;
  using I = std::int32_t;
  const std::string_view operation = s.part(2);
  const bool is_signed = s.last() == "s32";
  if (s.last() == "f32") return false;  // not of sm_90
  if (operation == "add") in.run = redux<U, [](U a, U b) { return a + b; }>;
  if (operation == "and") in.run = redux<U, [](U a, U b) { return a & b; }>;
  if (operation == "or") in.run = redux<U, [](U a, U b) { return a | b; }>;
  if (operation == "xor") in.run = redux<U, [](U a, U b) { return a ^ b; }>;
  if (operation == "min") {
    in.run = is_signed ? redux<I, [](I a, I b) { return std::min(a, b); }>
                       : redux<U, [](U a, U b) { return std::min(a, b); }>;
  }
  if (operation == "max") {
    in.run = is_signed ? redux<I, [](I a, I b) { return std::max(a, b); }>
                       : redux<U, [](U a, U b) { return std::max(a, b); }>;
  }
  return in.run != nullptr;
}

void elect(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_groups(warp, in, lanes, [&](LaneMask group) {
    const LaneMask leader = group & -group;
    LaneMask& p = warp.predicates[in.b];
    p = (p & ~group) | leader;
    for_lanes(group, [&](int lane) {
      warp.row<std::uint32_t>(in.d)[lane] = static_cast<std::uint32_t>(std::countr_zero(leader));
    });
  });
}

void active_mask(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) { warp.row<std::uint32_t>(in.d)[lane] = lanes; });
}

}  // namespace

bool decode_warp_wide(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  if (name == "activemask") {
    in.d = builder.destination(s.operands.at(0), Width::w32);
    in.run = active_mask;
    return true;
  }
  in.flags = Instruction::kMembers;
  if (name == "shfl") return decode_shuffle(builder, s, in);
  if (name == "vote") return decode_vote(builder, s, in);
  if (name == "match") return decode_match(builder, s, in);
  if (name == "redux") return decode_redux(builder, s, in);
  if (name == "elect") {
    in.d = builder.destination(s.operands.at(0).parts.at(0), Width::w32);
    in.b = builder.destination(s.operands[0].parts.at(1), Width::predicate);
    in.members = builder.source(s.operands.at(1), Width::w32);
    in.run = elect;
    return true;
  }
  in.flags = 0;
  return false;
}

}  // namespace tilewright::emulator
