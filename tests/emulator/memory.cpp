#include "emulator/memory.hpp"

#include <cstdlib>
#include <cstring>

namespace tilewright::emulator {

void poison(std::byte* first, std::size_t bytes) {
  for (std::size_t i = 0; i + 1 < bytes; i += 2) {
    std::memcpy(first + i, &kPoison, 2);
  }
}

std::byte* DeviceMemory::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 512;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
  if (memory != nullptr) {
    poison(memory, rounded);
    add(memory, bytes);
    used_bytes_ += bytes;
  }
  return memory;
}

bool DeviceMemory::free(void* address) {
  const auto found = ranges_.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == ranges_.end()) {
    return false;
  }
  used_bytes_ -= found->second;
  ranges_.erase(found);
  last_bytes_ = 0;
  std::free(address);
  return true;
}

void DeviceMemory::add(std::byte* first, std::size_t bytes) {
  ranges_[reinterpret_cast<std::uintptr_t>(first)] = bytes;
}

bool DeviceMemory::find(std::uintptr_t first, std::size_t bytes) {
  auto after = ranges_.upper_bound(first);
  if (after == ranges_.begin()) {
    return false;
  }
  const auto [begin, size] = *--after;
  if (first - begin >= size || bytes > size - (first - begin)) {
    return false;
  }
  last_begin_ = begin;
  last_bytes_ = size;
  return true;
}

DeviceMemory& device_memory() {
  static DeviceMemory memory;
  return memory;
}

}  // namespace tilewright::emulator
