#include "cli/attention_check.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace tilewright::cli {
namespace {

// Of the finite values.
double largest(const std::vector<double>& values) {
  double result = 0;
  for (const double value : values) {
    result = std::isfinite(value) ? std::max(result, std::abs(value)) : result;
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
                         const ExpectedAttention& expected) {
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
  if (!(lse.max_abs <= expected.lse_limit)) {
    return fmt::format("lse's largest error is {:.2e}, must be at most {:.2e}", lse.max_abs,
                       expected.lse_limit);
  }
  return "";
}

}  // namespace

ExpectedAttention expect_attention(
    DType dtype, const std::function<reference::AttentionResult(reference::Rounding)>& oracle) {
  ExpectedAttention expected{.exact = oracle(reference::Rounding::exact)};
  expected.lse_limit = 1e-5 + 2e-6 * largest(expected.exact.lse);
  const auto allow_rounding = [&](reference::Rounding rounding, double rel_fro_limit) {
    expected.rel_fro_limit = rel_fro_limit;
    expected.max_abs_limit = 2 * largest_difference(oracle(rounding).o, expected.exact.o);
  };
  switch (dtype) {
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
    case DType::e4m3:  // whose O is bf16
      allow_rounding(reference::Rounding::e4m3_bf16, 4.5e-2);
      break;
    default:  // no dtype of q
      break;
  }
  return expected;
}

CheckResult check_attention(const Output& o, const Output& lse, const ExpectedAttention& expected) {
  const reference::ErrorNorms o_norms = reference::compare(o.host.view(), expected.exact.o);
  const reference::ErrorNorms lse_norms = reference::compare(lse.host.view(), expected.exact.lse);
  return {.rel_fro_error = o_norms.rel_fro,
          .max_abs_error = o_norms.max_abs,
          .failure = find_failure(o_norms, lse_norms, expected),
          .summary = fmt::format("relative {:.1e}, max {:.1e}, lse {:.1e}", o_norms.rel_fro,
                                 o_norms.max_abs, lse_norms.max_abs)};
}

}  // namespace tilewright::cli
