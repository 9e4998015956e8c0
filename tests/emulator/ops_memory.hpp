// What loads, stores and atomics share.
#pragma once

#include "emulator/parser.hpp"

namespace tilewright::emulator {

// The state space of an access.
Space space_of(Builder& builder, const Statement& statement, const Operand& address);

}  // namespace tilewright::emulator
