#include "problems/inputs.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>

#include "problems/problem.hpp"

namespace tilewright::test {

using reference::HostTensor;

HostTensor unwritten(HostTensor tensor) {
  std::memset(tensor.data(), static_cast<int>(kUnwritten), tensor.bytes());
  return tensor;
}

HostTensor integers(DType dtype, const std::vector<std::int64_t>& values) {
  HostTensor tensor(dtype, {static_cast<std::int64_t>(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i) {
    reference::store(tensor.view(), static_cast<std::int64_t>(i), static_cast<double>(values[i]));
  }
  return tensor;
}

std::vector<std::int64_t> shuffled(std::int64_t count, std::mt19937_64& random) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  std::iota(all.begin(), all.end(), std::int64_t{0});
  std::ranges::shuffle(all, random);
  return all;
}

void fill_specials(HostTensor& tensor, std::mt19937_64& random) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr std::array kSpecials = {0.0, -0.0, kInfinity, -kInfinity, kNaN, -kNaN, 1e-7, 6e4};
  const TensorView view = tensor.view();
  const std::int64_t dim = view.shape[view.rank - 1];
  const auto elements = static_cast<std::int64_t>(tensor.bytes() / size_bytes(view.dtype));
  for (std::int64_t first = 0; first + dim <= elements; first += dim) {
    const auto kind = random() % 6;
    for (std::int64_t i = 0; i < dim; ++i) {
      if (kind == 0) {
        reference::store(view, first + i, i % 2 == 0 ? 0.0 : -0.0);
      } else if (kind < 3 && random() % 16 == 0) {
        reference::store(view, first + i, kSpecials[random() % 8]);
      }
    }
  }
}

}  // namespace tilewright::test
