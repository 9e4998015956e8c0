// setmaxnreg.
#include <algorithm>

#include "emulator/ops.hpp"

namespace tilewright::emulator {
namespace {

// option: registers a thread.
void decrease(Warp& warp, const Instruction& in, LaneMask lanes) {
  check_whole_warp(lanes);
  Block& block = *warp.block;
  block.registers.enter(warp.index, in.line);
  block.registers.decrease(warp.index, in.option);
  block.registers_changed();
}

void increase(Warp& warp, const Instruction& in, LaneMask lanes) {
  check_whole_warp(lanes);
  Block& block = *warp.block;
  block.registers.enter(warp.index, in.line);
  if (!block.registers.increase(warp.index, in.option)) {
    warp.wanted_registers = in.option;
    warp.waits = true;
    warp.stop = true;
  }
}

}  // namespace

bool decode_registers(Builder& builder, const Statement& s, Instruction& in) {
  if (s.part(0) != "setmaxnreg") {
    return false;
  }
  const std::uint64_t registers = s.operands.at(0).bits;
  if (registers < 24 || registers > 256 || registers % 8 != 0) {
    throw EmulationError("setmaxnreg takes a multiple of 8 from 24 to 256, not " +
                         std::to_string(registers));
  }
  in.option = static_cast<std::uint32_t>(registers);
  in.flags = Instruction::kAllTogether;
  in.run = decrease;
  if (s.has("inc")) {
    in.run = increase;
    std::uint32_t& largest = builder.kernel().largest_increase;
    largest = std::max(largest, in.option);
  }
  return true;
}

}  // namespace tilewright::emulator
