// The running state of a launch: warps, blocks, clusters and the grid.
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "emulator/memory.hpp"
#include "emulator/program.hpp"
#include "emulator/register_pool.hpp"
#include "emulator/shared_memory.hpp"

namespace tilewright::emulator {

struct Block;
struct Cluster;
struct Grid;

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

// Lanes of a warp that are at the same instruction, but do not run now.
struct LaneGroup {
  std::uint32_t pc = 0;
  LaneMask lanes = 0;
  LaneMask waits_for = 0;  // the lanes that it must meet first; 0: it can run
  bool yields = false;     // others go first
};

// Asynchronous work. In `eager` mode it is done at once, in `late` mode when it must be.
using AsyncWork = std::function<void()>;

// Work that its issuer waits for in groups.
class AsyncGroups {
 public:
  void add(AsyncWork work);
  void commit();
  void wait(std::size_t pending);  // until at most so many groups are unfinished

 private:
  std::vector<AsyncWork> open_;
  std::vector<std::vector<AsyncWork>> closed_;
};

struct Warp {
  Warp() = default;
  Warp(const Warp&) = delete;
  Warp& operator=(const Warp&) = delete;
  ~Warp();

  Block* block = nullptr;
  Grid* grid = nullptr;
  const Kernel* kernel = nullptr;
  std::uint32_t index = 0;  // in the block
  std::vector<std::byte> rows;
  std::vector<LaneMask> predicates;

  std::uint32_t pc = 0;
  LaneMask active = 0;
  LaneMask alive = 0;
  LaneMask carry = 0;  // the carry flag of each lane
  std::vector<LaneGroup> others;
  bool stop = false;                   // a handler wants the scheduler
  bool waits = false;                  // for a barrier of the block or cluster, or for registers
  std::uint32_t polled = 0;            // the last instruction's part of the budget
  int lane = -1;                       // of the access under way, for messages
  std::uint32_t at = 0;                // the instruction under way, for messages
  int named_barrier = -1;              // that it waits for
  std::uint32_t wanted_registers = 0;  // a thread, that it waits for
  std::uint64_t cluster_phase = 0;     // the phase of the cluster that its last arrival ends
  bool has_waited = false;             // for the launches ahead
  AsyncGroups copies, bulk_copies, wgmmas;

  template <typename T>
  auto* row(std::uint32_t where) {
    using Word = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
    return reinterpret_cast<Word*>(rows.data() + where);
  }
  LaneRegisters& registers(std::uint32_t where) {
    return *reinterpret_cast<LaneRegisters*>(rows.data() + where);
  }

  bool done() const { return alive == 0; }

  // Runs until the warp must wait, or for about `budget` instructions. Returns how many it ran.
  int run(int budget);

  // For handlers. The instruction is tried again later, other lanes and warps go first.
  void try_again();
  void go_to(std::uint32_t target, LaneMask lanes);
  void exit(LaneMask lanes);

 private:
  bool pick();
  bool pass_mixed_syncs();
  bool may_run(const Instruction& instruction);
};

struct NamedBarrier {
  std::uint32_t expected = 0;  // threads; 0: all of the block
  std::uint32_t arrived = 0;
  std::uint32_t votes = 0;  // of barrier.red
  std::uint32_t voters = 0;
  struct Waiter {
    Warp* warp;
    std::function<void(std::uint32_t votes, std::uint32_t voters)> result;
  };
  std::vector<Waiter> waiting;
};

struct Block {
  Cluster* cluster = nullptr;
  Grid* grid = nullptr;
  Dim3 index;
  std::uint32_t rank = 0;  // in the cluster
  std::uint32_t smid = 0;
  std::vector<std::byte> shared_storage;
  SharedMemory shared;
  std::vector<std::uint8_t> unfenced;  // see SharedMemory
  std::vector<std::byte> local;
  std::vector<std::unique_ptr<Warp>> warps;
  std::array<NamedBarrier, 16> barriers;
  RegisterPool registers;

  bool done() const;
  std::uint32_t live_warps() const;
  // Notes that a warp has written SMEM through the generic proxy.
  void written(const Warp& warp, std::uint32_t offset, std::uint32_t bytes);
  // The SMEM as the async proxy reads it.
  SharedMemory for_async_reads() const;
  void barrier_changed(NamedBarrier& barrier);
  void registers_changed();
};

struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  std::uint32_t barrier_arrived = 0;  // warps
  std::vector<Warp*> barrier_waiting;
  std::uint64_t barrier_phase = 0;

  bool done() const;
  void barrier_changed();
};

