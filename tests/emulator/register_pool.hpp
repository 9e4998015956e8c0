// The registers of a block, which setmaxnreg moves between its warps.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/program.hpp"

namespace tilewright::emulator {

// Registers that each thread of a block of so many threads has at the start. PTX does not say it:
// this is what ptxas takes for kernels with setmaxnreg, the most that fits, but no more than the
// largest setmaxnreg.inc. ptxas ignores setmaxnreg where PTX does not bound the threads and
// the blocks on an SM; the block's own number and one block stand in for the bounds.
std::uint32_t registers_at_launch(const Kernel& kernel, std::uint32_t threads);

// Counts are of registers a thread, which all threads of a warp have alike. The pool holds what
// warps have given back. A warp that ends keeps its registers: PTX does not say that others get
// them.
class RegisterPool {
 public:
  RegisterPool() = default;
  RegisterPool(std::uint32_t warps, std::uint32_t registers);

  std::uint32_t of(std::uint32_t warp) const { return registers_[warp]; }
  std::uint32_t left() const { return left_; }

  // Notes that the warp executes the setmaxnreg at this line. Throws EmulationError if another warp
  // of its warpgroup has executed another one in its place.
  void enter(std::uint32_t warp, std::uint32_t line);

  // Makes the warp's registers so few. Throws EmulationError if it has fewer.
  void decrease(std::uint32_t warp, std::uint32_t registers);

  // Makes the warp's registers so many. Returns false if the pool has too few for it. Throws
  // EmulationError if it has more.
  bool increase(std::uint32_t warp, std::uint32_t registers);

  // Throws EmulationError if a warp has executed fewer setmaxnreg than others of its warpgroup.
  void check_end() const;

 private:
  std::vector<std::uint32_t> registers_;           // of each warp
  std::vector<std::size_t> executed_;              // setmaxnreg of each warp
  std::vector<std::vector<std::uint32_t>> lines_;  // of the setmaxnreg of each warpgroup
  std::uint32_t left_ = 0;
};

}  // namespace tilewright::emulator
