#include "problems/gemm_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "problems/problem.hpp"
#include "reference/gemm.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

bool is_w4a4(const GemmCase& c) { return c.a_dtype == DType::e2m1x2; }

GlobalScale kind_a(const GemmCase& c) {
  return c.is_mixed == (c.kind == GlobalScale::encode) ? GlobalScale::decode : GlobalScale::encode;
}

GemmOrder order_a(const GemmCase& c) {
  if (!c.is_mixed) {
    return c.order;
  }
  return c.order == GemmOrder::dense ? GemmOrder::padded_rows : GemmOrder::dense;
}

GemmOrder order_of_residual(const GemmCase& c) {
  return c.is_mixed ? GemmOrder::batch_inside : c.order;
}

// An ([L,] rows, columns) tensor, filled with kUnwritten. Its rows are aligned to 16 bytes.
HostTensor matrix(const GemmCase& c, DType dtype, std::int64_t rows, std::int64_t columns,
                  GemmOrder order) {
  constexpr std::int64_t kGap = 16;
  const std::int64_t l = c.l.value_or(1);
  const std::int64_t pitch = dtype == DType::e2m1x2 ? (columns + kGap - 1) / kGap * kGap : columns;
  std::vector<std::int64_t> shape{l, rows, columns};
  std::vector<std::int64_t> stride{rows * pitch, pitch, 1};
  if (order == GemmOrder::padded_rows) {
    stride = {rows * (pitch + kGap) + kGap, pitch + kGap, 1};
  } else if (order == GemmOrder::batch_inside) {
    stride = {pitch, l * pitch, 1};
  }
  if (!c.l) {
    shape.erase(shape.begin());
    stride.erase(stride.begin());
  }
  HostTensor tensor(dtype, shape, stride);
  std::memset(tensor.data(), static_cast<int>(kUnwritten), tensor.bytes());
  return tensor;
}

// Calls f(batch, row, column, offset) for every element of a matrix or batch.
template <typename F>
void for_each_element(const ConstTensorView& x, const F& f) {
  const bool is_batched = x.rank == 3;
  const std::int64_t rows = x.shape[x.rank - 2];
  const std::int64_t columns = x.shape[x.rank - 1];
  for (std::int64_t batch = 0; batch < (is_batched ? x.shape[0] : 1); ++batch) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < columns; ++column) {
        const std::int64_t batch_offset = is_batched ? batch * x.stride[0] : 0;
        f(row, column, batch_offset + row * x.stride[x.rank - 2] + column);
      }
    }
  }
}

class Generator {
 public:
  Generator(const GemmCase& c) : case_(c), engine_(c.seed) {}

  HostTensor codes(std::int64_t rows, GemmOrder order) {
    HostTensor tensor = matrix(case_, DType::e2m1x2, rows, case_.k / 2, order);
    fill(tensor.view(), [&] { return below(256); });
    return tensor;
  }

  HostTensor scales(std::int64_t rows, ScaleLayout layout, GemmOrder order) {
    const std::int64_t blocks = case_.k / 16;
    if (layout == ScaleLayout::linear) {
      HostTensor tensor = matrix(case_, DType::e4m3, rows, blocks, order);
      fill(tensor.view(), [&] { return scale(); });
      return tensor;
    }
    HostTensor linear = matrix(case_, DType::e4m3, rows, blocks, GemmOrder::dense);
    fill(linear.view(), [&] { return scale(); });
    const auto [padded_rows, padded_blocks] = swizzled_scale_shape(rows, blocks);
    HostTensor tensor = matrix(case_, DType::e4m3, padded_rows, padded_blocks, GemmOrder::dense);
    swizzle(linear, tensor);
    return tensor;
  }

  // Exact ones are powers of two.
  HostTensor global_scales(std::int64_t rows, GlobalScales scales, GlobalScale kind) {
    std::vector<std::int64_t> shape{scales == GlobalScales::each_row ? rows : 1};
    if (scales == GlobalScales::each_row && case_.l) {
      shape.insert(shape.begin(), *case_.l);
    }
    return vectors(DType::fp32, shape, [&] {
      const double factor = is_exact() ? std::ldexp(0.5, -below(2)) : global_scale();
      return kind == GlobalScale::encode ? 1 / factor : factor;
    });
  }

