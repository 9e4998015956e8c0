// What the scheduler knows of synchronising instructions.
#pragma once

#include "emulator/machine.hpp"

namespace tilewright::emulator {

bool is_warp_sync(const Instruction& instruction);

}  // namespace tilewright::emulator
