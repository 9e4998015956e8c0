// Random choices of problems.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <vector>

namespace tilewright::test {

// Random integers, the same on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  // From low to high, both included.
  std::int64_t operator()(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }

  bool one_in(int n) { return (*this)(1, n) == 1; }

  template <typename T, std::size_t Size>
  T one_of(const std::array<T, Size>& values) {
    return values[static_cast<std::size_t>((*this)(0, Size - 1))];
  }

  template <typename T>
  T one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(
        (*this)(0, static_cast<std::int64_t>(values.size()) - 1))];
  }

  // Of [0, count).
  std::vector<int> permutation(std::size_t count) {
    std::vector<int> numbers(count);
    for (std::size_t i = 0; i < count; ++i) {
      const auto j = static_cast<std::size_t>((*this)(0, static_cast<std::int64_t>(i)));
      numbers[i] = numbers[j];
      numbers[j] = static_cast<int>(i);
    }
    return numbers;
  }

  std::uint64_t bits() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

// A value of mean 0 and variance 1, nearly normal: a sum of four uniform ones, which are parts of a
// hash (splitmix64) of the seed and the index.
inline double near_normal(std::uint64_t seed, std::uint64_t index) {
  std::uint64_t hash = (seed << 40) + index + 0x9e3779b97f4a7c15u;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebu;
  hash ^= hash >> 31;
  constexpr double kDeviation = 0x1p16 / 1.7320508075688772;  // of the sum
  const auto sum = static_cast<double>((hash & 0xffff) + (hash >> 16 & 0xffff) +
                                       (hash >> 32 & 0xffff) + (hash >> 48));
  return (sum - 2 * 0xffff) / kDeviation;
}

}  // namespace tilewright::test
