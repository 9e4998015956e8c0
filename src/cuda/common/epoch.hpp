// Epochs: a kernel knows its own marks in a workspace by them, whatever else was there before.
#pragma once

#include <atomic>
#include <cstdint>
#include <random>

namespace tilewright::cuda {

inline constexpr int kEpochBits = 36;

// A number other than 0 that no other launch has, in this process or in an earlier one whose memory
// may be left: it counts from a random start.
inline std::uint64_t next_epoch() {
  static std::atomic<std::uint64_t> epoch{
      (static_cast<std::uint64_t>(std::random_device{}()) << 32) ^ std::random_device{}()};
  std::uint64_t value = 0;
  while (value == 0) {  // 0 is a cleared mark
    value =
        epoch.fetch_add(1, std::memory_order_relaxed) & (~std::uint64_t{0} >> (64 - kEpochBits));
  }
  return value;
}

// A number of 64 bits other than 0 for an epoch. It differs from that of any other, and is not a
// pattern that memory is likely to have.
constexpr std::uint64_t mark_of(std::uint64_t epoch) {
  return epoch * 0x9e3779b97f4a7c15u;  // odd, so that no two products are equal modulo 2^64
}

}  // namespace tilewright::cuda
