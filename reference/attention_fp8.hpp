// The test oracles of tilewright::attention_fp8(), in float64.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/attention.hpp"
#include "tilewright/attention_fp8.hpp"

namespace tilewright::reference {

// Exact attention of the values for which bytes and descales stand. Results are as of attention().
AttentionResult attention_fp8(const AttentionFp8Tensors& tensors,
                              const AttentionFp8Options& options,
                              Rounding rounding = Rounding::exact);

// What the limits of the result's errors follow from.
struct Magnitudes {
  std::vector<double> o;  // sum_j exp(s_j - m) |v_j|, divided by l where o is normalised
  // Of a row: the most by which the tensor cores' additions change the score of one of its keys.
  std::vector<double> score_errors;
  std::vector<double> sums;  // l
};
Magnitudes magnitudes(const AttentionFp8Tensors& tensors, const AttentionFp8Options& options);

// The share by which l of a row may be off if tensor cores add up its weights as they were rounded
// to E4M3: half an ulp of three bits; 128 products that may each lose 2^-13 of the largest term;
// and the weights that are subnormal.
double rounded_sum_share(std::int64_t kv_len, double l);

// How unquantised rows become E4M3.
struct Quantization {
  std::optional<std::uint64_t> seed;  // of the rotation of queries and keys
  int descale_rows;                   // 0: one descale for each sequence and head, not packed
  bool v_transposed = false;          // its blocks' descales are powers of two
};

// Exact attention of q, k and v that are quantised first, as rotate_quantize() does it. What it is
// off the exact result of the same tensors is the quantisation's error; what a kernel's result of
// the quantised tensors is off this one is the kernel's. All rows must be of some sequence.
AttentionResult attention_of_quantized(const AttentionTensors& tensors,
                                       const AttentionOptions& options,
                                       const Quantization& quantization);

}  // namespace tilewright::reference
