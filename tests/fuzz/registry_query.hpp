// The registry's functions on problems of any size.
#pragma once

#include "fuzz/choices.hpp"

namespace tilewright::fuzz {

// Asks whether a kernel can run a problem, and for its workspace. Sizes that no tensor has are
// refused by both; where the kernel can run it, the workspace is told.
void query_registry(Choices& choices);

}  // namespace tilewright::fuzz
