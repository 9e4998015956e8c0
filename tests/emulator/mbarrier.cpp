#include "emulator/mbarrier.hpp"

#include <cstring>
#include <string>

#include "emulator/shared_memory.hpp"

namespace tilewright::emulator {
namespace {

// From the lowest bit: pending arrivals, expected arrivals, pending bytes, phase, "initialised".
constexpr int kCountBits = 20;
constexpr std::uint32_t kCountMask = (1u << kCountBits) - 1;
constexpr int kBytesBits = 22;
constexpr int kPhaseBit = 62;
constexpr std::uint64_t kInitialised = std::uint64_t{1} << 63;

}  // namespace

void Mbarrier::init(std::byte* place, std::uint32_t count) {
  if (count == 0 || count > kCountMask) {
    throw EmulationError("an mbarrier of " + std::to_string(count) + " arrivals");
  }
  const std::uint64_t word = kInitialised | std::uint64_t{count} << kCountBits | count;
  std::memcpy(place, &word, sizeof(word));
}

Mbarrier::Mbarrier(std::byte* place) : place_(place) {
  std::uint64_t word = 0;
  std::memcpy(&word, place, sizeof(word));
  if ((word & kInitialised) == 0) {
    throw EmulationError("the mbarrier has not been initialised");
  }
  pending_ = static_cast<std::uint32_t>(word) & kCountMask;
  expected_ = static_cast<std::uint32_t>(word >> kCountBits) & kCountMask;
  constexpr int kUnused = 64 - 2 * kCountBits - kBytesBits;
  bytes_ =
      static_cast<std::int32_t>(static_cast<std::int64_t>(word << kUnused) >> (64 - kBytesBits));
  phase_ = static_cast<std::uint32_t>(word >> kPhaseBit) & 1;
}

void Mbarrier::store(std::uint32_t pending, std::uint32_t expected, std::int32_t bytes,
                     std::uint32_t phase) {
  if (pending == 0 && bytes == 0) {
    pending = expected;
    phase ^= 1;
  }
  pending_ = pending;
  expected_ = expected;
  bytes_ = bytes;
  phase_ = phase;
  const std::uint64_t byte_bits =
      static_cast<std::uint64_t>(bytes) & ((std::uint64_t{1} << kBytesBits) - 1);
  const std::uint64_t word = kInitialised | std::uint64_t{phase} << kPhaseBit |
                             byte_bits << (2 * kCountBits) | std::uint64_t{expected} << kCountBits |
                             pending;
  std::memcpy(place_, &word, sizeof(word));
}

std::uint64_t Mbarrier::arrive(std::uint32_t count, bool drops) {
  std::uint64_t before = 0;
  std::memcpy(&before, place_, sizeof(before));
  if (count > pending_) {
    throw EmulationError("an arrival of " + std::to_string(count) +
                         " at an mbarrier that expects " + std::to_string(pending_) + " more of " +
                         std::to_string(expected_));
  }
  store(pending_ - count, drops ? expected_ - count : expected_, bytes_, phase_);
  return before;
}

void Mbarrier::expect(std::uint32_t bytes) {
  constexpr std::int32_t kMost = (1 << 20) - 1;
  if (bytes_ + static_cast<std::int64_t>(bytes) > kMost) {
    throw EmulationError("an mbarrier expects more than 2^20 - 1 bytes");
  }
  bytes_ += static_cast<std::int32_t>(bytes);
  store(pending_, expected_, bytes_, phase_);
}

void Mbarrier::complete(std::uint32_t bytes) {
  store(pending_, expected_, bytes_ - static_cast<std::int32_t>(bytes), phase_);
}

bool Mbarrier::phase_done(std::uint32_t parity) const { return phase_ != (parity & 1); }

std::uint32_t Mbarrier::parity_of(std::uint64_t state) {
  return static_cast<std::uint32_t>(state >> kPhaseBit) & 1;
}

std::uint32_t Mbarrier::pending_of(std::uint64_t state) {
  return static_cast<std::uint32_t>(state) & kCountMask;
}

void Mbarrier::invalidate() { std::memset(place_, 0x7f, sizeof(std::uint64_t)); }

}  // namespace tilewright::emulator
