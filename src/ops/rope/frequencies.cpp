// The frequencies of a rotation and its tables.
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string>

#include "ops/attention_strides.hpp"
#include "ops/overlap.hpp"
#include "ops/tensor_checks.hpp"
#include "tilewright/rope.hpp"

namespace tilewright {
namespace {

constexpr std::array kTable = {"positions", "pairs"};

// Checks a number of the scaling; NaN is none of those that it may be.
void check_number(const char* argument, bool is_right, double value, const char* must_be) {
  if (!is_right || !std::isfinite(value)) {
    fail(argument, "is " + std::to_string(value) + ", must be finite and " + must_be);
  }
}

void check_scaling(const RopeScaling& scaling) {
  constexpr std::int64_t kMaxDims = 1 << 30;
  check_number("theta", scaling.theta > 1.0, scaling.theta, "above 1");
  if (scaling.dims < 2 || scaling.dims % 2 != 0 || scaling.dims >= kMaxDims) {
    fail("dims",
         "is " + std::to_string(scaling.dims) + ", must be even, at least 2 and less than 2^30");
  }
  if (scaling.yarn) {
    const RopeYarn& yarn = *scaling.yarn;
    check_number("factor", yarn.factor >= 1.0, yarn.factor, "at least 1");
    if (yarn.original_positions < 1) {
      fail("original_positions",
           "is " + std::to_string(yarn.original_positions) + ", must be at least 1");
    }
    check_number("beta_slow", yarn.beta_slow > 0.0, yarn.beta_slow, "above 0");
    check_number("beta_fast", yarn.beta_fast >= yarn.beta_slow, yarn.beta_fast,
                 "at least beta_slow");
  }
}

// The dim that makes so many turns within the original context.
double dim_of_turns(const RopeScaling& scaling, double turns) {
  const auto positions = static_cast<double>(scaling.yarn->original_positions);
  return static_cast<double>(scaling.dims) * std::log(positions / (2 * std::numbers::pi * turns)) /
         (2 * std::log(scaling.theta));
}

// What of pair i's frequency is slowed down, from 0 to 1.
double yarn_ramp(const RopeScaling& scaling, std::int64_t i) {
  constexpr double kNoZero = 0.001;
  const auto last_dim = static_cast<double>(scaling.dims - 1);
  const double low = std::max(std::floor(dim_of_turns(scaling, scaling.yarn->beta_fast)), 0.0);
  const double high = std::min(std::ceil(dim_of_turns(scaling, scaling.yarn->beta_slow)), last_dim);
  const double span = high == low ? kNoZero : high - low;
  return std::clamp((static_cast<double>(i) - low) / span, 0.0, 1.0);
}

void check_table(const char* argument, const TensorView& table, const RopeScaling& scaling) {
  check_tensor(argument, table, kTable);
  check_dtype(argument, table, DType::fp32);
  check_device(argument, table, {}, "a table that the host fills");
  check_same(argument, "pairs", table.shape[1], "half of dims,", scaling.dims / 2);
  check_last_dim_is_contiguous(argument, table, "must be");
  check_no_overlap(argument, table);
  check_elements_are_aligned(argument, table);
}

}  // namespace

std::vector<float> rope_frequencies(const RopeScaling& scaling) {
  check_scaling(scaling);
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < scaling.dims / 2; ++i) {
    double frequency =
        std::pow(scaling.theta, -2.0 * static_cast<double>(i) / static_cast<double>(scaling.dims));
    if (scaling.yarn) {
      const double ramp = yarn_ramp(scaling, i);
      frequency = frequency * (1 - ramp) + frequency / scaling.yarn->factor * ramp;
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

void rope_tables(const RopeScaling& scaling, const TensorView& cos, const TensorView& sin) {
  const std::vector<float> frequencies = rope_frequencies(scaling);
  check_table("cos", cos, scaling);
  check_table("sin", sin, scaling);
  check_same("sin", "positions", sin.shape[0], "cos'", cos.shape[0]);
  check_is_apart("cos", cos, {{"sin", sin}});
  for (std::int64_t position = 0; position < cos.shape[0]; ++position) {
    float* const cos_row = static_cast<float*>(cos.data) + position * stride_of(cos, 0);
    float* const sin_row = static_cast<float*>(sin.data) + position * stride_of(sin, 0);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      cos_row[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin_row[i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
}

}  // namespace tilewright
