// What the models of attention's operations share.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "fuzz/call.hpp"
#include "tilewright/attention.hpp"

namespace tilewright::fuzz {

inline constexpr std::int64_t kMostHeadDim = 16384;  // of the kernel "cpu", see registry.hpp
inline constexpr std::array kFloats = {DType::fp32, DType::fp16, DType::bf16};
inline constexpr std::array<std::int64_t, 6> kHeadDims = {16, 1, 2, 8, 33, 64};
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr std::array kExtremeOptions = {
    -1.0f, -1e-45f, 1e-45f, 1e-40f, 1e-38f, 9.9e37f, 2e38f, std::numeric_limits<float>::infinity(),
    kNaN};

// What rounding the weights and an output does, of the sum of |weight| |v|.
double relative_error(DType dtype);

// The scale that a call has, of the head dim that q has.
double scale_of(std::optional<float> scale, const TensorView& q);

void judge_score_options(Contract& contract, std::optional<float> scale, double actual_scale,
                         float softcap, const Window& window);

// From 0, ascending, up to `rows` at most?
bool are_boundaries(const std::vector<int>& values, std::int64_t rows);

// A vector's values.
std::vector<int> ints_of(const TensorView& vector);
void store_ints(const TensorView& vector, const std::vector<int>& values);

// Expects rows of packed tensors from `end` on to be as they were. They are in the dimension before
// heads and head dim, or of a statistic in the last one; `tokens` is its size.
void expect_unwritten(const ConstTensorView& t, std::int64_t tokens, std::int64_t end,
                      std::vector<double>& expected);

// What FP32 leaves of statistics.
std::vector<double> statistic_bounds(const std::vector<double>& expected);

}  // namespace tilewright::fuzz
