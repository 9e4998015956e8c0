// Changes JSON into something like it.
#pragma once

#include <string>

#include "fuzz/choices.hpp"

namespace tilewright::fuzz {

// One change: a value or key becomes another one, a piece is doubled, deleted or moved, brackets
// are opened a few or thousands deep, bytes become control characters or no UTF-8.
void mutate_json(std::string& text, Random& random);

}  // namespace tilewright::fuzz
