// Random numbers that mutators and targets draw from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

namespace tilewright::fuzz {

// A generator for a mutator, from the seed that libFuzzer gives it.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  // From 0 to count - 1.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(engine_() % count); }
  bool one_in(std::size_t count) { return below(count) == 0; }

  // One of them.
  template <typename Range>
  const auto& one_of(const Range& values) {
    return values[below(std::size(values))];
  }

 private:
  std::mt19937_64 engine_;
};

// Decisions that are read from a fuzz target's input. After its end all are 0, the plainest one.
class Choices {
 public:
  explicit Choices(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}

  std::size_t below(std::size_t count) { return next(count <= 256 ? 1 : 4) % count; }
  bool one_in(std::size_t count) { return below(count) == count - 1; }
  bool coin() { return one_in(2); }

  template <typename Range>
  const auto& one_of(const Range& values) {
    return values[below(std::size(values))];
  }

  // From first to last, both included.
  std::int64_t between(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(below(static_cast<std::size_t>(last - first + 1)));
  }

 private:
  std::size_t next(int bytes) {
    std::size_t value = 0;
    for (int i = 0; i < bytes && !bytes_.empty(); ++i) {
      value = value << 8 | bytes_.front();
      bytes_ = bytes_.subspan(1);
    }
    return value;
  }

  std::span<const std::uint8_t> bytes_;
};

}  // namespace tilewright::fuzz