  HostTensor values(DType dtype, std::int64_t rows, std::int64_t columns, GemmOrder order) {
    HostTensor tensor = matrix(case_, dtype, rows, columns, order);
    fill(tensor.view(), [&] { return value(); });
    return tensor;
  }

  HostTensor activations() {
    if (is_w4a4(case_)) {
      return codes(case_.m, order_a(case_));
    }
    HostTensor tensor = values(case_.a_dtype, case_.m, case_.k, order_a(case_));
    if (case_.inputs == GemmInputs::nans) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      const std::array specials{kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()};
      for_each_element(tensor.view(), [&](std::int64_t row, std::int64_t, std::int64_t offset) {
        if (row % 4 == 1 && below(64) == 0) {
          reference::store(tensor.view(), offset, specials[below(3)]);
        }
      });
    }
    return tensor;
  }

  HostTensor vector(DType dtype, std::int64_t size) {
    return vectors(dtype, {size}, [&] { return value(); });
  }

 private:
  bool is_exact() const { return case_.inputs == GemmInputs::exact; }

  int below(int end) { return static_cast<int>(engine_() % static_cast<unsigned>(end)); }

  // A GEMM's small scales multiplied are not a normal number, nor is that times 2^7; a large scale
  // times 2^7 exceeds FP32.
  double global_scale() {
    switch (case_.global_scales) {
      case GlobalScales::small:
        return std::ldexp(1 + below(4), is_w4a4(case_) ? -69 : -138);
      case GlobalScales::large:
        return std::ldexp(1 + 0.01 * below(100), 122);
      default:
        return 0.01 * (1 + below(100));
    }
  }

  double value() {
    const double value = is_exact() ? below(9) - 4 : std::normal_distribution<double>()(engine_);
    return case_.global_scales == GlobalScales::large ? std::ldexp(value, -60) : value;
  }

  int scale() {
    constexpr int kSixteen = 0x58;
    if (case_.inputs == GemmInputs::nans && below(64) == 0) {
      return 0x7f;
    }
    constexpr std::array kExact = {0x00, 0x38, 0x40, 0x44};  // 0 to 3
    const int sign = below(32) == 0 ? 0x80 : 0;
    return is_exact() ? kExact[below(4)] : sign | below(kSixteen + 1);
  }

  // Dense, or with gaps of NaN.
  HostTensor vectors(DType dtype, const std::vector<std::int64_t>& shape,
                     const std::function<double()>& next) {
    const std::int64_t step = case_.is_mixed ? 3 : 1;
    std::vector<std::int64_t> stride{step};
    if (shape.size() == 2) {
      stride.insert(stride.begin(), shape[1] * step);
    }
    HostTensor tensor(dtype, shape, stride);
    std::memset(tensor.data(), static_cast<int>(kUnwritten), tensor.bytes());
    for (std::int64_t i = 0; i < shape.front() * (shape.size() == 2 ? shape[1] : 1); ++i) {
      reference::store(tensor.view(), i * step, next());
    }
    return tensor;
  }

  static void fill(const TensorView& tensor, const std::function<double()>& next) {
    for_each_element(tensor, [&](std::int64_t, std::int64_t, std::int64_t offset) {
      reference::store(tensor, offset, next());
    });
  }

  // Of each of the batch; what belongs to no block becomes NaN again.
  void swizzle(HostTensor& linear, HostTensor& swizzled) const {
    const auto part = [&](TensorView all, std::int64_t batch) {
      const int first = all.rank - 2;
      TensorView one =
          contiguous(static_cast<std::byte*>(all.data) + (first == 1 ? batch * all.stride[0] : 0),
                     all.dtype, std::array{all.shape[first], all.shape[first + 1]});
      return one;
    };
    for (std::int64_t batch = 0; batch < case_.l.value_or(1); ++batch) {
      swizzle_scales(part(linear.view(), batch), part(swizzled.view(), batch));
    }
  }

  const GemmCase& case_;
  std::mt19937_64 engine_;
};

