#include "ops/overlap.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "ops/tensor_checks.hpp"

namespace tilewright {
namespace {

// A dimension: up to `count` steps of `bytes`.
struct Step {
  std::int64_t bytes = 0;  // at least 1
  std::int64_t count = 0;
};

// All distances from an element of one tensor to one of another: `first` plus any steps.
struct Distances {
  std::int64_t first = 0;
  std::array<Step, 2 * std::size_t{kMaxRank}> steps{};
  std::size_t dims = 0;
};

// Adds a tensor's dimensions to the distances or, with sign -1, subtracts them. Dimensions that are
// never stepped over may have any stride.
void add_dims(Distances& distances, const ConstTensorView& tensor, int sign) {
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(tensor.dtype));
  for (int i = 0; i < tensor.rank; ++i) {
    const std::int64_t count = tensor.shape[i] - 1;
    const std::int64_t bytes = count > 0 ? sign * tensor.stride[i] * element_bytes : 0;
    if (bytes != 0) {
      distances.first += bytes < 0 ? bytes * count : 0;  // count from the least distance upwards
      distances.steps[distances.dims++] = {std::abs(bytes), count};
    }
  }
}

// Is any distance above `low` and below `high`? Steps ascend.
bool any_between(std::int64_t first, std::span<const Step> steps, std::int64_t low,
                 std::int64_t high) {
  if (first >= high) {
    return false;
  }
  if (steps.empty()) {
    return first > low;
  }
  const auto [bytes, count] = steps.back();
  const std::span<const Step> rest = steps.first(steps.size() - 1);
  std::int64_t missing = low - first;  // what is missing after all steps of the rest
  for (const Step& step : rest) {
    missing -= step.bytes * step.count;
  }
  const std::int64_t last = std::min(count, (high - first - 1) / bytes);
  for (std::int64_t i = missing < 0 ? 0 : missing / bytes + 1; i <= last; ++i) {
    if (any_between(first + i * bytes, rest, low, high)) {
      return true;
    }
  }
  return false;
}

}  // namespace

// Two elements share a byte if the one of a starts less than its own size before the one of b, or
// less than that one's size after it.
bool shares_bytes(const ConstTensorView& a, const ConstTensorView& b) {
  const auto first = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(a.data) -
                                               reinterpret_cast<std::uintptr_t>(b.data));
  if (first < -2 * kMaxSpan_bytes || first > 2 * kMaxSpan_bytes) {
    return false;
  }
  Distances distances{.first = first};
  add_dims(distances, a, 1);
  add_dims(distances, b, -1);
  const std::span<Step> steps(distances.steps.data(), distances.dims);
  auto low = -static_cast<std::int64_t>(size_bytes(a.dtype));
  const auto high = static_cast<std::int64_t>(size_bytes(b.dtype));
  std::int64_t last = distances.first;
  for (const Step& step : steps) {
    last += step.bytes * step.count;
  }
  if (distances.first >= high || last <= low) {
    return false;  // one tensor ends before the other begins
  }

  std::ranges::sort(steps, {}, &Step::bytes);
  std::size_t kept = 0;
  for (const Step step : steps) {
    if (step.bytes < high - low) {  // steps without gaps: widen the range instead
      low -= step.bytes * step.count;
    } else if (kept > 0 && steps[kept - 1].bytes == step.bytes) {
      steps[kept - 1].count += step.count;
    } else {
      steps[kept++] = step;
    }
  }
  return any_between(distances.first, steps.first(kept), low, high);
}

void check_is_apart(const char* argument, const ConstTensorView& output,
                    std::initializer_list<OtherTensor> others, const char* why) {
  for (const auto& [other_argument, other] : others) {
    if (other && shares_bytes(output, *other)) {
      fail(argument, std::string("shares memory with ") + other_argument +
                         ", must not overlap an input or another output" + why);
    }
  }
}

}  // namespace tilewright
