#include "reference/gemm.hpp"

#include <cmath>
#include <limits>
#include <optional>

#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::reference {
namespace {

constexpr std::int64_t kLarge = 1 << 22;  // multiplications that are worth a thread's start
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Sizes {
  std::int64_t m, n, k, l;
};

Sizes sizes_of(const GemmNvfp4Tensors& t) {
  const auto from_last = [](const ConstTensorView& x, int i) { return x.shape[x.rank - 1 - i]; };
  return {.m = from_last(t.a, 1),
          .n = from_last(t.b, 1),
          .k = 2 * from_last(t.b, 0),
          .l = t.a.rank == 3 ? t.a.shape[0] : 1};
}

// The offset of a row of ([L,] rows, columns).
std::int64_t row_offset(const ConstTensorView& x, std::int64_t batch, std::int64_t row) {
  return (x.rank == 3 ? batch * x.stride[0] : 0) + row * x.stride[x.rank - 2];
}

int code_at(const ConstTensorView& codes, std::int64_t batch, std::int64_t row, std::int64_t k) {
  const int byte = static_cast<int>(load(codes, row_offset(codes, batch, row) + k / 2));
  return k % 2 == 0 ? byte % 16 : byte / 16;
}

int scale_at(const ConstTensorView& scales, ScaleLayout layout, std::int64_t batch,
             std::int64_t row, std::int64_t k, std::int64_t columns) {
  const std::int64_t offset =
      layout == ScaleLayout::linear
          ? row_offset(scales, batch, row) + k / kBlock
          : row_offset(scales, batch, 0) + swizzled_index(row, k / kBlock, columns / kBlock);
  return static_cast<int>(load(scales, offset));
}

// One operand's rows of one GEMM of the batch, dequantised but for the global scale.
std::vector<double> values_of(const ConstTensorView& x,
                              const std::optional<ConstTensorView>& scales, ScaleLayout layout,
                              std::int64_t batch, std::int64_t rows, std::int64_t columns) {
  std::vector<double> values;
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t k = 0; k < columns; ++k) {
      values.push_back(
          scales ? e2m1_value(code_at(x, batch, row, k)) *
                       scale_value(DType::e4m3, scale_at(*scales, layout, batch, row, k, columns))
                 : load(x, row_offset(x, batch, row) + k));
    }
  }
  return values;
}

// What a row's sums are multiplied by.
double global_factor(const std::optional<ConstTensorView>& scale, std::optional<GlobalScale> kind,
                     std::int64_t batch, std::int64_t row) {
  if (!scale) {
    return 1.0;
  }
  const bool is_single = scale->rank == 1 && scale->shape[0] == 1;
  const std::int64_t batch_offset = scale->rank == 2 ? batch * scale->stride[0] : 0;
  const double g =
      load(*scale, is_single ? 0 : batch_offset + row * scale->stride[scale->rank - 1]);
  if (!(g > 0) || !std::isfinite(g)) {
    return kNaN;
  }
  return kind == GlobalScale::encode ? 1.0 / g : g;
}

}  // namespace

GemmResult gemm_nvfp4(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  const Sizes sizes = sizes_of(t);
  const std::int64_t m = sizes.m, n = sizes.n, k = sizes.k, l = sizes.l;
  const auto count = static_cast<std::size_t>(l * m * n);
  GemmResult result{.c = std::vector<double>(count), .magnitude = std::vector<double>(count)};
  for (std::int64_t batch = 0; batch < l; ++batch) {
    const auto a = values_of(t.a, t.sfa, options.sfa_layout, batch, m, k);
    const auto b = values_of(t.b, t.sfb, options.sfb_layout, batch, n, k);
#pragma omp parallel for if (m * n * k > kLarge)
    for (std::int64_t i = 0; i < m; ++i) {
      const double row_factor =
          global_factor(t.global_scale_a, options.global_scale_a_kind, batch, i);
      for (std::int64_t j = 0; j < n; ++j) {
        double sum = 0;
        double magnitude = 0;
        for (std::int64_t x = 0; x < k; ++x) {
          const double term = a[i * k + x] * b[j * k + x];
          sum += term;
          magnitude += std::abs(term);
        }
        const double factor =
            row_factor * global_factor(t.global_scale_b, options.global_scale_b_kind, batch, j);
        const double bias = t.bias ? load(*t.bias, j * t.bias->stride[0]) : 0.0;
        const double residual =
            t.residual ? load(*t.residual, row_offset(*t.residual, batch, i) + j) : 0.0;
        const std::size_t index = static_cast<std::size_t>((batch * m + i) * n + j);
        result.c[index] = sum * factor + bias + residual;
        result.magnitude[index] = magnitude * factor + std::abs(bias) + std::abs(residual);
      }
    }
  }
  return result;
}

std::vector<double> gemm(const ConstTensorView& a, const ConstTensorView& b) {
  std::vector<double> c;
  for (std::int64_t i = 0; i < a.shape[0]; ++i) {
    for (std::int64_t j = 0; j < b.shape[0]; ++j) {
      double sum = 0;
      for (std::int64_t k = 0; k < a.shape[1]; ++k) {
        sum += load(a, i * a.stride[0] + k) * load(b, j * b.stride[0] + k);
      }
      c.push_back(sum);
    }
  }
  return c;
}

std::vector<std::int64_t> exact_sums(const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  const auto [m, n, k, l] = sizes_of(t);
  // Codes are multiples of 2^-1, scales of 2^-9.
  const auto to_units = [](double value) { return static_cast<std::int64_t>(value * 1024); };
  std::vector<std::int64_t> sums;
  for (std::int64_t batch = 0; batch < l; ++batch) {
    const auto a = values_of(t.a, t.sfa, options.sfa_layout, batch, m, k);
    const auto b = values_of(t.b, t.sfb, options.sfb_layout, batch, n, k);
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        std::int64_t sum = 0;
        for (std::int64_t x = 0; x < k; ++x) {
          sum += to_units(a[i * k + x]) * to_units(b[j * k + x]);
        }
        sums.push_back(sum);
      }
    }
  }
  return sums;
}

}  // namespace tilewright::reference
