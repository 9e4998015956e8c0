// The registers of a block, which setmaxnreg moves between its warps.
#include "emulator/register_pool.hpp"

#include <algorithm>
#include <string>

namespace tilewright::emulator {
namespace {

constexpr std::uint32_t kWarpgroupWarps = 4;

std::uint32_t round_up(std::uint32_t number, std::uint32_t step) {
  return (number + step - 1) / step * step;
}

}  // namespace

// As ptxas counts: each quarter of an SM has a quarter of the registers and of the warps, so that
// warps count in fours. A warp gets registers in steps of 8 a thread: the most that code can name,
// 255, take 256.
std::uint32_t registers_at_launch(const Kernel& kernel, std::uint32_t threads) {
  constexpr std::uint32_t kRegistersPerSm = 64 * 1024;
  constexpr std::uint32_t kStep = 8;
  const std::uint32_t block_threads = round_up(kernel.max_threads.value_or(threads), kWarpLanes);
  const std::uint32_t sm_threads =
      round_up(block_threads * kernel.min_blocks_per_sm, 4 * kWarpLanes);
  const std::uint32_t fit =
      std::min(kRegistersPerSm / sm_threads / kStep * kStep, round_up(kernel.max_registers, kStep));
  return kernel.largest_increase == 0 ? fit : std::min(fit, kernel.largest_increase);
}

RegisterPool::RegisterPool(std::uint32_t warps, std::uint32_t registers)
    : registers_(warps, registers),
      executed_(warps),
      lines_((warps + kWarpgroupWarps - 1) / kWarpgroupWarps) {}

void RegisterPool::enter(std::uint32_t warp, std::uint32_t line) {
  std::vector<std::uint32_t>& lines = lines_[warp / kWarpgroupWarps];
  const std::size_t number = executed_[warp]++;
  if (number == lines.size()) {
    lines.push_back(line);
  } else if (lines[number] != line) {
    throw EmulationError("another warp of the warpgroup has executed the setmaxnreg at PTX line " +
                         std::to_string(lines[number]) + " in place of this one");
  }
}

void RegisterPool::decrease(std::uint32_t warp, std::uint32_t registers) {
  if (registers > registers_[warp]) {
    throw EmulationError("setmaxnreg.dec to " + std::to_string(registers) +
                         " registers, but the warp has " + std::to_string(registers_[warp]));
  }
  left_ += registers_[warp] - registers;
  registers_[warp] = registers;
}

bool RegisterPool::increase(std::uint32_t warp, std::uint32_t registers) {
  if (registers < registers_[warp]) {
    throw EmulationError("setmaxnreg.inc to " + std::to_string(registers) +
                         " registers, but the warp has " + std::to_string(registers_[warp]));
  }
  const std::uint32_t more = registers - registers_[warp];
  if (more > left_) {
    return false;
  }
  left_ -= more;
  registers_[warp] = registers;
  return true;
}

void RegisterPool::check_end() const {
  for (std::size_t warp = 0; warp < executed_.size(); ++warp) {
    const std::size_t all = lines_[warp / kWarpgroupWarps].size();
    if (executed_[warp] != all) {
      throw EmulationError("warp " + std::to_string(warp) + " has executed " +
                           std::to_string(executed_[warp]) + " setmaxnreg of the " +
                           std::to_string(all) + " of its warpgroup");
    }
  }
}

}  // namespace tilewright::emulator