struct LaunchShape {
  Dim3 grid, block, cluster;
  std::uint32_t dynamic_shared_bytes = 0;
  bool has_cluster = false;
};

// A copy into a cluster's SMEM that is under way, in late mode.
struct PendingCopy {
  const Cluster* cluster;
  AsyncWork work;
  std::string issued;  // where, for messages
};

struct Grid {
  const Kernel* kernel = nullptr;
  LaunchShape shape;
  std::span<std::byte> parameters;
  std::vector<std::byte> parameters_storage;
  std::uint64_t events = 0;  // what may let another warp go on: stores, arrivals, ends
  bool timeout = false;      // waits that may time out do
  std::deque<PendingCopy> pending;

  // Runs the launch to its end. Throws EmulationError.
  void run();

  // How many clusters run at a time.
  std::uint64_t resident_clusters() const;

 private:
  std::unique_ptr<Cluster> make_cluster(std::uint64_t number, std::uint32_t first_sm);
  std::unique_ptr<Block> make_block(Cluster& cluster, Dim3 index, std::uint32_t rank,
                                    std::uint32_t sm);
  std::unique_ptr<Warp> make_warp(Block& block, std::uint32_t index);
  void fill_specials(Warp& warp);
  std::uint64_t take_turns();
  void remove_finished();
  void nothing_happened(std::uint64_t ran, std::uint64_t idle);
  std::string where_everybody_stands() const;
  std::string where_it_happened() const;

  std::vector<std::unique_ptr<Cluster>> resident_;
  const Warp* current_ = nullptr;  // whose turn it is
  std::uint64_t events_at_timeout_ = ~std::uint64_t{0};
};

// Where a warp stands, for messages.
std::string describe(const Warp& warp, std::uint32_t pc);

// Calls f(lane) for each lane of the mask.
template <typename F>
inline void for_lanes(LaneMask lanes, F&& f) {
  if (lanes == kAllLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      f(lane);
    }
  } else {
    for (; lanes != 0; lanes &= lanes - 1) {
      f(std::countr_zero(lanes));
    }
  }
}

// A lane's value of the type, and its replacement. Rows hold 32-bit words for types up to 32 bits.
template <typename T>
inline T get(const void* row, int lane) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<T>(static_cast<const std::uint64_t*>(row)[lane]);
  } else if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(static_cast<const std::uint32_t*>(row)[lane]);
  } else {
    return static_cast<T>(static_cast<const std::uint32_t*>(row)[lane]);
  }
}

template <typename T>
inline void put(void* row, int lane, T value) {
  if constexpr (sizeof(T) == 8) {
    static_cast<std::uint64_t*>(row)[lane] = std::bit_cast<std::uint64_t>(value);
  } else if constexpr (sizeof(T) == 4) {
    static_cast<std::uint32_t*>(row)[lane] = std::bit_cast<std::uint32_t>(value);
  } else {
    static_cast<std::uint32_t*>(row)[lane] = static_cast<std::make_unsigned_t<T>>(value);
  }
}

// The bytes that a lane's address means. Throws EmulationError where an access of `bytes`, aligned
// to `alignment`, is not allowed.
std::byte* resolve(Warp& warp, const Instruction& instruction, int lane, std::uint32_t bytes,
                   std::uint32_t alignment);
std::byte* resolve_shared(Warp& warp, std::uint32_t address, std::uint32_t bytes,
                          std::uint32_t alignment);
std::byte* resolve_global(std::uint64_t address, std::uint32_t bytes, std::uint32_t alignment);

// The block and offset that a shared::cluster address means.
struct SharedPlace {
  Block* block;
  std::uint32_t offset;
};
SharedPlace shared_place(Warp& warp, std::uint32_t address);

// Notes a write through the generic proxy if the place is in the block's SMEM.
inline void note_write(Warp& warp, const std::byte* place, std::uint32_t bytes) {
  Block& block = *warp.block;
  const auto offset = static_cast<std::uint64_t>(place - block.shared.base);
  if (offset < block.shared.bytes) {
    block.written(warp, static_cast<std::uint32_t>(offset), bytes);
  }
}

// The address of a lane: the register plus the immediate.
inline std::uint64_t address_of(Warp& warp, const Instruction& in, int lane) {
  const std::uint64_t base =
      in.wide_address ? warp.row<std::uint64_t>(in.a)[lane] : warp.row<std::uint32_t>(in.a)[lane];
  return base + static_cast<std::uint64_t>(in.immediate);
}

// Settings from the environment.
struct Settings {
  int multiprocessors;
  bool late;
  bool check_proxies;
  bool trace;
  bool peeks_are_old;
};
const Settings& settings();

}  // namespace tilewright::emulator
