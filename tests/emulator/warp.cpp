// How a warp runs. Its lanes have their own program counters: lanes at the same instruction form a
// group, and the group with the lowest one that can run goes first, so that groups meet again.
#include <algorithm>

#include "emulator/machine.hpp"
#include "emulator/sync.hpp"

namespace tilewright::emulator {

int Warp::run(int budget) {
  int spent = 0;
  bool polls = false;
  if (active == 0 && !pick()) {
    return 0;
  }
  while (spent < budget) {
    const Instruction* in = &kernel->code[pc];
    if (in->flags != 0) {
      if (!others.empty()) {
        if (!pick()) {
          return spent;
        }
        in = &kernel->code[pc];
      }
      if (!may_run(*in)) {
        if (!pick()) {
          return spent;
        }
        continue;
      }
    }
    LaneMask lanes = active;
    if (in->guard >= 0) {
      const LaneMask guard = predicates[static_cast<std::size_t>(in->guard)];
      lanes &= in->guard_negated ? ~guard : guard;
    }
    at = pc++;
    ++spent;
    if (lanes != 0) {
      in->run(*this, *in, lanes);
      polls = polls || polled != 0;
      spent += static_cast<int>(std::exchange(polled, 0));
      if (stop) {
        stop = false;
        if (waits || !pick()) {
          return spent;
        }
      }
    }
  }
  if (!polls) {
    ++grid->events;  // it computes
  }
  if (active != 0 && !others.empty()) {  // whoever spins lets the others go
    others.push_back({pc, active, 0, true});
    active = 0;
  }
  return spent;
}

// Whether the group has all lanes that its instruction needs. If not, it is set aside.
bool Warp::may_run(const Instruction& in) {
  LaneMask needed = 0;
  if ((in.flags & Instruction::kAllTogether) != 0) {
    needed = alive;
  } else if ((in.flags & Instruction::kMembers) != 0) {
    const std::uint32_t* const masks = row<std::uint32_t>(in.members);
    for_lanes(active, [&](int member) { needed |= masks[member]; });
    needed &= alive;
  }
  if ((needed & ~active) == 0) {
    return true;
  }
  others.push_back({pc, active, needed, false});
  active = 0;
  return false;
}

// Chooses the group that runs next. Returns false if none can run now.
bool Warp::pick() {
  if (active != 0) {
    others.push_back({pc, active, 0, false});
    active = 0;
  }
  for (std::size_t i = 0; i < others.size(); ++i) {
    for (std::size_t j = others.size() - 1; j > i; --j) {
      if (others[j].pc == others[i].pc) {
        others[i].lanes |= others[j].lanes;
        others[i].waits_for |= others[j].waits_for;
        others[i].yields = others[i].yields && others[j].yields;
        others.erase(others.begin() + static_cast<std::ptrdiff_t>(j));
      }
    }
  }
  const auto can_run = [&](const LaneGroup& group) {
    return (group.waits_for & alive & ~group.lanes) == 0;
  };
  const LaneGroup* best = nullptr;
  for (const LaneGroup& group : others) {
    if (can_run(group) && !group.yields && (best == nullptr || group.pc < best->pc)) {
      best = &group;
    }
  }
  if (best == nullptr) {
    bool yielded = false;
    for (LaneGroup& group : others) {
      yielded = yielded || group.yields;
      group.yields = false;
    }
    return !yielded && !others.empty() && pass_mixed_syncs() && pick();
  }
  pc = best->pc;
  active = best->lanes;
  others.erase(others.begin() + (best - others.data()));
  return true;
}

// Lanes may meet at different __syncwarp: those of the mask that all wait at one pass it.
bool Warp::pass_mixed_syncs() {
  LaneMask waiting = 0;
  LaneMask needed = 0;
  for (const LaneGroup& group : others) {
    if (is_warp_sync(kernel->code[group.pc])) {
      waiting |= group.lanes;
      needed |= group.waits_for & alive;
    }
  }
  if (waiting == 0 || (needed & ~waiting) != 0) {
    return false;
  }
  for (LaneGroup& group : others) {
    if (is_warp_sync(kernel->code[group.pc])) {
      group.waits_for = 0;
      ++group.pc;
    }
  }
  return true;
}

void Warp::try_again() {
  others.push_back({at, active, 0, true});
  active = 0;
  stop = true;
}

void Warp::go_to(std::uint32_t target, LaneMask lanes) {
  if (lanes == active) {
    pc = target;
    return;
  }
  others.push_back({target, lanes, 0, false});
  active &= ~lanes;
  if (pc > target) {
    pick();
  }
}

void Warp::exit(LaneMask lanes) {
  alive &= ~lanes;
  active &= ~lanes;
  ++grid->events;
  if (alive == 0) {
    for (AsyncGroups* const groups : {&copies, &bulk_copies, &wgmmas}) {
      groups->commit();
      groups->wait(0);
    }
    for (NamedBarrier& barrier : block->barriers) {
      block->barrier_changed(barrier);
    }
    block->cluster->barrier_changed();
    if (block->done()) {
      block->registers.check_end();
    }
  }
  stop = active == 0;
}

bool Block::done() const {
  return std::all_of(warps.begin(), warps.end(), [](const auto& warp) { return warp->done(); });
}

std::uint32_t Block::live_warps() const {
  return static_cast<std::uint32_t>(
      std::count_if(warps.begin(), warps.end(), [](const auto& warp) { return !warp->done(); }));
}

bool Cluster::done() const {
  return std::all_of(blocks.begin(), blocks.end(), [](const auto& block) { return block->done(); });
}

// Lets the waiting warps go if everybody is there.
void Block::barrier_changed(NamedBarrier& barrier) {
  const std::uint32_t expected =
      barrier.expected != 0 ? barrier.expected : kWarpLanes * live_warps();
  if (barrier.arrived == 0 || barrier.arrived < expected) {
    return;
  }
  ++grid->events;
  const NamedBarrier done = std::exchange(barrier, {});
  for (const NamedBarrier::Waiter& waiter : done.waiting) {
    waiter.warp->waits = false;
    waiter.warp->named_barrier = -1;
    if (waiter.result) {
      waiter.result(done.votes, done.voters);
    }
  }
}

// Lets the warps go that wait for registers and now get them.
void Block::registers_changed() {
  ++grid->events;
  for (const auto& warp : warps) {
    if (warp->wanted_registers != 0 && registers.increase(warp->index, warp->wanted_registers)) {
      warp->wanted_registers = 0;
      warp->waits = false;
    }
  }
}

void Cluster::barrier_changed() {
  std::uint32_t live = 0;
  for (const auto& block : blocks) {
    live += block->live_warps();
  }
  if (barrier_arrived == 0 || barrier_arrived < live) {
    return;
  }
  barrier_arrived = 0;
  ++barrier_phase;
  ++blocks.front()->grid->events;
  for (Warp* const warp : std::exchange(barrier_waiting, {})) {
    warp->waits = false;
  }
}

}  // namespace tilewright::emulator