// Sixteen rows of the weight for each scale; codes alternate along both sides.
void fill_pairs(GemmHostSet& set) {
  constexpr int kScales = 128;
  const TensorView a = set.a.view();
  const TensorView codes = set.b.view();
  const TensorView scales = set.sfb.view();
  for_each_element(a, [&](std::int64_t row, std::int64_t column, std::int64_t offset) {
    reference::store(a, offset, row % a.shape[a.rank - 1] == column ? 1.0 : 0.0);
  });
  for_each_element(codes, [&](std::int64_t row, std::int64_t byte, std::int64_t offset) {
    const auto code = [&](std::int64_t column) { return (column + row) % 16; };
    reference::store(codes, offset, static_cast<double>(code(2 * byte) + 16 * code(2 * byte + 1)));
  });
  for_each_element(scales, [&](std::int64_t row, std::int64_t, std::int64_t offset) {
    reference::store(scales, offset, static_cast<double>(row / 16 % kScales));
  });
}

// Packs b and its scales.
HostTensor packed(const GemmCase& c, const HostTensor& codes, const HostTensor& scales) {
  const auto [row_tiles, row_bytes] = packed_nvfp4_weight_shape(c.n, c.k);
  HostTensor tensor = matrix(c, DType::u8, row_tiles, row_bytes, GemmOrder::dense);
  prepack_nvfp4_weight({.codes = codes.view(), .scales = scales.view(), .packed = tensor.view()},
                       c.layout);
  return tensor;
}

// Half the distance between neighbours around a value, in c's dtype.
double half_ulp(DType dtype, double value) {
  const int digits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : 24;
  const int least = dtype == DType::fp16 ? -14 : -126;
  const int exponent = value == 0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - digits);
}

void expect_within_bounds(const GemmCase& c, const reference::GemmResult& expected,
                          const ConstTensorView& result) {
  const reference::ErrorNorms norms = reference::compare(result, expected.c);
  EXPECT_TRUE(norms.same_specials);
  EXPECT_LE(norms.rel_fro, reference::rounding_error(c.c_dtype, expected.c) + 1e-6);
  const double sums_error = static_cast<double>(c.k + 4) * 0x1p-24;
  std::size_t i = 0;
  for_each_element(result, [&](std::int64_t row, std::int64_t column, std::int64_t offset) {
    const double value = expected.c[i];
    const double bound = half_ulp(c.c_dtype, value) * 1.01 + sums_error * expected.magnitude[i];
    if (std::isfinite(value)) {
      EXPECT_LE(std::abs(reference::load(result, offset) - value), bound)
          << "at " << row << ", " << column;
    }
    ++i;
  });
}

// Of exact cases. The oracle's float64 is exact, too; of NVFP4 activations integers have to say so.
void expect_equal(const GemmCase& c, const GemmNvfp4Tensors& t, const GemmNvfp4Options& options,
                  const ConstTensorView& result) {
  const std::vector<double> expected = reference::gemm_nvfp4(t, options).c;
  if (is_w4a4(c)) {
    GemmNvfp4Tensors sums_alone = t;
    sums_alone.global_scale_a.reset();
    sums_alone.global_scale_b.reset();
    sums_alone.bias.reset();
    sums_alone.residual.reset();
    const std::vector<std::int64_t> sums = reference::exact_sums(t, options);
    const std::vector<double> values = reference::gemm_nvfp4(sums_alone, options).c;
    EXPECT_TRUE(std::ranges::equal(
        sums, values, {}, [](std::int64_t sum) { return static_cast<double>(sum) * 0x1p-20; }));
  }
  HostTensor rounded(c.c_dtype, {1});
  std::size_t i = 0;
  for_each_element(result, [&](std::int64_t row, std::int64_t column, std::int64_t offset) {
    reference::store(rounded.view(), 0, expected[i++]);
    EXPECT_EQ(reference::load(result, offset), reference::load(rounded.view(), 0))
        << "at " << row << ", " << column;
  });
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const GemmCase& c) {
  out << c.m << " x " << c.n << " x " << c.k;
  if (c.l) {
    out << " x " << *c.l;
  }
  return out << " " << name(c.a_dtype) << " to " << name(c.c_dtype)
             << (c.layout == ScaleLayout::linear ? "" : " swizzled") << " globals "
             << static_cast<int>(c.global_scales)
             << (c.kind == GlobalScale::encode ? " encode" : " decode") << (c.bias ? " bias" : "")
             << (c.residual ? " residual" : "") << (c.in_place ? " in place" : "")
             << (c.b_is_packed ? " packed" : "") << (c.batch_invariant ? " invariant" : "")
             << (c.is_mixed ? " mixed" : "") << " order " << static_cast<int>(c.order) << " inputs "
             << static_cast<int>(c.inputs) << " seed " << c.seed;
}

