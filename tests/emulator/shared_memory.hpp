// A block's SMEM as the emulator's parts see it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tilewright::emulator {

// What a kernel did wrong. The interpreter adds the kernel, block, thread and instruction.
class EmulationError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

inline constexpr std::uint32_t kGranule_bytes = 16;

// The window of one block. Addresses are offsets into it, and swizzles work on these offsets, as if
// the window began at a multiple of 1024 bytes.
struct SharedMemory {
  std::byte* base = nullptr;
  std::uint32_t bytes = 0;
  // For accesses through the async proxy: for each 16 bytes, the warp plus 1 that has written them
  // through the generic proxy without a fence since; 0: none.
  const std::uint8_t* unfenced = nullptr;

  // Throws EmulationError if an access of `size` bytes at `address` is outside the window,
  // misaligned, or of what the async proxy may not see yet. It has 16 bytes then.
  std::byte* at(std::uint32_t address, std::uint32_t size, std::uint32_t alignment) const {
    if (address % alignment != 0) {
      throw EmulationError("shared address " + std::to_string(address) + " is not a multiple of " +
                           std::to_string(alignment));
    }
    if (size > bytes || address > bytes - size) {
      throw EmulationError("shared address " + std::to_string(address) + " + " +
                           std::to_string(size) + " is outside the block's " +
                           std::to_string(bytes) + " bytes");
    }
    if (unfenced != nullptr && unfenced[address / kGranule_bytes] != 0) {
      throw EmulationError("the async proxy reads shared address " + std::to_string(address) +
                           ", which warp " +
                           std::to_string(unfenced[address / kGranule_bytes] - 1) +
                           " has written without fence.proxy.async since");
    }
    return base + address;
  }
};

}  // namespace tilewright::emulator
