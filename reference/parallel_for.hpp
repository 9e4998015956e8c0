// A loop on all threads that lets exceptions out.
#pragma once

#include <cstdint>
#include <functional>

namespace tilewright::reference {

// Runs body(0) to body(count - 1) in any order. Where some throw, the others run all the same, and
// one of the exceptions is thrown on: none may leave an OpenMP region by itself.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body);

}  // namespace tilewright::reference
