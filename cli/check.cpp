#include "cli/check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "reference/host_tensor.hpp"

namespace tilewright::cli {
namespace {

constexpr double kLseLimit = 1e-3;

double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) {
    result = std::max(result, std::abs(value));
  }
  return result;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double result = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    result = std::max(result, std::abs(a[i] - b[i]));
  }
  return result;
}

std::string find_failure(const reference::ErrorNorms& o, const reference::ErrorNorms& lse,
                         const Expected& expected) {
  if (!o.same_specials || !lse.same_specials) {
    return fmt::format("{} has NaN or infinity where the reference has none, or the reverse",
                       o.same_specials ? "lse" : "o");
  }
  if (!(o.rel_fro <= expected.rel_fro_limit)) {
    return fmt::format("o's relative error is {:.2e}, must be at most {:.2e}", o.rel_fro,
                       expected.rel_fro_limit);
  }
  if (!(o.max_abs <= expected.max_abs_limit)) {
    return fmt::format("o's largest error is {:.2e}, must be at most {:.2e}", o.max_abs,
                       expected.max_abs_limit);
  }
  if (!(lse.max_abs <= kLseLimit)) {
    return fmt::format("lse's largest error is {:.2e}, must be at most {:.2e}", lse.max_abs,
                       kLseLimit);
  }
  return "";
}

}  // namespace

Expected expect(const AttentionTensors& tensors, const AttentionOptions& options) {
  Expected expected{.exact = reference::attention(tensors, options)};
  const auto allow_rounding = [&](reference::Rounding rounding, double rel_fro_limit) {
    const auto rounded = reference::attention(tensors, options, rounding);
    expected.rel_fro_limit = rel_fro_limit;
    expected.max_abs_limit = 2 * largest_difference(rounded.o, expected.exact.o);
  };
  switch (tensors.q.dtype) {
    case DType::bf16:
      allow_rounding(reference::Rounding::bf16, 3e-3);
      break;
    case DType::fp16:
      allow_rounding(reference::Rounding::fp16, 5e-4);
      break;
    case DType::fp32:
      expected.rel_fro_limit = 1e-5;
      expected.max_abs_limit = 1e-4 * largest(expected.exact.o);
      break;
    default:  // no dtype of q
      break;
  }
  return expected;
}

CheckResult check(const ConstTensorView& o, const ConstTensorView& lse, const Expected& expected) {
  const reference::ErrorNorms o_errors = reference::compare(o, expected.exact.o);
  const reference::ErrorNorms lse_errors = reference::compare(lse, expected.exact.lse);
  return {.rel_fro_error = o_errors.rel_fro,
          .max_abs_error = o_errors.max_abs,
          .lse_max_abs_error = lse_errors.max_abs,
          .failure = find_failure(o_errors, lse_errors, expected)};
}

}  // namespace tilewright::cli
