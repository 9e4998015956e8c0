// Loads and stores.
#include "emulator/ops_memory.hpp"

#include <algorithm>

#include "emulator/ops.hpp"

namespace tilewright::emulator {
namespace {

// Elements of type T, each into a row of words W. Narrower elements are extended as their type is.
template <typename T, typename W>
void load(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Details& details = *in.details;
  const auto count = static_cast<std::uint32_t>(details.d.size());
  constexpr auto kBytes = static_cast<std::uint32_t>(sizeof(T));
  for_lanes(lanes, [&](int lane) {
    const std::byte* const from = resolve(warp, in, lane, kBytes * count, kBytes * count);
    for (std::uint32_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, from + i * kBytes, kBytes);
      using Extended = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
      reinterpret_cast<W*>(warp.rows.data() + details.d[i])[lane] =
          static_cast<W>(static_cast<Extended>(value));
    }
  });
  warp.polled = in.option;
}

// Where a warp has not waited for the launches ahead, a word is what one of them might not have
// overwritten yet: the same, one less, or a wild one.
void load_old(Warp& warp, const Instruction& in, LaneMask lanes) {
  load<std::uint32_t, std::uint32_t>(warp, in, lanes);
  if (warp.has_waited) {
    return;
  }
  for_lanes(lanes, [&](int lane) {
    std::uint32_t& word = warp.row<std::uint32_t>(in.details->d[0])[lane];
    const std::uint32_t olds[] = {word, word - 1, word * 0x9e3779b1u + 1};
    word = olds[reinterpret_cast<std::uintptr_t>(resolve(warp, in, lane, 4, 4)) / 4 % 3];
  });
}

template <typename T, typename W>
void store(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Details& details = *in.details;
  const auto count = static_cast<std::uint32_t>(details.a.size());
  constexpr auto kBytes = static_cast<std::uint32_t>(sizeof(T));
  for_lanes(lanes, [&](int lane) {
    std::byte* const to = resolve(warp, in, lane, kBytes * count, kBytes * count);
    note_write(warp, to, kBytes * count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const auto value =
          static_cast<T>(reinterpret_cast<const W*>(warp.rows.data() + details.a[i])[lane]);
      std::memcpy(to + i * kBytes, &value, kBytes);
    }
  });
  ++warp.grid->events;
}

template <bool kLoad, typename T>
Handler access(bool wide) {
  if constexpr (kLoad) {
    return wide ? load<T, std::uint64_t> : load<T, std::uint32_t>;
  } else {
    return wide ? store<T, std::uint64_t> : store<T, std::uint32_t>;
  }
}

template <bool kLoad>
Handler access_of(std::string_view type, bool wide) {
  const bool is_signed = kLoad && type.starts_with('s');
  if (type.ends_with("64")) return wide ? access<kLoad, std::uint64_t>(true) : nullptr;
  if (type.ends_with("32")) {
    return is_signed ? access<kLoad, std::int32_t>(wide) : access<kLoad, std::uint32_t>(wide);
  }
  if (type.ends_with("16")) {
    return is_signed ? access<kLoad, std::int16_t>(wide) : access<kLoad, std::uint16_t>(wide);
  }
  if (type.ends_with("8")) {
    return is_signed ? access<kLoad, std::int8_t>(wide) : access<kLoad, std::uint8_t>(wide);
  }
  return nullptr;
}

// What the warp has written to SMEM, the async proxy may read from now on.
void fence_async_proxy(Warp& warp, const Instruction&, LaneMask) {
  const auto mark = static_cast<std::uint8_t>(warp.index + 1);
  std::vector<std::uint8_t>& unfenced = warp.block->unfenced;
  std::replace(unfenced.begin(), unfenced.end(), mark, std::uint8_t{0});
}

// prefetch.global: changes nothing, but the address is to be one of memory.
void prefetch(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) { resolve(warp, in, lane, 1, 1); });
}

bool decode_load(Builder& builder, const Statement& s, Instruction& in) {
  builder.address(in, s.operands.at(1));
  in.space = space_of(builder, s, s.operands[1]);
  Details& details = builder.details(in);
  const Operand& to = s.operands[0];
  bool wide = false;
  const auto add = [&](const Operand& operand) {
    const Width width = builder.width_of(operand, width_of_type(s.last()));
    wide = width == Width::w64;
    details.d.push_back(builder.destination(operand, width));
  };
  if (to.kind == Operand::Kind::vector) {
    std::for_each(to.parts.begin(), to.parts.end(), add);
  } else {
    add(to);
  }
  // A load that may be part of a loop that waits uses up more of the warp's turn.
  in.option = s.has("acquire") || s.has("relaxed") || s.has("volatile") ? 128 : 0;
  in.run = access_of<true>(s.last(), wide);
  if (settings().peeks_are_old && s.has("relaxed") && s.has("global") && s.last() == "b32") {
    in.run = load_old;
  }
  return in.run != nullptr;
}

bool decode_store(Builder& builder, const Statement& s, Instruction& in) {
  builder.address(in, s.operands.at(0));
  in.space = space_of(builder, s, s.operands[0]);
  Details& details = builder.details(in);
  const Operand& from = s.operands.at(1);
  bool wide = false;
  const auto add = [&](const Operand& operand) {
    const Width width = builder.width_of(operand, width_of_type(s.last()));
    wide = width == Width::w64;
    details.a.push_back(builder.source(operand, width, s.last()));
  };
  if (from.kind == Operand::Kind::vector) {
    std::for_each(from.parts.begin(), from.parts.end(), add);
  } else {
    add(from);
  }
  in.run = access_of<false>(s.last(), wide);
  return in.run != nullptr;
}

}  // namespace

Space space_of(Builder& builder, const Statement& s, const Operand& address) {
  if (s.has("global") || s.has("const")) return Space::global;
  for (const std::string_view part : s.parts) {
    if (part.starts_with("shared")) return Space::shared;
  }
  if (s.has("local")) return Space::local;
  const Operand& base = address.parts.front();
  const Variable* const variable =
      base.kind == Operand::Kind::symbol ? builder.find_variable(base.name) : nullptr;
  if (s.has("param")) {
    return variable != nullptr && variable->space == Space::local ? Space::local : Space::parameter;
  }
  return variable != nullptr ? variable->space : Space::generic;
}

bool decode_memory(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  if (name == "ld" || name == "ldu") return decode_load(builder, s, in);
  if (name == "st" && !s.has("async") && !s.has("bulk")) return decode_store(builder, s, in);
  if (s.starts("fence.proxy.async")) {
    in.run = fence_async_proxy;
    return true;
  }
  if (s.starts("prefetch.global")) {
    builder.address(in, s.operands.at(0));
    in.space = Space::global;
    in.run = prefetch;
    return true;
  }
  // Hints and orders: stores are seen by everybody at once here.
  return name == "prefetch" || name == "prefetchu" || name == "discard" ||
         name == "applypriority" || name == "membar" || name == "fence" || name == "createpolicy" ||
         s.starts("cp.async.bulk.prefetch.tensor") || name == "pragma";
}

}  // namespace tilewright::emulator
