// What a problem of attention on FP8 must give, and how near a result must come to it.
#pragma once

#include "problems/fp8_problem.hpp"

namespace tilewright::test {

// How a kernel rounds the weights exp(s - m) of the second product, and which of them it adds up:
// `e4m3_sums` stands for the sum of the rounded ones, by tensor cores.
enum class Weights { exact, e4m3, e4m3_sums };

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
// With e4m3_sums, l is off by a share of r = 2^-4 + 2^-6 + 2^-18 keys / l more, the LSE by
// -ln(1 - r), and o by r |o|: each weight is rounded, 128 products may each lose 2^-13 of the
// largest term, and some weights are subnormal.
//
// NaN and infinities in the same places, and bytes that must not be written as they were.
void expect_right(const Fp8Problem& problem, const Fp8HostSet& result, Weights weights);

}  // namespace tilewright::test
