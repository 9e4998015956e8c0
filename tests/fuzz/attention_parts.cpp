#include "fuzz/attention_parts.hpp"

#include <algorithm>
#include <cmath>

#include "reference/host_tensor.hpp"

namespace tilewright::fuzz {

double relative_error(DType dtype) {
  const double rounding = dtype == DType::bf16 ? 0x1p-8 : dtype == DType::fp16 ? 0x1p-11 : 0;
  return 2.1 * rounding + 3e-5;
}

double scale_of(std::optional<float> scale, const TensorView& q) {
  const double head_dim = static_cast<double>(q.shape[q.rank == 3 ? 2 : 3]);
  return scale.value_or(static_cast<float>(1 / std::sqrt(head_dim)));
}

void judge_score_options(Contract& contract, std::optional<float> scale, double actual_scale,
                         float softcap, const Window& window) {
  constexpr double kMostOption = 1e38;
  const auto is_bad = [](double value) { return !(value >= 0 && value <= kMostOption); };
  if (is_bad(scale.value_or(0))) {
    contract.refuse("scale");
  }
  if (is_bad(softcap) || softcap < (softcap == 0 ? 0 : actual_scale / kMostOption)) {
    contract.refuse("softcap");
  }
  if (window.left.value_or(0) < 0 || window.right.value_or(0) < 0) {
    contract.refuse("window");
  }
}

bool are_boundaries(const std::vector<int>& values, std::int64_t rows) {
  return values.front() == 0 && std::ranges::is_sorted(values) && values.back() <= rows;
}

std::vector<int> ints_of(const TensorView& vector) {
  std::vector<int> values;
  for (std::int64_t i = 0; i < vector.shape[0]; ++i) {
    values.push_back(static_cast<int>(reference::load(vector, i)));
  }
  return values;
}

void store_ints(const TensorView& vector, const std::vector<int>& values) {
  const auto count = std::min(values.size(), static_cast<std::size_t>(vector.shape[0]));
  for (std::size_t i = 0; i < count; ++i) {
    reference::store(vector, static_cast<std::int64_t>(i), values[i]);
  }
}

void expect_unwritten(const ConstTensorView& t, std::int64_t tokens, std::int64_t end,
                      std::vector<double>& expected) {
  reference::HostTensor canary(t.dtype, {1});
  std::fill_n(canary.data(), canary.bytes(), Arena::kCanary);
  const std::int64_t row_size = t.rank == 3 ? t.shape[1] * t.shape[2] : 1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::int64_t row = static_cast<std::int64_t>(i) / row_size % tokens;
    if (row >= end) {
      expected[i] = reference::load(canary.view(), 0);
    }
  }
}

std::vector<double> statistic_bounds(const std::vector<double>& expected) {
  std::vector<double> bounds;
  for (const double value : expected) {
    bounds.push_back(1e-5 + 1e-5 * std::abs(value));
  }
  return bounds;
}

}  // namespace tilewright::fuzz
