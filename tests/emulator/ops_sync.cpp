// Barriers of blocks and clusters.
#include "emulator/ops.hpp"
#include "emulator/sync.hpp"

namespace tilewright::emulator {
namespace {

void warp_sync(Warp&, const Instruction&, LaneMask) {}

enum Reduction : std::uint32_t { kPopc = 1, kAnd = 2, kOr = 3 };

// option: bits 0 and 1: the reduction; 2: waits; 3: the predicate is negated; 4: there is a count.
// a: the barrier; b: the count; c: the predicate; d: the result.
void barrier(Warp& warp, const Instruction& in, LaneMask lanes) {
  const int lane = std::countr_zero(lanes);
  const std::uint32_t number = warp.row<std::uint32_t>(in.a)[lane];
  if (number >= warp.block->barriers.size()) {
    throw EmulationError("barrier " + std::to_string(number) + " of 16");
  }
  NamedBarrier& barrier = warp.block->barriers[number];
  const bool has_count = (in.option & 16) != 0;
  const std::uint32_t count = has_count ? warp.row<std::uint32_t>(in.b)[lane] : 0;
  if (has_count && (count == 0 || count % kWarpLanes != 0)) {
    throw EmulationError("a barrier of " + std::to_string(count) +
                         " threads, not a multiple of 32");
  }
  if (barrier.arrived > 0 && barrier.expected != count) {
    throw EmulationError("barrier " + std::to_string(number) + " is for " +
                         std::to_string(barrier.expected) + " threads, and here for " +
                         std::to_string(count));
  }
  barrier.expected = count;
  barrier.arrived += kWarpLanes;
  ++warp.grid->events;
  if (has_count && barrier.arrived > count) {
    throw EmulationError("more threads at barrier " + std::to_string(number) + " than its " +
                         std::to_string(count));
  }
  NamedBarrier::Waiter waiter{&warp, nullptr};
  if (const std::uint32_t reduction = in.option & 3; reduction != 0) {
    LaneMask votes = warp.predicates[in.c];
    votes = ((in.option & 8) != 0 ? ~votes : votes) & lanes;
    barrier.votes += static_cast<std::uint32_t>(std::popcount(votes));
    barrier.voters += static_cast<std::uint32_t>(std::popcount(lanes));
    waiter.result = [&warp, &in, lanes, reduction](std::uint32_t ayes, std::uint32_t voters) {
      if (reduction == kPopc) {
        for_lanes(lanes, [&](int l) { warp.row<std::uint32_t>(in.d)[l] = ayes; });
      } else {
        const bool result = reduction == kAnd ? ayes == voters : ayes > 0;
        LaneMask& d = warp.predicates[in.d];
        d = result ? d | lanes : d & ~lanes;
      }
    };
  }
  if ((in.option & 4) != 0) {
    barrier.waiting.push_back(std::move(waiter));
    warp.waits = true;
    warp.named_barrier = static_cast<int>(number);
    warp.stop = true;
  }
  warp.block->barrier_changed(barrier);
}

bool decode_barrier(Builder& builder, const Statement& s, Instruction& in) {
  in.flags = Instruction::kAllTogether;
  in.run = barrier;
  std::size_t at = 0;
  if (s.has("red")) {
    const bool counts = s.has("popc");
    in.option = counts ? kPopc : s.has("and") ? kAnd : kOr;
    in.d = builder.destination(s.operands.at(0), counts ? Width::w32 : Width::predicate);
    in.c = builder.source(s.operands.back(), Width::predicate);
    in.option |= s.operands.back().negated ? 8 : 0;
    at = 1;
  }
  const std::size_t end = s.operands.size() - (s.has("red") ? 1 : 0);
  in.a = builder.source(s.operands.at(at), Width::w32);
  if (at + 1 < end) {
    in.b = builder.source(s.operands[at + 1], Width::w32);
    in.option |= 16;
  }
  in.option |= s.has("arrive") ? 0 : 4;
  return true;
}

void cluster_arrive(Warp& warp, const Instruction&, LaneMask) {
  Cluster& cluster = *warp.block->cluster;
  if (warp.cluster_phase > cluster.barrier_phase) {
    throw EmulationError("a second arrival at the cluster's barrier before the wait");
  }
  warp.cluster_phase = cluster.barrier_phase + 1;
  ++cluster.barrier_arrived;
  ++warp.grid->events;
  cluster.barrier_changed();
}

void cluster_wait(Warp& warp, const Instruction&, LaneMask) {
  Cluster& cluster = *warp.block->cluster;
  if (warp.cluster_phase > cluster.barrier_phase) {
    cluster.barrier_waiting.push_back(&warp);
    warp.waits = true;
    warp.stop = true;
  }
}

}  // namespace

bool is_warp_sync(const Instruction& instruction) { return instruction.run == warp_sync; }

bool decode_sync(Builder& builder, const Statement& s, Instruction& in) {
  const std::string_view name = s.part(0);
  if (name != "bar" && name != "barrier") {
    return false;
  }
  if (s.part(1) == "warp") {
    in.members = builder.source(s.operands.at(0), Width::w32);
    in.flags = Instruction::kMembers;
    in.run = warp_sync;
    return true;
  }
  if (s.part(1).starts_with("cluster")) {
    in.flags = Instruction::kAllTogether;
    in.run = s.has("arrive") ? cluster_arrive : cluster_wait;
    return true;
  }
  return decode_barrier(builder, s, in);
}

}  // namespace tilewright::emulator
