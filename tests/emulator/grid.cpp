// Running a grid: which blocks are resident, whose turn it is, and what is wrong if nobody can run.
#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "emulator/machine.hpp"

namespace tilewright::emulator {
namespace {

constexpr int kSlice = 4096;  // instructions of a warp's turn

int number_from(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::max(1, std::atoi(text));
}

Dim3 at(Dim3 size, std::uint64_t number) {
  return {static_cast<std::uint32_t>(number % size.x),
          static_cast<std::uint32_t>(number / size.x % size.y),
          static_cast<std::uint32_t>(number / size.x / size.y)};
}

std::string text_of(const Dim3& index) {
  std::ostringstream out;
  out << "(" << index.x << ", " << index.y << ", " << index.z << ")";
  return out.str();
}

std::string what_it_waits_for(const Warp& warp) {
  std::ostringstream out;
  if (warp.named_barrier >= 0) {
    const NamedBarrier& barrier =
        warp.block->barriers[static_cast<std::size_t>(warp.named_barrier)];
    out << ", barrier " << warp.named_barrier << " has " << barrier.arrived << " of "
        << (barrier.expected != 0 ? barrier.expected : warp.block->live_warps() * 32) << " threads";
  }
  if (warp.wanted_registers != 0) {
    const RegisterPool& pool = warp.block->registers;
    out << ", has " << pool.of(warp.index) << " registers a thread and waits for "
        << warp.wanted_registers << ", the block's pool has " << pool.left();
  }
  return out.str();
}

// Registers of warps that have ended, to be used again: fresh pages are slow.
std::vector<std::vector<std::byte>>& spare_rows() {
  static std::vector<std::vector<std::byte>> rows;
  return rows;
}

std::vector<std::byte> take_rows(std::size_t bytes) {
  std::vector<std::byte> rows;
  if (!spare_rows().empty()) {
    rows = std::move(spare_rows().back());
    spare_rows().pop_back();
  }
  rows.resize(bytes);
  std::fill_n(rows.begin(), std::min<std::size_t>(bytes, kZeroRows_bytes), std::byte{0});
  return rows;
}

}  // namespace

Warp::~Warp() { spare_rows().push_back(std::move(rows)); }

const Settings& settings() {
  static const Settings from_environment = [] {
    const char* const mode = std::getenv("TILEWRIGHT_EMULATOR_MODE");
    return Settings{.multiprocessors = number_from("TILEWRIGHT_EMULATOR_SMS", 4),
                    .late = mode != nullptr && std::string_view(mode) == "late",
                    .check_proxies = std::getenv("TILEWRIGHT_EMULATOR_NO_PROXIES") == nullptr,
                    .trace = std::getenv("TILEWRIGHT_EMULATOR_TRACE") != nullptr,
                    .peeks_are_old = std::getenv("TILEWRIGHT_EMULATOR_OLD_PEEKS") != nullptr};
  }();
  return from_environment;
}

std::string describe(const Warp& warp, std::uint32_t pc) {
  std::ostringstream out;
  out << "block " << text_of(warp.block->index) << " warp " << warp.index;
  if (pc >= warp.kernel->code.size()) {
    return out.str() + " at its end";
  }
  const Instruction& in = warp.kernel->code[pc];
  out << " at PTX line " << in.line;
  if (in.details != nullptr) {
    if (!in.details->location.empty()) {
      out << " (" << in.details->location << ")";
    }
    out << ": " << in.details->text;
  }
  return out.str();
}

std::string Grid::where_everybody_stands() const {
  std::ostringstream out;
  const auto say = [&](const Warp& warp, std::uint32_t pc, LaneMask lanes) {
    out << "\n  " << describe(warp, pc) << " [lanes 0x" << std::hex << lanes << std::dec
        << what_it_waits_for(warp) << "]";
  };
  for (const auto& cluster : resident_) {
    for (const auto& block : cluster->blocks) {
      for (const auto& warp : block->warps) {
        if (warp->active != 0) {
          say(*warp, warp->waits ? warp->at : warp->pc, warp->active);
        }
        for (const LaneGroup& group : warp->others) {
          say(*warp, group.pc, group.lanes);
        }
      }
    }
  }
  return out.str();
}

std::unique_ptr<Warp> Grid::make_warp(Block& block, std::uint32_t index) {
  auto warp = std::make_unique<Warp>();
  warp->block = &block;
  warp->grid = this;
  warp->kernel = kernel;
  warp->index = index;
  warp->rows = take_rows(kernel->registers_bytes);
  warp->predicates.resize(kernel->predicates);
  const auto threads = static_cast<std::uint32_t>(shape.block.count()) - index * kWarpLanes;
  warp->alive = threads >= kWarpLanes ? kAllLanes : (1u << threads) - 1;
  warp->active = warp->alive;
  for (const ImmediateRow& immediate : kernel->immediates) {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      if (immediate.width == Width::w64) {
        warp->row<std::uint64_t>(immediate.row)[lane] = immediate.bits;
      } else {
        warp->row<std::uint32_t>(immediate.row)[lane] = static_cast<std::uint32_t>(immediate.bits);
      }
    }
  }
  fill_specials(*warp);
  return warp;
}

