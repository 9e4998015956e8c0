// Tickets: numbers in the order in which blocks ask for them, each for one block of a launch.
#pragma once

#include <cstdint>

#include "cuda/common/epoch.hpp"

namespace tilewright::cuda {

// A word in the launch's workspace holds the launch's epoch above the count. Any other value is
// another launch's and is replaced; mostly it is 0, which the launch before leaves there.
struct TicketCounter {
  static constexpr int kCountBits = 64 - kEpochBits;

  std::uint64_t* word = nullptr;  // null: there are no tickets
  std::uint64_t epoch = 0;

  // Returns 0, 1, 2, ... The exchange for a 0 and the addition after it take one round trip. Only
  // if the word holds another launch's value is the addition in vain, and is done again.
  __device__ int take() const {
    auto* const counter = reinterpret_cast<unsigned long long*>(word);
    const unsigned long long start = epoch << kCountBits;
    atomicCAS(counter, 0ull, start);
    unsigned long long ticket = atomicAdd(counter, 1ull);
    if (!is_of_this_launch(ticket)) {
      unsigned long long seen = ticket + 1;
      unsigned long long before = 0;
      while ((before = atomicCAS(counter, seen, start)) != seen && !is_of_this_launch(before)) {
        seen = before;
      }
      ticket = atomicAdd(counter, 1ull);
    }
    return static_cast<int>(ticket & ((1u << kCountBits) - 1));
  }

  // The block that has drawn the last ticket, and knows that it has, clears the word for the next
  // replay of this launch.
  __device__ void clear() const { atomicExch(reinterpret_cast<unsigned long long*>(word), 0ull); }

 private:
  __device__ bool is_of_this_launch(unsigned long long value) const {
    return value >> kCountBits == epoch;
  }
};

}  // namespace tilewright::cuda