ScaleLayout sfa_layout(const GemmCase& c) {
  return c.is_mixed == (c.layout == ScaleLayout::linear) ? ScaleLayout::swizzled
                                                         : ScaleLayout::linear;
}

GlobalScales global_scales_a(const GemmCase& c) {
  const bool is_other = c.is_mixed && c.global_scales != GlobalScales::none;
  return !is_other                                   ? c.global_scales
         : c.global_scales == GlobalScales::each_row ? GlobalScales::one
                                                     : GlobalScales::each_row;
}

GemmNvfp4Options options_of(const GemmCase& c, std::string_view kernel) {
  return {.sfa_layout = sfa_layout(c),
          .sfb_layout = c.layout,
          .global_scale_a_kind = kind_a(c),
          .global_scale_b_kind = c.kind,
          .batch_invariant = c.batch_invariant,
          .kernel = kernel};
}

GemmNvfp4Problem constraints_of(const GemmCase& c) {
  return {.a_dtype = c.a_dtype,
          .c_dtype = c.c_dtype,
          .m = c.m,
          .n = c.n,
          .k = c.k,
          .l = c.l.value_or(1),
          .b_is_packed = c.b_is_packed,
          .batch_invariant = c.batch_invariant};
}

GemmHostSet make_tensors(const GemmCase& c) {
  Generator generator(c);
  GemmHostSet set{
      .a = generator.activations(),
      .b = generator.codes(c.n, c.order),
      .packed_b = HostTensor(DType::u8, {1}),
      .sfa = generator.scales(c.m, sfa_layout(c), order_a(c)),
      .sfb = generator.scales(c.n, c.layout, c.order),
      .global_scale_a = generator.global_scales(c.m, global_scales_a(c), kind_a(c)),
      .global_scale_b = generator.global_scales(c.n, c.global_scales, c.kind),
      .bias = generator.vector(c.c_dtype, c.n),
      .residual = generator.values(c.c_dtype, c.m, c.n, order_of_residual(c)),
      .c = matrix(c, c.c_dtype, c.m, c.n, c.order),
  };
  if (c.inputs == GemmInputs::pairs) {
    fill_pairs(set);
  }
  set.packed_b = packed(c, set.b, set.sfb);
  if (c.in_place) {
    set.c = set.residual;
  }
  return set;
}

void expect_right(const GemmCase& c, GemmHostSet inputs, const HostTensor& result) {
  GemmCase unpacked = c;  // the oracle reads codes
  unpacked.b_is_packed = false;
  const GemmNvfp4Tensors tensors = inputs.views(unpacked);
  if (c.inputs == GemmInputs::exact) {
    expect_equal(c, tensors, options_of(c), result.view());
  } else {
    expect_within_bounds(c, reference::gemm_nvfp4(tensors, options_of(c)), result.view());
  }
  EXPECT_TRUE(reference::gaps_hold(result, kUnwritten));
}

}  // namespace tilewright::test
