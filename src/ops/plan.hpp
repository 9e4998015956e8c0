// What a kernel decides for a problem on a device, before it is launched.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

namespace tilewright {

class Plan {
 public:
  Plan() = default;
  explicit Plan(std::size_t bytes) : workspace_bytes(bytes) {}

  // With details that only its kernel knows.
  template <typename Details>
  Plan(std::size_t bytes, const Details& its_own) : workspace_bytes(bytes) {
    static_assert(sizeof(Details) <= kDetails_bytes && std::is_trivially_copyable_v<Details>);
    std::memcpy(details_.data(), &its_own, sizeof(Details));
  }

  // The details, of the type with which the plan was made.
  template <typename Details>
  Details details() const {
    std::array<std::byte, sizeof(Details)> bytes;
    std::memcpy(bytes.data(), details_.data(), sizeof(Details));
    return std::bit_cast<Details>(bytes);
  }

  std::size_t workspace_bytes = 0;
  int variant = 0;  // the index of the kernel's variant that runs
  int splits = 1;   // of attention's keys: pieces that different blocks compute

 private:
  static constexpr std::size_t kDetails_bytes = 160;

  std::array<std::byte, kDetails_bytes> details_{};
};

}  // namespace tilewright
