// What a problem of attention on FP8 must give, and how near a result must come to it.
#pragma once

#include "problems/fp8_problem.hpp"

namespace tilewright::test {

// How a kernel rounds the weights exp(s - m) of the second product.
enum class Weights { exact, e4m3 };

// Expects outputs near the float64 oracle's, of the values for which bytes and descales stand. With
// exact weights the limits are those of attention. With weights of E4M3, and products by tensor
// cores that keep 13 bits behind the point of the largest term while they add 32 products:
//
//   scores  off by e = 2^-13 of the largest magnitude scale * sum |q_d k_d|, for each 32 dims
//   lse, row_max    within e, and attention's own limit
//   row_sum         within a share of 2 e, and attention's own limit
//   o       each within (2^-4 + 2 e + 2^-9) of sum p |v|, as weights of three bits, scores and
//           sums have it; 2^-18 of the largest |v| for each key, the weights that are subnormal;
//           and half an ulp of its dtype
//   o       with a relative Frobenius error of at most 0.045: 0.0265 is expected of rounding to
//           three bits at random
//
// NaN and infinities in the same places, and bytes that must not be written as they were.
void expect_right(const Fp8Problem& problem, const Fp8HostSet& result, Weights weights);

// Expects the same of o, where nothing else was asked for and weights are of E4M3. Then o may be
// divided by the sum of the weights as they were rounded: within reference::rounded_sum_share() of
// |o| more.
void expect_output_right(const Fp8Problem& problem, const Fp8HostSet& result);

}  // namespace tilewright::test
