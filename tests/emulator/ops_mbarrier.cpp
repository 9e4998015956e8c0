// mbarrier.*
#include "emulator/mbarrier.hpp"
#include "emulator/ops.hpp"
#include "emulator/ops_memory.hpp"

namespace tilewright::emulator {
namespace {

Mbarrier barrier_of(Warp& warp, const Instruction& in, int lane) {
  return Mbarrier(resolve(warp, in, lane, 8, 8));
}

template <typename F>
void each(Warp& warp, LaneMask lanes, F&& f) {
  for (; lanes != 0; lanes &= lanes - 1) {
    f(std::countr_zero(lanes));
  }
  ++warp.grid->events;
}

std::uint32_t word(Warp& warp, std::uint32_t row, int lane) {
  return warp.row<std::uint32_t>(row)[lane];
}

void init(Warp& warp, const Instruction& in, LaneMask lanes) {
  each(warp, lanes,
       [&](int lane) { Mbarrier::init(resolve(warp, in, lane, 8, 8), word(warp, in.b, lane)); });
}

void invalidate(Warp& warp, const Instruction& in, LaneMask lanes) {
  each(warp, lanes, [&](int lane) { barrier_of(warp, in, lane).invalidate(); });
}

// b: arrivals; c: bytes to expect; option: 1 drops, 2 has a count, 4 expects bytes.
void arrive(Warp& warp, const Instruction& in, LaneMask lanes) {
  each(warp, lanes, [&](int lane) {
    Mbarrier barrier = barrier_of(warp, in, lane);
    if ((in.option & 4) != 0) {
      barrier.expect(word(warp, in.c, lane));
    }
    const std::uint32_t count = (in.option & 2) != 0 ? word(warp, in.b, lane) : 1;
    warp.row<std::uint64_t>(in.d)[lane] = barrier.arrive(count, (in.option & 1) != 0);
  });
}

void expect(Warp& warp, const Instruction& in, LaneMask lanes) {
  each(warp, lanes, [&](int lane) { barrier_of(warp, in, lane).expect(word(warp, in.b, lane)); });
}

void complete(Warp& warp, const Instruction& in, LaneMask lanes) {
  each(warp, lanes, [&](int lane) { barrier_of(warp, in, lane).complete(word(warp, in.b, lane)); });
}

// b: the parity, or a state; option: 1 a state, 2 may block.
void wait(Warp& warp, const Instruction& in, LaneMask lanes) {
  LaneMask done = 0;
  for (LaneMask left = lanes; left != 0; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const std::uint32_t parity = (in.option & 1) != 0
                                     ? Mbarrier::parity_of(warp.row<std::uint64_t>(in.b)[lane])
                                     : word(warp, in.b, lane);
    done |= LaneMask{barrier_of(warp, in, lane).phase_done(parity)} << lane;
  }
  if (done != lanes) {
    if ((in.option & 2) != 0 && !warp.grid->timeout) {
      warp.try_again();
      return;
    }
    warp.polled = 1024;
  }
  LaneMask& d = warp.predicates[in.d];
  d = (d & ~lanes) | done;
}

void pending_count(Warp& warp, const Instruction& in, LaneMask lanes) {
  for_lanes(lanes, [&](int lane) {
    warp.row<std::uint32_t>(in.d)[lane] = Mbarrier::pending_of(warp.row<std::uint64_t>(in.a)[lane]);
  });
}

bool decode_arrive(Builder& builder, const Statement& s, Instruction& in) {
  const bool expects = s.has("expect_tx");
  in.d = builder.destination(s.operands.at(0), Width::w64);
  builder.address(in, s.operands.at(1));
  in.space = space_of(builder, s, s.operands[1]);
  in.option = s.has("arrive_drop") || s.part(1) == "arrive_drop" ? 1 : 0;
  if (expects) {
    in.option |= 4;
    in.c = builder.source(s.operands.at(2), Width::w32);
  } else if (s.operands.size() > 2) {
    in.option |= 2;
    in.b = builder.source(s.operands[2], Width::w32);
  }
  in.run = arrive;
  return true;
}

bool decode_wait(Builder& builder, const Statement& s, Instruction& in) {
  in.d = builder.destination(s.operands.at(0), Width::predicate);
  builder.address(in, s.operands.at(1));
  in.space = space_of(builder, s, s.operands[1]);
  const bool parity = s.has("parity");
  in.b = builder.source(s.operands.at(2), parity ? Width::w32 : Width::w64);
  in.option = (parity ? 0 : 1) | (s.part(1) == "try_wait" ? 2 : 0);
  in.run = wait;
  return true;
}

}  // namespace

bool decode_mbarrier(Builder& builder, const Statement& s, Instruction& in) {
  if (s.part(0) != "mbarrier") {
    return false;
  }
  const std::string_view name = s.part(1);
  if (name == "arrive" || name == "arrive_drop") return decode_arrive(builder, s, in);
  if (name == "try_wait" || name == "test_wait") return decode_wait(builder, s, in);
  if (name == "pending_count") {
    in.d = builder.destination(s.operands.at(0), Width::w32);
    in.a = builder.source(s.operands.at(1), Width::w64);
    in.run = pending_count;
    return true;
  }
  builder.address(in, s.operands.at(0));
  in.space = space_of(builder, s, s.operands[0]);
  if (s.operands.size() > 1) {
    in.b = builder.source(s.operands[1], Width::w32);
  }
  in.run = name == "init"          ? init
           : name == "inval"       ? invalidate
           : name == "expect_tx"   ? expect
           : name == "complete_tx" ? complete
                                   : nullptr;
  return in.run != nullptr;
}

}  // namespace tilewright::emulator
