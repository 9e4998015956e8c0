// Tensors in host memory that own their storage: inputs and outputs of tests, checks and
// benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tilewright/tensor.hpp"

namespace tilewright::reference {

class HostTensor {
 public:
  // Dense row-major, or with the given element strides (all at least 0); bytes are zero.
  HostTensor(DType dtype, std::vector<std::int64_t> shape);
  HostTensor(DType dtype, std::vector<std::int64_t> shape, std::vector<std::int64_t> stride);

  TensorView view();
  ConstTensorView view() const;

  std::byte* data() { return storage_.data(); }
  const std::byte* data() const { return storage_.data(); }
  std::size_t bytes() const { return storage_.size(); }

 private:
  TensorView description_;
  std::vector<std::byte> storage_;
};

// Fills the logical elements (gaps between strides are left alone). Normal values come from a
// counter-based generator: they depend on the seed and the element's index alone, not on threads.
void fill_normal(const TensorView& tensor, std::uint64_t seed, double stddev = 1.0);
void fill_constant(const TensorView& tensor, double value);

// The value of the element at an offset from tensor.data, in elements. Codes and scales of one byte
// are loaded and stored as bytes, 0 to 255.
double load(const ConstTensorView& tensor, std::int64_t offset);

// Rounds to the tensor's dtype, to nearest even (integers: towards zero), and stores.
void store(const TensorView& tensor, std::int64_t offset, double value);

// Of tensors of one size, gaps included.
bool same_bytes(const HostTensor& a, const HostTensor& b);

// Are all bytes between the elements still `filler`?
bool gaps_hold(const HostTensor& tensor, std::byte filler);

// How far a host tensor is from the dense expected values of its shape.
struct ErrorNorms {
  double rel_fro = 0;         // ||actual - expected||_2 / ||expected||_2; 0 / 0 counts as 0
  double max_abs = 0;         // max |actual - expected|
  bool same_specials = true;  // NaN and infinities stand in the same places, with the same sign
};

// Elements where both sides hold the same infinity or NaN do not enter the norms.
ErrorNorms compare(const ConstTensorView& actual, const std::vector<double>& expected);

// The relative error of the expected values rounded to a dtype.
double rounding_error(DType dtype, const std::vector<double>& expected);

}  // namespace tilewright::reference
