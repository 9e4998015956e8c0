// Rows of a call of attention in float64, dense, for its oracles.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/attention.hpp"
#include "reference/attention_row.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright::reference {

// (B, N, H, D) or packed (T, H, D), as a batch of 1, in the order (B, H, N, D).
struct DenseRows {
  explicit DenseRows(const ConstTensorView& rows);

  // Of these sizes; value(b, n, h, d) is the element.
  template <typename Value>
  DenseRows(std::int64_t batch_size, std::int64_t rows, std::int64_t head_count,
            std::int64_t head_dim, Value value)
      : batch(batch_size), length(rows), heads(head_count), dim(head_dim) {
    values.reserve(static_cast<std::size_t>(batch * length * heads * dim));
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t n = 0; n < length; ++n) {
          for (std::int64_t d = 0; d < dim; ++d) {
            values.push_back(value(b, n, h, d));
          }
        }
      }
    }
  }

  const double* row(std::int64_t b, std::int64_t h, std::int64_t n) const {
    return values.data() + ((b * heads + h) * length + n) * dim;
  }

  std::int64_t batch, length, heads, dim;
  std::vector<double> values;
};

struct DenseInputs {
  DenseRows q, k, v;
};

// The oracle, of rows that are not those of the tensors' q, k and v.
AttentionResult attention(const AttentionTensors& tensors, const AttentionOptions& options,
                          Rounding rounding, DenseInputs inputs, Product product = dot);

}  // namespace tilewright::reference
