// Barriers in SMEM that count arrivals and bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewright::emulator {

// A view of the 8 bytes of one. Its phase ends when no arrival and no byte is pending. Throws
// EmulationError if the bytes are no initialised barrier.
class Mbarrier {
 public:
  static void init(std::byte* place, std::uint32_t count);
  explicit Mbarrier(std::byte* place);

  // They return the state before.
  std::uint64_t arrive(std::uint32_t count, bool drops = false);
  void expect(std::uint32_t bytes);
  void complete(std::uint32_t bytes);

  bool phase_done(std::uint32_t parity) const;
  static std::uint32_t parity_of(std::uint64_t state);
  static std::uint32_t pending_of(std::uint64_t state);
  void invalidate();

 private:
  void store(std::uint32_t pending, std::uint32_t expected, std::int32_t bytes,
             std::uint32_t phase);

  std::byte* place_;
  std::uint32_t pending_ = 0;
  std::uint32_t expected_ = 0;
  std::int32_t bytes_ = 0;
  std::uint32_t phase_ = 0;
};

}  // namespace tilewright::emulator
