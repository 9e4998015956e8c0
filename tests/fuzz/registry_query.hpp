// The registry's functions on problems of any size.
#pragma once

#include "fuzz/choices.hpp"

namespace tilewright::fuzz {

// Asks whether a kernel can run a problem, and for its workspace. Both refuse sizes that no tensor
// has; if the kernel can run the problem, there is a workspace size.
void query_registry(Choices& choices);

}  // namespace tilewright::fuzz
