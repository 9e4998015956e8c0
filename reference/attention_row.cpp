#include "reference/attention_row.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/half.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double to_bf16(double value) { return bf16_to_float(float_to_bf16(static_cast<float>(value))); }

double to_fp16(double value) { return fp16_to_float(float_to_fp16(static_cast<float>(value))); }

double to_e4m3(double weight) {
  constexpr double kScale = 256;
  return scale_value(DType::e4m3, round_to_e4m3(weight * kScale)) / kScale;
}

double rounded_weight(Rounding rounding, double weight) {
  switch (rounding) {
    case Rounding::exact:
      return weight;
    case Rounding::bf16:
      return to_bf16(weight);
    case Rounding::fp16:
      return to_fp16(weight);
    case Rounding::e4m3_bf16:
    case Rounding::e4m3_fp16:
      return to_e4m3(weight);
  }
  return weight;
}

double rounded_output(Rounding rounding, double value) {
  switch (rounding) {
    case Rounding::exact:
      return value;
    case Rounding::bf16:
    case Rounding::e4m3_bf16:
      return to_bf16(value);
    case Rounding::fp16:
    case Rounding::e4m3_fp16:
      return to_fp16(value);
  }
  return value;
}

}  // namespace

double dot(const double* q, const double* k, std::int64_t dim) {
  double sum = 0;
  for (std::int64_t d = 0; d < dim; ++d) {
    sum += q[d] * k[d];
  }
  return sum;
}

RowSums attend(const double* q, const double* k, std::int64_t dim, const double* v,
               std::int64_t value_dim, const std::vector<std::int64_t>& seen,
               const Scoring& scoring, double* o) {
  std::vector<double> s;
  double max = scoring.sink;  // NaN scores leave it as it is
  for (const std::int64_t j : seen) {
    double score = scoring.scale * scoring.product(q, k + j * dim, dim);
    if (scoring.softcap > 0) {
      score = scoring.softcap * std::tanh(score / scoring.softcap);
    }
    s.push_back(score);
    max = std::max(max, score);
  }
  if (std::isnan(scoring.sink) || std::ranges::any_of(s, [](double x) { return std::isnan(x); })) {
    std::fill(o, o + value_dim, kNaN);
    return {.max = kNaN, .sum = kNaN};
  }
  std::fill(o, o + value_dim, 0.0);
  if (max == kMinusInfinity) {
    return {.max = kMinusInfinity, .sum = 0};
  }
  double sum = scoring.sink == -kMinusInfinity ? 1.0 : std::exp(scoring.sink - max);
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double weight = std::exp(s[i] - max);
    sum += weight;
    const double rounded = rounded_weight(scoring.rounding, weight);
    for (std::int64_t d = 0; d < value_dim; ++d) {
      o[d] += rounded * v[seen[i] * value_dim + d];
    }
  }
  return {.max = max, .sum = sum};
}

void normalize(double* o, std::int64_t dim, double sum) {
  for (std::int64_t d = 0; d < dim; ++d) {
    o[d] = sum == 0 ? 0.0 : o[d] / sum;
  }
}

void round_output(double* o, std::int64_t dim, Rounding rounding) {
  for (std::int64_t d = 0; d < dim; ++d) {
    o[d] = rounded_output(rounding, o[d]);
  }
}

}  // namespace tilewright::reference
