// The emulated GPU's memory. Device pointers are host pointers; shared and local memory lie in
// windows of the generic address space that no host pointer falls into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace tilewright::emulator {

inline constexpr std::uint64_t kSharedWindow = 0x00a0'0000'0000'0000;
inline constexpr std::uint64_t kLocalWindow = 0x00b0'0000'0000'0000;
inline constexpr std::uint64_t kWindowMask = 0xffff'0000'0000'0000;

// A shared::cluster address of another block has its rank plus 1 above the offset.
inline constexpr int kRankShift = 24;
inline constexpr std::uint32_t kOffsetMask = (1u << kRankShift) - 1;

// Every block's shared memory begins with what the system keeps for itself.
inline constexpr std::uint32_t kReservedShared_bytes = 1024;

// Bytes that are NaN in every floating-point format.
inline constexpr std::uint16_t kPoison = 0x7fff;
void poison(std::byte* first, std::size_t bytes);

// The live allocations.
class DeviceMemory {
 public:
  std::byte* allocate(std::size_t bytes);  // null: there is no memory
  bool free(void* address);                // false: it is no allocation
  void add_variable(std::byte* first, std::size_t bytes) { add(first, bytes); }

  // Whether the bytes are within one allocation.
  bool holds(const void* address, std::size_t bytes) {
    const auto first = reinterpret_cast<std::uintptr_t>(address);
    if (first - last_begin_ < last_bytes_ && bytes <= last_bytes_ - (first - last_begin_)) {
      return true;
    }
    return find(first, bytes);
  }

  std::size_t used_bytes() const { return used_bytes_; }

 private:
  void add(std::byte* first, std::size_t bytes);
  bool find(std::uintptr_t first, std::size_t bytes);

  std::map<std::uintptr_t, std::size_t> ranges_;
  std::size_t used_bytes_ = 0;
  std::uintptr_t last_begin_ = 0;
  std::size_t last_bytes_ = 0;
};

DeviceMemory& device_memory();

}  // namespace tilewright::emulator
