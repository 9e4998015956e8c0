// Division rounded up.
#pragma once

#include "common/divisor.hpp"

namespace tilewright {

// a / b rounded up, of a number from 0 up by one from 1 up.
template <typename A, typename B>
TILEWRIGHT_HOST_DEVICE constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}

}  // namespace tilewright
