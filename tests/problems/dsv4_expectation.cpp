#include "problems/dsv4_expectation.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <sstream>

#include "problems/problem.hpp"
#include "problems/row_results.hpp"
#include "reference/dsv4_attention.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::test {
namespace {

constexpr std::int64_t kDim = kDsv4HeadDim;
constexpr std::int64_t kGroup = 128;  // of E4M3 outputs

// Calls f(index, offset) for each element of a tensor: its number in dense order, and where it is.
template <typename F>
void for_each_element(const ConstTensorView& t, F f) {
  std::int64_t count = 1;
  for (int i = 0; i < t.rank; ++i) {
    count *= t.shape[i];
  }
  for (std::int64_t index = 0; index < count; ++index) {
    std::int64_t rest = index;
    std::int64_t offset = 0;
    for (int i = t.rank; i-- > 0; rest /= t.shape[i]) {
      offset += rest % t.shape[i] * t.stride[i];
    }
    f(static_cast<std::size_t>(index), offset);
  }
}

// Sums of products over all finite pairs of elements.
struct Products {
  double actual = 0;
  double mixed = 0;
  double expected = 0;

  void add(double a, double b) {
    if (std::isfinite(a) && std::isfinite(b)) {
      actual += a * a;
      mixed += a * b;
      expected += b * b;
    }
  }
};

Products products_of(const ConstTensorView& actual, const std::vector<double>& expected) {
  Products sums;
  for_each_element(actual, [&](std::size_t index, std::int64_t offset) {
    sums.add(reference::load(actual, offset), expected[index]);
  });
  return sums;
}

// The cosine of two vectors, NaN and infinities left out; 1 if nothing is left.
double cosine(const Products& sums) {
  const double norms = std::sqrt(sums.actual * sums.expected);
  return norms == 0 ? 1.0 : sums.mixed / norms;
}

// The seed's limit.
double min_cosine(const Dsv4Problem& problem) { return problem.unnormalized ? 0.999998 : 0.999997; }

// ---- What a problem's results are held to

struct Expected {
  reference::AttentionResult exact;
  double max_abs_limit = 0;
  double min_cosine = 1;
};

// The limits allow twice the error that is unavoidable where P and O are rounded; the cosine's is
// the seed's, unless that rounding alone comes near it.
Expected expect(const Dsv4Problem& problem) {
  Dsv4HostTensors tensors = make_tensors(problem);
  const auto result_of = [&](reference::Rounding rounding) {
    return reference::dsv4_attention(tensors.views(), options_of(problem, "auto"), rounding);
  };
  Expected expected{.exact = result_of(reference::Rounding::exact)};
  const std::vector<double> rounded = result_of(precision_of(problem.dtype).rounding).o;
  expected.max_abs_limit = max_abs_limit(expected.exact.o, rounded);
  Products sums;
  for (std::size_t i = 0; i < rounded.size(); ++i) {
    sums.add(rounded[i], expected.exact.o[i]);
  }
  expected.min_cosine = std::min(min_cosine(problem), 1 - 2 * (1 - cosine(sums)));
  return expected;
}

// Computed once per problem and kept: the kernels share it.
const Expected& expected_of(const Dsv4Problem& problem) {
  static std::map<std::string, Expected> cache;
  std::ostringstream text;
  text << problem;
  const auto found = cache.find(text.str());
  return found != cache.end() ? found->second
                              : cache.emplace(text.str(), expect(problem)).first->second;
}

// FlashMLA's tolerances of its decode tests.
void expect_near_as_flash_mla(const ConstTensorView& o, const std::vector<double>& expected) {
  int far = 0;
  for_each_element(o, [&](std::size_t index, std::int64_t offset) {
    const double error = std::abs(reference::load(o, offset) - expected[index]);
    far += error > 1e-3 && error > 2.01 / 128 * std::abs(expected[index]) ? 1 : 0;
  });
  EXPECT_EQ(far, 0) << "elements beyond FlashMLA's tolerances";
  const Products sums = products_of(o, expected);
  const double all = sums.actual + sums.expected;
  EXPECT_LE(all == 0 ? 0 : 1 - 2 * sums.mixed / all, 5e-6);
}

// ---- E4M3

// o of E4M3 times its scales, in FP32, dense. Elements that are not written are NaN.
reference::HostTensor dequantized(const Dsv4HostTensors& result) {
  const ConstTensorView codes = result.o.view();
  const ConstTensorView scales = result.o_scale->view();
  reference::HostTensor values(DType::fp32,
                               {codes.shape.begin(), codes.shape.begin() + codes.rank});
  std::vector<double> dense_scales;
  for_each_element(scales, [&](std::size_t, std::int64_t offset) {
    dense_scales.push_back(reference::load(scales, offset));
  });
  for_each_element(codes, [&](std::size_t index, std::int64_t offset) {
    const auto bits = static_cast<int>(reference::load(codes, offset));
    reference::store(values.view(), static_cast<std::int64_t>(index),
                     reference::scale_value(DType::e4m3, bits) * dense_scales[index / kGroup]);
  });
  return values;
}

// The scale of a group is that of its largest expected magnitude, or of one near it. In a row that
// is NaN it is not looked at.
void expect_right_scales(const Dsv4HostTensors& result, const std::vector<double>& expected) {
  const ConstTensorView scales = result.o_scale->view();
  int wrong = 0;
  for_each_element(scales, [&](std::size_t index, std::int64_t offset) {
    double amax = 0;
    for (std::size_t d = 0; d < kGroup; ++d) {
      amax = std::max(amax, std::abs(expected[index * kGroup + d]));
      if (std::isnan(expected[index * kGroup + d])) {
        return;
      }
    }
    const double scale = reference::load(scales, offset);
    wrong += scale == reference::output_scale(0.99 * amax) ||
                     scale == reference::output_scale(1.01 * amax)
                 ? 0
                 : 1;
  });
  EXPECT_EQ(wrong, 0) << "wrong scales";
}

void expect_right_e4m3(const Expected& expected, const Dsv4HostTensors& result,
                       std::optional<std::int64_t> packed_end) {
  const std::vector<double>& exact = expected.exact.o;
  const reference::HostTensor values = dequantized(result);
  EXPECT_TRUE(reference::compare(values.view(), exact).same_specials);
  expect_rest_is_unwritten("o", result.o, packed_end);
  expect_rest_is_unwritten("o_scale", *result.o_scale, packed_end);
  expect_right_scales(result, exact);
  int far = 0;
  for_each_element(values.view(), [&](std::size_t index, std::int64_t offset) {
    const double error = std::abs(reference::load(values.view(), offset) - exact[index]);
    const std::size_t group = index / kGroup * kGroup;
    double amax = 0;
    for (std::size_t d = group; d < group + kGroup; ++d) {
      amax = std::max(amax, std::abs(exact[d]));
    }
    const double half_step =
        std::max(0x1p-4 * std::abs(exact[index]), 0x1p-10 * reference::output_scale(1.01 * amax));
    far += error > expected.max_abs_limit + 1.01 * half_step ? 1 : 0;
  });
  EXPECT_EQ(far, 0) << "elements of o beyond half a step";
}

}  // namespace

