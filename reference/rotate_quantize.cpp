#include "reference/rotate_quantize.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "reference/host_tensor.hpp"
#include "reference/parallel_for.hpp"
#include "reference/rotated_row.hpp"

namespace tilewright::reference {
namespace {

using Tensors = RotateQuantizeTensors;
using Options = RotateQuantizeOptions;

std::int64_t integer(const ConstTensorView& t, std::int64_t index) {
  return static_cast<std::int64_t>(load(t, index));
}

// Whether each dim's sign is -1; none without a seed.
std::vector<bool> negative_dims(const std::optional<std::uint64_t>& seed, std::int64_t dims) {
  std::vector<bool> all;
  std::uint64_t state = seed.value_or(0);
  for (std::int64_t d = 0; seed && d < dims; ++d) {
    state += 0x9e3779b97f4a7c15u;
    std::uint64_t z = state;
    z ^= z >> 30;
    z *= 0xbf58476d1ce4e5b9u;
    z ^= z >> 27;
    z *= 0x94d049bb133111ebu;
    z ^= z >> 31;
    all.push_back((z >> 63) != 0);
  }
  return all;
}

// H_D (signs * x), where H_2n = (H_n, H_n; H_n, -H_n), by its butterflies. Zeros have no sign.
void rotate(const std::vector<bool>& negative, std::vector<double>& x) {
  for (std::size_t d = 0; d < x.size(); ++d) {
    x[d] = negative[d] ? -x[d] : x[d];
  }
  for (std::size_t half = 1; half < x.size(); half *= 2) {
    for (std::size_t d = 0; d < x.size(); ++d) {
      if (d / half % 2 == 0) {
        const double sum = fp32(x[d] + x[d + half]);
        x[d + half] = fp32(x[d] - x[d + half]);
        x[d] = sum;
      }
    }
  }
  for (double& value : x) {
    value += 0.0;
  }
}

// What makes the butterflies a rotation.
double rotation_factor(const Tensors& t, const Options& options) {
  const auto head_dim = static_cast<double>(t.x.shape[t.x.rank - 1]);
  return options.seed ? fp32(1 / std::sqrt(head_dim)) : 1.0;
}

// A sequence: its batch entry, its first row there, and how many there are.
struct Sequence {
  std::int64_t number;
  std::int64_t entry;
  std::int64_t first;
  std::int64_t length;
};

std::vector<Sequence> sequences_of(const Tensors& t) {
  std::vector<Sequence> all;
  const std::int64_t count = t.cu_seqlens ? t.cu_seqlens->shape[0] - 1 : t.x.shape[0];
  for (std::int64_t b = 0; b < count; ++b) {
    if (t.cu_seqlens) {
      const std::int64_t first = integer(*t.cu_seqlens, b);
      all.push_back({b, 0, first, integer(*t.cu_seqlens, b + 1) - first});
    } else {
      all.push_back({b, b, 0, t.x.shape[1]});
    }
  }
  return all;
}

std::vector<double> row_values(const Tensors& t, const Options& options,
                               const std::vector<bool>& negative, const Sequence& s,
                               std::int64_t row, std::int64_t head) {
  const int rank = t.x.rank;
  const std::int64_t n = s.first + row;
  std::int64_t position = row;
  if (t.positions) {
    position = integer(*t.positions, (rank == 4 ? s.entry * t.positions->stride[0] : 0) + n);
  }
  const std::int64_t offset = (rank == 4 ? s.entry * t.x.stride[0] : 0) + n * t.x.stride[rank - 3] +
                              head * t.x.stride[rank - 2];
  const std::int64_t dims = t.rotary_cos ? 2 * t.rotary_cos->shape[1] : 0;
  std::vector<double> values =
      rotated({t.rotary_cos, t.rotary_sin, dims, options.interleaved}, t.x, offset, position);
  if (options.seed) {
    rotate(negative, values);
  }
  return values;
}

// Where a sequence's columns begin; those of packed ones at multiples of 16.
std::int64_t first_column(const Tensors& t, const Sequence& s) {
  return t.cu_seqlens ? 16 * (s.first / 16 + s.number) : 0;
}

void store_row(const Tensors& t, const Sequence& s, std::int64_t row, std::int64_t head,
               const std::vector<double>& values, double factor) {
  const TensorView& out = t.out ? *t.out : *t.out_transposed;
  const int rank = out.rank;
  const int row_dim = t.out ? rank - 3 : rank - 1;
  const int head_dim = t.out ? rank - 2 : rank - 3;
  const int dim = t.out ? rank - 1 : rank - 2;
  const std::int64_t first = t.out ? s.first : first_column(t, s);
  const std::int64_t offset = (rank == 4 ? s.entry * out.stride[0] : 0) +
                              (first + row) * out.stride[row_dim] + head * out.stride[head_dim];
  for (std::size_t d = 0; d < values.size(); ++d) {
    store(out, offset + static_cast<std::int64_t>(d) * out.stride[dim],
          e4m3_byte(fp32(values[d] * factor)));
  }
}

double descale_of(const Tensors& t, const Options& options, const Sequence& s, std::int64_t first,
                  std::int64_t head, const std::vector<std::vector<double>>& rows) {
  if (t.fixed_descale) {
    const ConstTensorView& fixed = *t.fixed_descale;
    return load(fixed, fixed.rank == 1 ? 0 : s.number * fixed.stride[0] + head * fixed.stride[1]);
  }
  std::vector<double> all;
  for (const std::vector<double>& row : rows) {
    all.insert(all.end(), row.begin(), row.end());
  }
  double descale = e4m3_descale(fp32(largest_finite(all) * rotation_factor(t, options)));
  if (t.out_transposed) {
    descale = std::exp2(std::ceil(std::log2(descale)));
  }
  const TensorView& out = *t.descale;
  const std::int64_t block_rows = options.descale_rows;
  const std::int64_t block = first / block_rows;
  store(out,
        out.rank == 3
            ? s.entry * out.stride[0] + head * out.stride[1] + block * out.stride[2]
            : head * out.stride[0] + (s.first / block_rows + s.number + block) * out.stride[1],
        descale);
  return descale;
}

void quantize_sequence(const Tensors& t, const Options& options, const std::vector<bool>& negative,
                       const Sequence& s, std::int64_t head) {
  const std::int64_t block_rows = options.descale_rows;
  for (std::int64_t first = 0; first < s.length; first += block_rows) {
    std::vector<std::vector<double>> rows;
    for (std::int64_t row = first; row < std::min(first + block_rows, s.length); ++row) {
      rows.push_back(row_values(t, options, negative, s, row, head));
    }
    const double descale = descale_of(t, options, s, first, head, rows);
    const double factor = fp32(rotation_factor(t, options) * fp32(1 / descale));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      store_row(t, s, first + static_cast<std::int64_t>(i), head, rows[i], factor);
    }
  }
}

}  // namespace

void rotate_quantize(const Tensors& t, const Options& options) {
  if (t.descale) {
    fill_constant(*t.descale, 1.0);
  }
  const std::vector<Sequence> sequences = sequences_of(t);
  if (t.out_transposed) {
    fill_constant(*t.out_transposed, 0.0);
  }
  const std::vector<bool> negative = negative_dims(options.seed, t.x.shape[t.x.rank - 1]);
  const auto count = static_cast<std::int64_t>(sequences.size());
  parallel_for(t.x.shape[t.x.rank - 2] * count, [&](std::int64_t i) {
    quantize_sequence(t, options, negative, sequences[static_cast<std::size_t>(i % count)],
                      i / count);
  });
}

}  // namespace tilewright::reference
