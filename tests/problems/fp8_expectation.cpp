#include "problems/fp8_expectation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "problems/expectation.hpp"
#include "problems/row_results.hpp"
#include "reference/attention_fp8.hpp"

namespace tilewright::test {
namespace {

struct Expected {
  reference::AttentionResult exact;
  reference::Magnitudes magnitudes;
  double largest_value = 0;
  double max_abs_limit = 0;  // of exact weights
};

reference::AttentionResult result_of(const Fp8Problem& problem, reference::Rounding rounding) {
  Fp8HostSet tensors = make_tensors(problem);
  return reference::attention_fp8(tensors.views(), options_of(problem, "auto"), rounding);
}

double max_abs_limit_of(Fp8Problem problem) {
  problem.attention.specials.clear();
  return max_abs_limit(result_of(problem, reference::Rounding::exact).o,
                       result_of(problem, precision_of(problem.attention.dtype).rounding).o);
}

// The largest |o| that a row's weights could give: where all weight is on the largest value.
double largest_value(const Fp8Problem& problem, Fp8HostSet tensors) {
  constexpr double kE4m3Max = 448;
  double descale = tensors.v_descale ? 0 : 1;
  if (tensors.v_descale) {
    const auto* const values = reinterpret_cast<const float*>(tensors.v_descale->data());
    for (std::size_t i = 0; i < tensors.v_descale->bytes() / sizeof(float); ++i) {
      descale = std::isfinite(values[i]) ? std::max<double>(descale, values[i]) : descale;
    }
  }
  return problem.descales == DescaleForm::none ? kE4m3Max : descale * kE4m3Max;
}

// What the limits for these weights need.
Expected expect(const Fp8Problem& problem, Weights weights) {
  Expected expected{.exact = result_of(problem, reference::Rounding::exact), .magnitudes = {}};
  if (weights == Weights::exact) {
    expected.max_abs_limit = max_abs_limit_of(problem);
    return expected;
  }
  Fp8HostSet tensors = make_tensors(problem);
  expected.magnitudes = reference::magnitudes(tensors.views(), options_of(problem, "auto"));
  expected.largest_value = largest_value(problem, tensors);
  return expected;
}

// Computed once per problem and kept: the kernels share it.
const Expected& expected_of(const Fp8Problem& problem, Weights weights) {
  static std::map<std::string, Expected> cache;
  std::ostringstream text;
  text << problem << " weights " << static_cast<int>(weights);
  const auto found = cache.find(text.str());
  return found != cache.end() ? found->second
                              : cache.emplace(text.str(), expect(problem, weights)).first->second;
}

double rounding_of(const Problem& problem) {
  if (problem.unnormalized) {
    return 0x1p-23;
  }
  return problem.dtype == DType::bf16 ? 0x1p-8 : 0x1p-10;
}

// Calls f with an element's number in o and its row's in the statistics.
template <typename F>
void for_each_output(const Problem& p, std::int64_t value_dim, F f) {
  const std::int64_t batch = p.q_lens.empty() ? p.batch : 1;
  for (std::int64_t i = 0; i < batch * p.q_len * p.heads * value_dim; ++i) {
    const std::int64_t h = i / value_dim % p.heads;
    const std::int64_t n = i / value_dim / p.heads % p.q_len;
    const std::int64_t b = i / value_dim / p.heads / p.q_len;
    f(static_cast<std::size_t>(i), static_cast<std::size_t>((b * p.heads + h) * p.q_len + n));
  }
}

// The dense values of a tensor with any strides.
std::vector<double> dense(const reference::HostTensor& tensor) {
  const ConstTensorView t = tensor.view();
  std::vector<double> values;
  std::int64_t count = 1;
  for (int i = 0; i < t.rank; ++i) {
    count *= t.shape[i];
  }
  for (std::int64_t index = 0; index < count; ++index) {
    std::int64_t rest = index;
    std::int64_t offset = 0;
    for (int i = t.rank; i-- > 0;) {
      offset += rest % t.shape[i] * t.stride[i];
      rest /= t.shape[i];
    }
    values.push_back(reference::load(t, offset));
  }
  return values;
}

// `rounds_sums`: o may be divided by a sum of rounded weights.
void expect_outputs(const Fp8Problem& problem, const Expected& expected,
                    const std::vector<double>& o, bool rounds_sums) {
  const Problem& p = problem.attention;
  const std::int64_t value_dim = p.value_dim == 0 ? p.head_dim : p.value_dim;
  double worst = 0;
  for_each_output(p, value_dim, [&](std::size_t i, std::size_t row) {
    const double exact = expected.exact.o[i];
    const double share = 0x1p-4 + 2 * expected.magnitudes.score_errors[row] + 0x1p-9;
    const double sum = p.unnormalized ? 1.0 : std::max(expected.magnitudes.sums[row], 1e-30);
    const double tiny =
        0x1p-18 * static_cast<double>(p.kv_len) * expected.largest_value / sum + 1e-6;
    const double of_sum = rounds_sums ? reference::rounded_sum_share(p.kv_len, sum) : 0.0;
    const double limit =
        share * expected.magnitudes.o[i] + (rounding_of(p) + of_sum) * std::abs(exact) + tiny;
    const double ratio = std::abs(o[i] - exact) / limit;
    worst = std::isfinite(ratio) ? std::max(worst, ratio) : worst;
  });
  EXPECT_LE(worst, 1.0) << "o: the largest error over its limit";
}

// Expects a statistic within a score's error and what FP32 leaves.
void expect_statistic(const char* name, const Expected& expected,
                      const reference::HostTensor& actual, const std::vector<double>& values,
                      bool is_relative, std::optional<std::int64_t> packed_end) {
  norms_of(name, actual, values, packed_end);
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double fp32_error = 1e-5 + kScoreError * std::abs(expected.exact.row_max[i]);
    const double error = expected.magnitudes.score_errors[i];
    const double limit = is_relative ? values[i] * (2 * error + fp32_error) : error + fp32_error;
    const double ratio =
        std::abs(reference::load(actual.view(), static_cast<std::int64_t>(i)) - values[i]) / limit;
    worst = std::isfinite(ratio) ? std::max(worst, ratio) : worst;
  }
  EXPECT_LE(worst, 1.0) << name << ": the largest error over its limit";
}

void expect_rel_fro(const Fp8HostSet& result, const Expected& expected,
                    std::optional<std::int64_t> packed_end) {
  constexpr double kMaxRelFro = 0.045;
  EXPECT_LE(norms_of("o", result.o, expected.exact.o, packed_end).rel_fro, kMaxRelFro);
}

}  // namespace

void expect_right(const Fp8Problem& problem, const Fp8HostSet& result, Weights weights) {
  const Expected& expected = expected_of(problem, weights);
  const Problem& p = problem.attention;
  if (weights == Weights::exact) {
    expect_near(p, result, expected.exact, expected.max_abs_limit);
    return;
  }
  const std::optional<std::int64_t> packed_end = packed_end_of(p);
  expect_rel_fro(result, expected, packed_end);
  expect_outputs(problem, expected, dense(result.o), false);
  expect_statistic("lse", expected, result.lse, expected.exact.lse, false, packed_end);
  if (p.unnormalized) {
    expect_statistic("row_max", expected, *result.row_max, expected.exact.row_max, false,
                     packed_end);
    expect_statistic("row_sum", expected, *result.row_sum, expected.exact.row_sum, true,
                     packed_end);
  }
}

void expect_output_right(const Fp8Problem& problem, const Fp8HostSet& result) {
  const Expected& expected = expected_of(problem, Weights::e4m3);
  expect_rel_fro(result, expected, packed_end_of(problem.attention));
  expect_outputs(problem, expected, dense(result.o), true);
}

}  // namespace tilewright::test