std::unique_ptr<Block> Grid::make_block(Cluster& cluster, Dim3 index, std::uint32_t rank,
                                        std::uint32_t sm) {
  auto block = std::make_unique<Block>();
  block->cluster = &cluster;
  block->grid = this;
  block->index = index;
  block->rank = rank;
  block->smid = sm;
  constexpr std::uint32_t kAlignment = 1024;
  const std::uint32_t bytes = kernel->dynamic_shared_offset() + shape.dynamic_shared_bytes;
  block->shared_storage.resize(bytes + kAlignment);
  void* base = block->shared_storage.data();
  std::size_t space = block->shared_storage.size();
  block->shared = {static_cast<std::byte*>(std::align(kAlignment, bytes, base, space)), bytes};
  poison(block->shared.base, bytes);
  block->unfenced.resize(bytes / kGranule_bytes + 1);
  block->local.resize(kernel->local_bytes * shape.block.count());
  poison(block->local.data(), block->local.size());
  const auto threads = static_cast<std::uint32_t>(shape.block.count());
  const std::uint32_t warps = (threads + kWarpLanes - 1) / kWarpLanes;
  block->registers = RegisterPool(warps, registers_at_launch(*kernel, threads));
  for (std::uint32_t warp = 0; warp < warps; ++warp) {
    block->warps.push_back(make_warp(*block, warp));
  }
  return block;
}

std::unique_ptr<Cluster> Grid::make_cluster(std::uint64_t number, std::uint32_t first_sm) {
  const Dim3 clusters = {shape.grid.x / shape.cluster.x, shape.grid.y / shape.cluster.y,
                         shape.grid.z / shape.cluster.z};
  const Dim3 cluster_index = at(clusters, number);
  auto cluster = std::make_unique<Cluster>();
  for (std::uint32_t rank = 0; rank < shape.cluster.count(); ++rank) {
    const Dim3 inside = at(shape.cluster, rank);
    const Dim3 index = {cluster_index.x * shape.cluster.x + inside.x,
                        cluster_index.y * shape.cluster.y + inside.y,
                        cluster_index.z * shape.cluster.z + inside.z};
    const auto sms = static_cast<std::uint32_t>(settings().multiprocessors);
    cluster->blocks.push_back(make_block(*cluster, index, rank, (first_sm + rank) % sms));
  }
  return cluster;
}

std::uint64_t Grid::resident_clusters() const {
  const std::uint32_t shared_per_block =
      kReservedShared_bytes + kernel->static_shared_bytes + shape.dynamic_shared_bytes;
  constexpr std::uint32_t kSharedPerSm_bytes = 228 * 1024;
  constexpr std::uint32_t kThreadsPerSm = 2048;
  const auto per_sm = std::max<std::uint64_t>(
      1, std::min<std::uint64_t>(
             {kSharedPerSm_bytes / shared_per_block, kThreadsPerSm / shape.block.count(), 32}));
  return std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(settings().multiprocessors) * per_sm / shape.cluster.count());
}

void Grid::remove_finished() {
  std::erase_if(resident_, [&](const auto& cluster) {
    if (!cluster->done()) {
      return false;
    }
    for (const PendingCopy& copy : pending) {
      if (copy.cluster == cluster.get()) {
        throw EmulationError("a block has ended before a copy into its shared memory has:\n  " +
                             copy.issued);
      }
    }
    return true;
  });
}

// Lets every warp that does not wait take its turn. Returns how much they ran.
std::uint64_t Grid::take_turns() {
  std::uint64_t ran = 0;
  for (const auto& cluster : resident_) {
    for (const auto& block : cluster->blocks) {
      for (const auto& warp : block->warps) {
        if (!warp->done() && !warp->waits) {
          current_ = warp.get();
          ran += static_cast<std::uint64_t>(warp->run(kSlice));
        }
      }
    }
  }
  current_ = nullptr;
  return ran;
}

// After a round in which nothing happened that another warp may wait for: does a copy that is
// under way, or lets waits time out, or gives up.
void Grid::nothing_happened(std::uint64_t ran, std::uint64_t idle) {
  constexpr std::uint64_t kPatience = 400'000'000;  // instructions
  if (!pending.empty()) {
    const PendingCopy copy = std::move(pending.front());
    pending.pop_front();
    copy.work();
    ++events;
  } else if (idle > kPatience) {
    throw EmulationError("nothing happens any more: every warp spins" + where_everybody_stands());
  } else if (ran == 0 && events_at_timeout_ == events) {
    throw EmulationError("deadlock: every warp waits" + where_everybody_stands());
  } else if (ran == 0) {
    timeout = true;
    events_at_timeout_ = events;
  }
}

void Grid::run() {
  const std::uint64_t clusters = shape.grid.count() / shape.cluster.count();
  const std::uint64_t slots = resident_clusters();
  std::uint64_t next = 0;
  std::uint64_t idle = 0;
  try {
    while (next < clusters || !resident_.empty()) {
      while (next < clusters && resident_.size() < slots) {
        resident_.push_back(
            make_cluster(next, static_cast<std::uint32_t>(next * shape.cluster.count())));
        ++next;
      }
      const std::uint64_t seen = events;
      const std::uint64_t ran = take_turns();
      remove_finished();
      timeout = false;
      if (events != seen) {
        idle = 0;
      } else if (!resident_.empty()) {
        idle += ran;
        nothing_happened(ran, idle);
      }
    }
  } catch (const EmulationError& error) {
    throw EmulationError(error.what() + where_it_happened());
  }
}

std::string Grid::where_it_happened() const {
  std::string where = "\n  kernel " + kernel->name;
  if (current_ != nullptr) {
    where += "\n  " + describe(*current_, current_->at);
    if (current_->lane >= 0) {
      const std::uint32_t thread =
          current_->index * kWarpLanes + static_cast<std::uint32_t>(current_->lane);
      where += " [thread " + text_of(at(shape.block, thread)) + "]";
    }
  }
  return where;
}

}  // namespace tilewright::emulator
