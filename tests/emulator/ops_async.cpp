// cp.async, bulk copies, TMA, st.async.
#include <algorithm>

#include "emulator/mbarrier.hpp"
#include "emulator/ops.hpp"
#include "emulator/ops_memory.hpp"
#include "emulator/tma.hpp"

namespace tilewright::emulator {

// An address as an instruction of its own has it, so that several can be in one.
struct Address {
  std::uint32_t row = 0;
  bool wide = true;
  std::int64_t offset = 0;
};

// The operands of an asynchronous copy. Rows that are 0 are absent.
struct Copy {
  Address to, from, barrier;
  std::vector<std::uint32_t> coordinates;
  std::uint32_t size = 0;
  std::uint32_t mask = 0;  // the multicast's blocks
  Space from_space = Space::generic;
  Space to_space = Space::generic;
  NumberFormat format{};
};

namespace {

Address address_at(Builder& builder, const Operand& operand) {
  Instruction in;
  builder.address(in, operand);
  return {in.a, in.wide_address, in.immediate};
}

std::uint64_t value_of(Warp& warp, const Address& address, int lane) {
  const std::uint64_t base = address.wide ? warp.row<std::uint64_t>(address.row)[lane]
                                          : warp.row<std::uint32_t>(address.row)[lane];
  return base + static_cast<std::uint64_t>(address.offset);
}

std::byte* place_of(Warp& warp, const Address& address, Space space, int lane, std::uint32_t bytes,
                    std::uint32_t alignment) {
  Instruction in;
  in.a = address.row;
  in.wide_address = address.wide;
  in.immediate = address.offset;
  in.space = space;
  return resolve(warp, in, lane, bytes, alignment);
}

template <typename F>
void each(LaneMask lanes, F&& f) {
  for (; lanes != 0; lanes &= lanes - 1) {
    f(std::countr_zero(lanes));
  }
}

// Work that ends with bytes at an mbarrier.
void issue(Warp& warp, AsyncWork work) {
  ++warp.grid->events;
  if (settings().late) {
    warp.grid->pending.push_back({warp.block->cluster, std::move(work), describe(warp, warp.at)});
  } else {
    work();
  }
}

// In late mode, what is to be written is NaN until it is.
void poison_if_late(std::byte* place, std::size_t bytes) {
  if (settings().late) {
    poison(place, bytes);
  }
}

void complete(Warp& warp, std::byte* barrier, std::uint32_t bytes) {
  Mbarrier(barrier).complete(bytes);
  ++warp.grid->events;
}

void check_global(const void* address, std::size_t bytes) {
  resolve_global(reinterpret_cast<std::uintptr_t>(address), static_cast<std::uint32_t>(bytes), 1);
}

// Calls f with the places in SMEM of each block of a multicast's mask that have these addresses
// here.
template <typename F>
void each_target(std::uint32_t mask, std::uint32_t to, std::uint32_t barrier, F&& f) {
  for (std::uint32_t rank = 0; rank < 16; ++rank) {
    if ((mask >> rank & 1) != 0) {
      const std::uint32_t window = (rank + 1) << kRankShift;
      f(window | (to & kOffsetMask), window | (barrier & kOffsetMask));
    }
  }
}

std::uint32_t mask_of(Warp& warp, const Copy& copy, int lane) {
  return warp.row<std::uint32_t>(copy.mask)[lane] & 0xffff;
}

// A tensor map and coordinates, as they are when a copy is issued.
struct Tile {
  const std::byte* map;
  std::vector<std::int32_t> coordinates;
  TmaTile view() const { return {map, coordinates}; }
};

Tile tile_of(Warp& warp, const Address& map, const Copy& copy, int lane) {
  Tile tile{place_of(warp, map, Space::generic, lane, 128, 64), {}};
  for (const std::uint32_t row : copy.coordinates) {
    tile.coordinates.push_back(static_cast<std::int32_t>(warp.row<std::uint32_t>(row)[lane]));
  }
  return tile;
}

void tensor_load(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Copy& copy = *in.details->copy;
  each(lanes, [&](int lane) {
    const Tile tile = tile_of(warp, copy.from, copy, lane);
    const auto to = static_cast<std::uint32_t>(value_of(warp, copy.to, lane));
    const auto at = static_cast<std::uint32_t>(value_of(warp, copy.barrier, lane));
    const auto load = [&](std::uint32_t its_to, std::uint32_t its_at) {
      const SharedPlace place = shared_place(warp, its_to);
      Block& block = *place.block;
      std::byte* const barrier = resolve_shared(warp, its_at, 8, 8);
      const std::uint32_t bytes = tma_bytes(tile.map);
      poison_if_late(block.shared.at(place.offset, bytes, 16), bytes);
      issue(warp, [&warp, tile, &block, offset = place.offset, barrier] {
        tma_load(tile.view(), block.shared, offset, check_global);
        complete(warp, barrier, tma_bytes(tile.map));
      });
    };
    if (copy.mask == 0) {
      load(to, at);
    } else {
      each_target(mask_of(warp, copy, lane), to, at, load);
    }
  });
}

template <auto kMove>
void tensor_store(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Copy& copy = *in.details->copy;
  each(lanes, [&](int lane) {
    const Tile tile = tile_of(warp, copy.to, copy, lane);
    const SharedPlace from =
        shared_place(warp, static_cast<std::uint32_t>(value_of(warp, copy.from, lane)));
    warp.bulk_copies.add([&warp, tile, from] {
      kMove(tile.view(), from.block->for_async_reads(), from.offset, check_global);
      ++warp.grid->events;
    });
  });
}

std::uint32_t bulk_bytes(Warp& warp, const Copy& copy, int lane) {
  const std::uint32_t bytes = warp.row<std::uint32_t>(copy.size)[lane];
  if (bytes % 16 != 0) {
    throw EmulationError("a bulk copy of " + std::to_string(bytes) +
                         " bytes, not a multiple of 16");
  }
  return bytes;
}

// cp.async.bulk.prefetch changes nothing, but the bytes are to be memory's.
void prefetch_bulk(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Copy& copy = *in.details->copy;
  each(lanes, [&](int lane) {
    place_of(warp, copy.from, Space::global, lane, bulk_bytes(warp, copy, lane), 16);
  });
}

bool decode_prefetch_bulk(Builder& builder, const Statement& s, Instruction& in) {
  auto copy = std::make_shared<Copy>();
  copy->from = address_at(builder, s.operands.at(0));
  copy->size = builder.source(s.operands.at(1), Width::w32);
  builder.details(in).copy = copy;
  in.run = prefetch_bulk;
  return true;
}

// A copy or reduction of bytes that one dimension has. option: 1 adds, of copy.format.
void bulk_copy(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Copy& copy = *in.details->copy;
  each(lanes, [&](int lane) {
    const std::uint32_t bytes = bulk_bytes(warp, copy, lane);
    std::byte* const from = place_of(warp, copy.from, copy.from_space, lane, bytes, 16);
    std::byte* const to = place_of(warp, copy.to, copy.to_space, lane, bytes, 16);
    const bool adds = in.option == 1;
    const NumberFormat format = copy.format;
    if (copy.to_space == Space::shared && !adds) {
      poison_if_late(to, bytes);
    }
    const auto move = [from, to, bytes, adds, format] {
      if (adds) {
        reduce_add(format, to, from, bytes * 8 / static_cast<std::uint32_t>(bits_of(format)));
      } else {
        std::memmove(to, from, bytes);
      }
    };
    if (copy.barrier.row == 0) {
      warp.bulk_copies.add([&warp, move] {
        move();
        ++warp.grid->events;
      });
    } else {
      std::byte* const barrier = place_of(warp, copy.barrier, Space::shared, lane, 8, 8);
      issue(warp, [&warp, move, barrier, bytes] {
        move();
        complete(warp, barrier, bytes);
      });
    }
  });
}

// A copy of bytes from memory to the same place of several blocks, each with its mbarrier.
void bulk_multicast(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Copy& copy = *in.details->copy;
  each(lanes, [&](int lane) {
    const std::uint32_t bytes = bulk_bytes(warp, copy, lane);
    std::byte* const from = place_of(warp, copy.from, Space::global, lane, bytes, 16);
    const auto to = static_cast<std::uint32_t>(value_of(warp, copy.to, lane));
    const auto at = static_cast<std::uint32_t>(value_of(warp, copy.barrier, lane));
    each_target(mask_of(warp, copy, lane), to, at, [&](std::uint32_t its_to, std::uint32_t its_at) {
      std::byte* const target = resolve_shared(warp, its_to, bytes, 16);
      std::byte* const barrier = resolve_shared(warp, its_at, 8, 8);
      poison_if_late(target, bytes);
      issue(warp, [&warp, from, target, barrier, bytes] {
        std::memcpy(target, from, bytes);
        complete(warp, barrier, bytes);
      });
    });
  });
}

bool decode_bulk(Builder& builder, const Statement& s, Instruction& in) {
  auto copy = std::make_shared<Copy>();
  const bool is_tensor = s.has("tensor");
  const auto mbarrier = std::find_if(s.parts.begin(), s.parts.end(), [](std::string_view part) {
    return part.starts_with("mbarrier");
  });
  const bool has_barrier = mbarrier != s.parts.end();
  const bool to_global = std::find(s.parts.begin(), s.parts.end(), "global") <
                         std::find_if(
                             s.parts.begin(), s.parts.end(),
                             [](std::string_view part) { return part.starts_with("shared"); });
  const bool adds = s.part(1) == "reduce";
  if (adds && !s.has("add")) {
    return false;
  }
  copy->to = address_at(builder, s.operands.at(0));
  copy->from = address_at(builder, s.operands.at(1));
  copy->to_space = to_global ? Space::global : Space::shared;
  copy->from_space = to_global || s.has("shared::cta") ? Space::shared : Space::global;
  const Operand& map = s.operands[to_global ? 0 : 1];
  if (is_tensor) {
    if (map.parts.size() != 2 || s.has("im2col") || s.has("tile::gather4")) {
      return false;
    }
    for (const Operand& coordinate : map.parts[1].parts) {
      copy->coordinates.push_back(builder.source(coordinate, Width::w32));
    }
  }
  std::size_t next = 2;
  if (!is_tensor) {
    copy->size = builder.source(s.operands.at(next++), Width::w32);
  }
  if (has_barrier) {
    copy->barrier = address_at(builder, s.operands.at(next++));
  }
  if (s.has("multicast::cluster")) {
    copy->mask = builder.source(s.operands.at(next++), Width::w32);
    if (!is_tensor && (!has_barrier || copy->from_space != Space::global)) {
      return false;
    }
  }
  if (is_tensor) {
    in.run = !to_global ? tensor_load
             : adds     ? tensor_store<tma_reduce_add>
                        : tensor_store<tma_store>;
  } else {
    if (adds) {
      std::string_view type = s.last();
      const auto format = format_named(type);
      if (!format) {
        return false;
      }
      copy->format = *format;
    }
    in.option = adds ? 1 : 0;
    in.run = copy->mask == 0 ? bulk_copy : bulk_multicast;
  }
  builder.details(in).copy = copy;
  return true;
}

// cp.async: b: the size that is read, the rest is zeros; option: the size that is written.
void copy_async(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Copy& copy = *in.details->copy;
  each(lanes, [&](int lane) {
    const std::uint32_t read =
        in.b == 0 ? in.option : std::min(in.option, warp.row<std::uint32_t>(in.b)[lane]);
    std::byte* const to = place_of(warp, copy.to, Space::shared, lane, in.option, in.option);
    const std::byte* const from =
        read == 0 ? nullptr
                  : place_of(warp, copy.from, Space::global, lane, read, in.b == 0 ? in.option : 1);
    const std::uint32_t size = in.option;
    poison_if_late(to, size);
    warp.copies.add([&warp, to, from, read, size] {
      note_write(warp, to, size);
      if (read != 0) {
        std::memcpy(to, from, read);
      }
      std::memset(to + read, 0, size - read);
    });
  });
  ++warp.grid->events;
}

void commit_copies(Warp& warp, const Instruction&, LaneMask) { warp.copies.commit(); }
void commit_bulk(Warp& warp, const Instruction&, LaneMask) { warp.bulk_copies.commit(); }
void wait_copies(Warp& warp, const Instruction& in, LaneMask) { warp.copies.wait(in.option); }
void wait_bulk(Warp& warp, const Instruction& in, LaneMask) { warp.bulk_copies.wait(in.option); }
void wait_all_copies(Warp& warp, const Instruction&, LaneMask) {
  warp.copies.commit();
  warp.copies.wait(0);
}

// cp.async.mbarrier.arrive: an arrival when the thread's copies are there. Without .noinc it has
// raised the pending count itself, so that nothing changes. option: 1 noinc.
void arrive_after_copies(Warp& warp, const Instruction& in, LaneMask lanes) {
  each(lanes, [&](int lane) {
    std::byte* const barrier = resolve(warp, in, lane, 8, 8);
    if (in.option == 0) {
      return;
    }
    issue(warp, [&warp, barrier] {
      warp.copies.commit();
      warp.copies.wait(0);
      Mbarrier(barrier).arrive(1);
    });
  });
}

bool decode_copy_async(Builder& builder, const Statement& s, Instruction& in) {
  if (s.starts("cp.async.commit_group")) {
    in.run = commit_copies;
  } else if (s.starts("cp.async.wait_group")) {
    in.option = static_cast<std::uint32_t>(s.operands.at(0).bits);
    in.run = wait_copies;
  } else if (s.starts("cp.async.wait_all")) {
    in.run = wait_all_copies;
  } else if (s.starts("cp.async.mbarrier.arrive")) {
    builder.address(in, s.operands.at(0));
    in.space = space_of(builder, s, s.operands[0]);
    in.option = s.has("noinc") ? 1 : 0;
    in.run = arrive_after_copies;
  } else {
    auto copy = std::make_shared<Copy>();
    copy->to = address_at(builder, s.operands.at(0));
    copy->from = address_at(builder, s.operands.at(1));
    in.option = static_cast<std::uint32_t>(s.operands.at(2).bits);
    const std::size_t rest = s.operands.size() - (s.has("L2::cache_hint") ? 1 : 0);
    if (rest > 3) {
      if (s.operands[3].kind == Operand::Kind::reg && s.operands[3].reg.width == Width::predicate) {
        return false;  // ignore-src
      }
      in.b = builder.source(s.operands[3], Width::w32);
    }
    builder.details(in).copy = copy;
    in.run = copy_async;
  }
  return true;
}

// st.async and red.async: details.a has the values, in words of option bytes.
void store_async(Warp& warp, const Instruction& in, LaneMask lanes) {
  const Copy& copy = *in.details->copy;
  const Details& details = *in.details;
  const auto word = in.option & 0xff;
  const bool adds = (in.option & 0x100) != 0;
  each(lanes, [&](int lane) {
    std::vector<std::byte> values(details.a.size() * word);
    for (std::size_t i = 0; i < details.a.size(); ++i) {
      const std::uint64_t value = word == 8 ? warp.row<std::uint64_t>(details.a[i])[lane]
                                            : warp.row<std::uint32_t>(details.a[i])[lane];
      std::memcpy(values.data() + i * word, &value, word);
    }
    const auto bytes = static_cast<std::uint32_t>(values.size());
    std::byte* const to = place_of(warp, copy.to, Space::shared, lane, bytes, bytes);
    std::byte* const barrier = place_of(warp, copy.barrier, Space::shared, lane, 8, 8);
    if (!adds) {
      poison_if_late(to, bytes);
    }
    issue(warp, [&warp, to, barrier, values, bytes, adds, word, format = copy.format] {
      if (adds) {
        reduce_add(format, to, values.data(), bytes / word);
      } else {
        std::memcpy(to, values.data(), bytes);
      }
      complete(warp, barrier, bytes);
    });
  });
}

bool decode_store_async(Builder& builder, const Statement& s, Instruction& in) {
  auto copy = std::make_shared<Copy>();
  copy->to = address_at(builder, s.operands.at(0));
  copy->barrier = address_at(builder, s.operands.at(2));
  const Width width = width_of_type(s.last());
  Details& details = builder.details(in);
  const Operand& values = s.operands[1];
  if (values.kind == Operand::Kind::vector) {
    for (const Operand& value : values.parts) {
      details.a.push_back(builder.source(value, width, s.last()));
    }
  } else {
    details.a.push_back(builder.source(values, width, s.last()));
  }
  in.option = width == Width::w64 ? 8 : 4;
  if (s.part(0) == "red") {
    if (!s.has("add")) {
      return false;
    }
    in.option |= 0x100;
    copy->format = format_named(s.last()).value_or(NumberFormat::u32);
  }
  details.copy = copy;
  in.run = store_async;
  return true;
}

}  // namespace

void AsyncGroups::add(AsyncWork work) {
  if (settings().late) {
    open_.push_back(std::move(work));
  } else {
    work();
  }
}

void AsyncGroups::commit() { closed_.push_back(std::exchange(open_, {})); }

void AsyncGroups::wait(std::size_t pending) {
  const std::size_t ends = closed_.size() - std::min(pending, closed_.size());
  for (std::size_t i = 0; i < ends; ++i) {
    for (const AsyncWork& work : closed_[i]) {
      work();
    }
  }
  closed_.erase(closed_.begin(), closed_.begin() + static_cast<std::ptrdiff_t>(ends));
}

bool decode_async(Builder& builder, const Statement& s, Instruction& in) {
  if (s.starts("cp.async.bulk.commit_group")) {
    in.run = commit_bulk;
  } else if (s.starts("cp.async.bulk.wait_group")) {
    in.option = static_cast<std::uint32_t>(s.operands.at(0).bits);
    in.run = wait_bulk;
  } else if (s.starts("cp.async.bulk.prefetch")) {
    return decode_prefetch_bulk(builder, s, in);
  } else if (s.starts("cp.async.bulk") || s.starts("cp.reduce.async.bulk")) {
    return decode_bulk(builder, s, in);
  } else if (s.starts("cp.async")) {
    return decode_copy_async(builder, s, in);
  } else if ((s.part(0) == "st" || s.part(0) == "red") && s.has("async")) {
    return decode_store_async(builder, s, in);
  } else {
    return false;
  }
  return true;
}

}  // namespace tilewright::emulator
