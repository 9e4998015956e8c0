// Division by a number known beforehand: a multiplication and a shift in place of some thirty
// instructions (Granlund and Montgomery, Division by invariant integers using multiplication,
// 1994).
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define TILEWRIGHT_HOST_DEVICE __host__ __device__
#else
#define TILEWRIGHT_HOST_DEVICE
#endif

namespace tilewright {

class Divisor {
 public:
  constexpr explicit Divisor(int value)
      : value_(value), shift_(kBits + std::bit_width(static_cast<unsigned>(value) - 1)) {
    const std::uint64_t power = std::uint64_t{1} << shift_;
    const auto divisor = static_cast<std::uint64_t>(value);
    multiplier_ = static_cast<std::uint32_t>((power + divisor - 1) / divisor);
  }

  TILEWRIGHT_HOST_DEVICE constexpr operator int() const { return value_; }

  // Rounded down. Exact for dividends from 0 up.
  TILEWRIGHT_HOST_DEVICE friend constexpr int operator/(int dividend, const Divisor& by) {
    return static_cast<int>(std::uint64_t{static_cast<std::uint32_t>(dividend)} * by.multiplier_ >>
                            by.shift_);
  }

 private:
  static constexpr int kBits = 31;  // a dividend has at most so many

  int value_;
  int shift_;
  std::uint32_t multiplier_ = 0;
};

}  // namespace tilewright