void expect_right(const Dsv4Problem& problem, const Dsv4HostTensors& result) {
  const Expected& expected = expected_of(problem);
  std::optional<std::int64_t> packed_end;
  if (problem.packed) {
    packed_end = std::accumulate(problem.q_lens.begin(), problem.q_lens.end(), std::int64_t{0});
  }
  if (problem.e4m3_output) {
    expect_right_e4m3(expected, result, packed_end);
  } else {
    const auto o = norms_of("o", result.o, expected.exact.o, packed_end);
    EXPECT_LE(o.rel_fro, precision_of(problem.dtype).max_rel_fro);
    EXPECT_LE(o.max_abs, expected.max_abs_limit);
    EXPECT_GE(cosine(products_of(result.o.view(), expected.exact.o)), expected.min_cosine);
    if (problem.key_deviation == 0.1 && !problem.unnormalized) {
      expect_near_as_flash_mla(result.o.view(), expected.exact.o);
    }
  }
  const auto& [exact_o, lse, row_max, row_sum] = expected.exact;
  expect_statistics("lse", result.lse, {.values = lse, .scores = lse}, packed_end);
  if (problem.unnormalized) {
    expect_statistics("row_max", *result.row_max, {.values = row_max, .scores = row_max},
                      packed_end);
    expect_statistics("row_sum", *result.row_sum,
                      {.values = row_sum, .scores = row_max, .is_relative = true}, packed_end);
  }
}

void expect_near_as_seed(const Dsv4Problem& problem, const Dsv4HostTensors& result) {
  const Expected& expected = expected_of(problem);
  EXPECT_GE(cosine(products_of(result.o.view(), expected.exact.o)), min_cosine(problem));
  EXPECT_LE(reference::compare(result.lse.view(), expected.exact.lse).max_abs, 2e-6);
}

void expect_same_bits(Dsv4HostTensors& a, Dsv4HostTensors& b) {
  const auto outputs_a = a.outputs();
  const auto outputs_b = b.outputs();
  for (std::size_t i = 0; i < outputs_a.size(); ++i) {
    EXPECT_TRUE(same_bytes(*outputs_a[i], *outputs_b[i])) << "output " << i << " differs";
  }
}

}  // namespace tilewright::test
