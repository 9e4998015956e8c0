// What an accumulator keeps of the products that a chain of instructions adds to it, found out from
// sums alone.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace tilewright::cli {

// What an accumulator adds up: to what it holds, the products x[i] y[i], those of one instruction
// after those of the one before.
struct Summands {
  float start = 0;
  std::vector<float> x;
  std::vector<float> y;
};

// The results of these sums: by a GPU's tensor cores, or by a model of an accumulator.
using AddUp = std::function<std::vector<float>(const std::vector<Summands>&)>;

// What becomes of the bits of a summand that the accumulator has no place for.
enum class Rounding {
  toward_zero,         // cut off
  sum_toward_zero,     // cut off the sum, which may have another sign than the summand
  down,                // toward minus infinity
  up,                  // toward infinity
  nearest_even,        // to nearest, ties to even
  nearest_away,        // to nearest, ties away from zero
  none_of_these,       // none of these explains all sums
  beyond_measurement,  // too many bits are kept to see it
};

std::string_view name(Rounding rounding);

// Widths are in bits, from the leading bit of the largest summand to the last place that is added,
// both included. Where the place of products matters, it is the smallest width of all places.
struct AccumulatorFindings {
  int bits = 0;           // of a product beside a larger one
  int most_bits = 0;      // the largest width of all places
  int bits_beside_c = 0;  // of a product beside what the accumulator holds already
  int bits_of_c = 0;      // of what the accumulator holds, beside a larger product
  int bits_of_sum = 0;    // of the accumulator, read after products whose sum is eight times each
  Rounding rounding = Rounding::beyond_measurement;
  std::optional<bool> rounds_each_product;  // or else their sum; absent: not known
};

// The largest width that is told from larger ones.
inline constexpr int kMostBits = 29;

// Probes chains of `instructions`, each of which adds `products` (at least 16, a power of two). The
// large product is in the first of them and is taken away in the last one, the small one is halfway
// between; one instruction has them all. All factors are values of E4M3 and of BF16.
AccumulatorFindings probe_accumulator(int products, int instructions, const AddUp& add_up);

}  // namespace tilewright::cli
