// What a problem of DeepSeek-V4's attention must give.
#pragma once

#include "problems/dsv4_problem.hpp"

namespace tilewright::test {

// Expects outputs near the float64 oracle's, and nothing written but rows of tokens:
//   o     as of expectation.hpp; and the cosine of all of it and of the oracle's is at least
//         0.999997, or 0.999998 un-normalised. Where keys have a tenth of the queries' deviation,
//         as in FlashMLA's tests, it is within their tolerances, too: each element within 1e-3 or
//         2.01 / 128 of itself, and 1 - 2 <a, b> / (<a, a> + <b, b>) at most 5e-6
//         E4M3: each element, times its scale, within half of a step of E4M3 beside that, and
//         scales those of the formula, or of an amax 1 % off
//   lse, row_max, row_sum   as of expectation.hpp
void expect_right(const Dsv4Problem& problem, const Dsv4HostTensors& result);

// Expects the same bits in all outputs.
void expect_same_bits(Dsv4HostTensors& a, Dsv4HostTensors& b);

// Expects a cosine of at least 0.999997 with the oracle's o, 0.999998 un-normalised, and every LSE
// within 2e-6.
void expect_near_as_seed(const Dsv4Problem& problem, const Dsv4HostTensors& result);

}  // namespace tilewright::test
