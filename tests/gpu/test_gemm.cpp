// GEMMs on the GPU, against the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "gemm_test.hpp"
#include "problems/problem.hpp"
#include "ran.hpp"
#include "reference/gemm.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

// The values come one after the other, but NaN only once, so that most rows have none.
void set_every_scale(HostTensor& scales) {
  constexpr std::size_t kNaN = 0x7f;
  for (std::size_t i = 0; i < scales.bytes(); ++i) {
    scales.data()[i] = static_cast<std::byte>(i <= kNaN ? i : i % kNaN);
  }
}

// Matrix number `batch` of a batch.
ConstTensorView matrix_of(const ConstTensorView& all, std::int64_t batch) {
  ConstTensorView one = all;
  one.data = static_cast<const std::byte*>(all.data) +
             batch * all.stride[0] * static_cast<std::int64_t>(size_bytes(all.dtype));
  one.rank = 2;
  std::copy_n(all.shape.begin() + 1, 2, one.shape.begin());
  std::copy_n(all.stride.begin() + 1, 2, one.stride.begin());
  return one;
}

// The values of a batch of NVFP4 activations, in BF16, which is exact.
HostTensor dequantized_a(const GemmCase& c, const GemmHostSet& host) {
  HostTensor values(DType::bf16, {*c.l, c.m, c.k});
  for (std::int64_t batch = 0; batch < *c.l; ++batch) {
    auto* const out =
        values.data() + batch * c.m * c.k * static_cast<std::int64_t>(size_bytes(DType::bf16));
    dequantize_nvfp4({.codes = matrix_of(host.a.view(), batch),
                      .scales = matrix_of(host.sfa.view(), batch),
                      .out = contiguous(out, DType::bf16, std::array{c.m, c.k})},
                     {.scale_layout = sfa_layout(c)});
  }
  return values;
}

class GemmNvfp4Gpu : public GemmNvfp4Test {
 protected:
  // Runs a case twice: both results must be equal bit for bit.
  void expect_right(const GemmCase& c) const {
    SCOPED_TRACE(testing::Message() << GetParam() << ": " << c);
    const GemmHostSet host = make_tensors(c);
    GemmSet<DeviceTensor> device = to_device(host);
    const HostTensor first = run(c, host, device, c.m);
    test::expect_right(c, host, first);
    const HostTensor second = run(c, host, device, c.m);
    EXPECT_TRUE(std::equal(first.data(), first.data() + first.bytes(), second.data()));
    EXPECT_TRUE(device.c.guards_untouched());
  }

  // The case with rows [first, first + rows) alone, where they will lie in c. Scales are linear if
  // `first` is not 0.
  HostTensor run(const GemmCase& c, const GemmHostSet& host, GemmSet<DeviceTensor>& device,
                 std::int64_t rows, std::int64_t first = 0) const {
    GemmNvfp4Tensors tensors = device.views(c);
    const auto cut = [&](auto& matrix) {
      const int dim = matrix.rank - 2;
      matrix.shape[dim] = rows;
      matrix.data =
          const_cast<std::byte*>(static_cast<const std::byte*>(matrix.data)) +
          first * matrix.stride[dim] * static_cast<std::int64_t>(size_bytes(matrix.dtype));
    };
    cut(tensors.a);
    cut(tensors.c);
    if (tensors.sfa && sfa_layout(c) == ScaleLayout::linear) {
      cut(*tensors.sfa);
    }
    if (tensors.global_scale_a && global_scales_a(c) == GlobalScales::each_row) {
      ConstTensorView& scales = *tensors.global_scale_a;
      scales.shape[scales.rank - 1] = rows;
      scales.data = static_cast<const float*>(scales.data) + first * scales.stride[scales.rank - 1];
    }
    return run(tensors, c, host, device);
  }

  // The first GEMM of a batch of L, alone.
  HostTensor run_first_gemm(const GemmCase& c, const GemmHostSet& host,
                            GemmSet<DeviceTensor>& device) const {
    GemmNvfp4Tensors tensors = device.views(c);
    tensors.a.shape[0] = tensors.b.shape[0] = tensors.c.shape[0] = 1;
    if (tensors.sfb) {
      tensors.sfb->shape[0] = 1;
    }
    return run(tensors, c, host, device);
  }

 private:
  HostTensor run(const GemmNvfp4Tensors& tensors, const GemmCase& c, const GemmHostSet& host,
                 GemmSet<DeviceTensor>& device) const {
    device.c.upload(host.c);
    const GemmCall call(tensors, options_of(c, GetParam()));
    call.launch(nullptr);
    HostTensor result = host.c;
    device.c.download(result);
    return result;
  }
};

TEST_P(GemmNvfp4Gpu, IsRight) {
  Ran ran;
  for (GemmCase c : gemm_cases()) {
    for (const bool is_packed : {false, true}) {
      c.b_is_packed = is_packed;
      if (takes(c)) {
        ++ran;
        expect_right(c);
      }
    }
  }
}

// For a first look with a sanitizer, which is slow: some of the cases, other ones for each kernel,
// and a stream-K tile.
TEST_P(GemmNvfp4Gpu, SmallProblems) {
  Ran ran;
  const std::vector<std::string> kernels = nvfp4_kernels();
  std::vector<GemmCase> cases{{.m = 3, .n = 80, .k = 16384, .b_is_packed = takes_packed_weights()}};
  EXPECT_TRUE(!takes_packed_weights() || stream_k_tiles(cases[0]) > 0);
  const std::vector<GemmCase> all = gemm_cases();
  const auto first = std::ranges::find(kernels, GetParam()) - kernels.begin();
  for (auto i = static_cast<std::size_t>(first); i < all.size(); i += kernels.size()) {
    cases.push_back(all[i]);
    cases.back().b_is_packed = takes_packed_weights() && i / kernels.size() % 2 == 0;
  }
  for (const GemmCase& c : cases) {
    if (takes(c)) {
      ++ran;
      expect_right(c);
    }
  }
}

TEST_P(GemmNvfp4Gpu, TakesEveryM) {
  Ran ran;
  for (std::int64_t m = 1; m <= 300; ++m) {
    for (const DType a : {DType::bf16, DType::fp16, DType::e2m1x2}) {
      const GemmCase c{.m = m,
                       .n = 48,
                       .k = 128,
                       .a_dtype = a,
                       .b_is_packed = takes_packed_weights(),
                       .seed = static_cast<std::uint64_t>(m)};
      if (takes(c)) {
        ++ran;
        expect_right(c);
      }
    }
  }
}

// Few tiles of many columns, under stream-K.
TEST_P(GemmNvfp4Gpu, AddsUpPartsOfTiles) {
  Ran ran;
  struct Size {
    std::int64_t m, k;
    DType a_dtype = DType::bf16;
  };
  for (const auto [m, k, a_dtype] : {Size{1, 16384},
                                     {1, 16384, DType::e2m1x2},
                                     {1, 4096},
                                     {7, 4096, DType::e2m1x2},
                                     {16, 4096},
                                     {30, 4096, DType::e2m1x2},
                                     {40, 4096},
                                     {128, 4096},
                                     {200, 4096}}) {
    const GemmCase plain{.m = m,
                         .n = 336,
                         .k = k,
                         .a_dtype = a_dtype,
                         .b_is_packed = takes_packed_weights(),
                         .seed = static_cast<std::uint64_t>(m)};
    GemmCase sums = plain;
    sums.c_dtype = DType::fp32;
    GemmCase finished = plain;
    finished.l = 2;
    finished.global_scales = GlobalScales::each_row;
    finished.bias = finished.residual = finished.is_mixed = true;
    for (const GemmCase& c : {plain, sums, finished}) {
      if (takes(c)) {
        ++ran;
        expect_right(c);
        EXPECT_TRUE(!takes_packed_weights() || k == 4096 || stream_k_tiles(c) > 0);
      }
    }
  }
}

class GemmNvfp4ActivationsGpu : public GemmNvfp4Gpu {};

// All codes under every scale, NaN included, wherever they are dequantised.
TEST_P(GemmNvfp4ActivationsGpu, GiveTheBitsOfTheirValues) {
  Ran ran;
  for (const std::int64_t m : {1, 2, 8, 9, 16, 19, 32, 33, 70}) {
    for (const std::int64_t k : {16, 80, 1040, 4096}) {
      for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::swizzled}) {
        const GemmCase c{.m = m,
                         .n = 336,
                         .k = k,
                         .l = 2,
                         .a_dtype = DType::e2m1x2,
                         .layout = layout,
                         .global_scales = GlobalScales::none,
                         .b_is_packed = true,
                         .seed = static_cast<std::uint64_t>(m)};
        if (!takes(c)) {
          continue;
        }
        ++ran;
        SCOPED_TRACE(testing::Message() << GetParam() << ": " << c);
        GemmHostSet host = make_tensors(c);
        set_every_scale(host.sfa);
        GemmSet<DeviceTensor> codes = to_device(host);
        const HostTensor of_codes = run(c, host, codes, c.m);
        GemmCase dequantized = c;
        dequantized.a_dtype = DType::bf16;
        host.a = dequantized_a(c, host);
        GemmSet<DeviceTensor> values = to_device(host);
        EXPECT_TRUE(reference::same_bytes(of_codes, run(dequantized, host, values, c.m)));
      }
    }
  }
}

// K ends inside a chunk.
TEST_P(GemmNvfp4Gpu, TakesEveryMOfLongerSums) {
  Ran ran;
  for (std::int64_t m = 1; m <= 300; m += 13) {
    const GemmCase c{.m = m,
                     .n = 48,
                     .k = 1024 + kernel().facts.k_multiple,
                     .b_is_packed = takes_packed_weights(),
                     .seed = static_cast<std::uint64_t>(m)};
    if (takes(c)) {
      ++ran;
      expect_right(c);
    }
  }
}

class GemmNvfp4ToFp32Gpu : public GemmNvfp4Gpu {};

// Sums so long that they are added to totals several times, in parts of tiles and in whole tiles.
TEST_P(GemmNvfp4ToFp32Gpu, IsAsExactInLongSums) {
  Ran ran;
  for (const bool batch_invariant : {false, true}) {
    for (const std::int64_t m : {3, 60, 130}) {
      const GemmCase c{.m = m,
                       .n = 80,
                       .k = 18496,
                       .l = 2,
                       .c_dtype = DType::fp32,
                       .b_is_packed = takes_packed_weights(),
                       .batch_invariant = batch_invariant,
                       .seed = static_cast<std::uint64_t>(m)};
      if (takes(c)) {
        ++ran;
        expect_right(c);
      }
    }
  }
}

// Long sums: what tensor cores cut off, together with the rounding, stays within the bound.
TEST_P(GemmNvfp4Gpu, RoundsLongSumsTo16Bits) {
  Ran ran;
  struct Size {
    std::int64_t m, k;
  };
  for (const bool batch_invariant : {false, true}) {
    for (const auto [m, k] : {Size{1, 16384}, {100, 16384}, {16, 18496}, {300, 18496}}) {
      for (const DType c_dtype : {DType::bf16, DType::fp16}) {
        const GemmCase c{.m = m,
                         .n = 128,
                         .k = k,
                         .c_dtype = c_dtype,
                         .b_is_packed = takes_packed_weights(),
                         .batch_invariant = batch_invariant,
                         .seed = static_cast<std::uint64_t>(m)};
        if (takes(c)) {
          ++ran;
          expect_right(c);
        }
      }
    }
  }
}

// Rows are equal bit for bit, wherever they are in a tile and whatever the other rows hold.
TEST_P(GemmNvfp4Gpu, BatchInvariantRowsAreTheSameWhateverMIs) {
  Ran ran;
  const GemmCase one_scale{.m = 300, .n = 336, .k = 2048};
  const GemmCase sums{.m = 300, .n = 336, .k = 2048, .c_dtype = DType::fp32};
  const GemmCase many_scales{.m = 150,
                             .n = 336,
                             .k = 256,
                             .a_dtype = DType::e2m1x2,
                             .c_dtype = DType::fp16,
                             .global_scales = GlobalScales::each_row,
                             .bias = true};
  const GemmCase large{.m = 2304, .n = 2048, .k = 64};  // enough tiles for the largest configs
  for (GemmCase c : {one_scale, sums, many_scales, large}) {
    c.b_is_packed = takes_packed_weights();
    c.batch_invariant = true;
    if (!takes(c)) {
      ASSERT_TRUE(c.a_dtype == DType::e2m1x2 || c.c_dtype == DType::fp32);
      continue;
    }
    ++ran;
    GemmHostSet host = make_tensors(c);
    if (c.global_scales == GlobalScales::each_row) {
      reference::store(host.global_scale_b.view(), 7, 0.0);  // this makes a column of c NaN
    }
    GemmSet<DeviceTensor> device = to_device(host);
    const HostTensor all = run(c, host, device, c.m);
    test::expect_right(c, host, all);
    const auto row_bytes = static_cast<std::int64_t>(all.bytes()) / c.m;
    const auto is_as_in_all = [&](const HostTensor& some, std::int64_t first, std::int64_t rows) {
      return std::equal(some.data() + first * row_bytes, some.data() + (first + rows) * row_bytes,
                        all.data() + first * row_bytes);
    };
    for (const std::int64_t rows : {1, 2, 9, 17, 40, 100, static_cast<int>(c.m) - 1}) {
      for (const std::int64_t first : {std::int64_t{0}, std::min<std::int64_t>(c.m - rows, 37)}) {
        EXPECT_TRUE(is_as_in_all(run(c, host, device, rows, first), first, rows))
            << c << ": " << rows << " rows from " << first;
      }
    }
    constexpr std::int64_t kKept = 43;
    HostTensor& a = c.a_dtype == DType::e2m1x2 ? host.sfa : host.a;
    const auto a_row_bytes = static_cast<std::int64_t>(a.bytes()) / c.m;
    std::memset(a.data(), 0x7f, kKept * a_row_bytes);  // NaN, or in BF16 the greatest there is
    std::memset(a.data() + (kKept + 1) * a_row_bytes, 0xff, (c.m - kKept - 1) * a_row_bytes);
    GemmSet<DeviceTensor> spoilt = to_device(host);
    EXPECT_TRUE(is_as_in_all(run(c, host, spoilt, c.m), kKept, 1)) << c;
  }
}

TEST_P(GemmNvfp4Gpu, ABatchInvariantGemmIsTheSameWhateverLIs) {
  Ran ran;
  for (const std::int64_t m : {1, 20, 150}) {
    const GemmCase c{.m = m,
                     .n = 336,
                     .k = 4096,
                     .l = 3,
                     .b_is_packed = takes_packed_weights(),
                     .batch_invariant = true};
    if (!takes(c)) {
      continue;
    }
    ++ran;
    const GemmHostSet host = make_tensors(c);
    GemmSet<DeviceTensor> device = to_device(host);
    const HostTensor all = run(c, host, device, c.m);
    const HostTensor first = run_first_gemm(c, host, device);
    EXPECT_TRUE(std::equal(all.data(), all.data() + all.bytes() / 3, first.data())) << c;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmNvfp4Gpu, testing::ValuesIn(nvfp4_kernels()), test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, GemmNvfp4ActivationsGpu,
                         testing::ValuesIn(nvfp4_kernels(DType::e2m1x2)), test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, GemmNvfp4ToFp32Gpu,
                         testing::ValuesIn(nvfp4_kernels(DType::bf16, DType::fp32)), test_name);

// Sums in float64. Rows lie `padding` elements further apart than they are long.
class GemmBf16Gpu : public GemmTest {};

TEST_P(GemmBf16Gpu, IsRight) {
  for (const auto& [m, n, k] :
       {std::array{1, 16, 64}, std::array{65, 80, 192}, std::array{128, 128, 1024}}) {
    for (const std::int64_t padding : {0, 8}) {
      SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << " + " << padding);
      HostTensor a(DType::bf16, {m, k}, {k + padding, 1});
      HostTensor b(DType::bf16, {n, k}, {k + padding, 1});
      HostTensor c(DType::bf16, {m, n}, {n + padding, 1});
      reference::fill_normal(a.view(), 1);
      reference::fill_normal(b.view(), 2);
      std::fill_n(c.data(), c.bytes(), kUnwritten);
      const DeviceTensor device_a(a);
      const DeviceTensor device_b(b);
      const DeviceTensor device_c(c);
      gemm_bf16({.a = device_a.view(), .b = device_b.view(), .c = device_c.view()},
                {.kernel = GetParam()});
      device_c.download(c);
      const std::vector<double> expected = reference::gemm(a.view(), b.view());
      EXPECT_LE(reference::compare(c.view(), expected).rel_fro,
                reference::rounding_error(DType::bf16, expected) + 1e-6);
      EXPECT_TRUE(reference::gaps_hold(c, kUnwritten));
      EXPECT_TRUE(device_c.guards_untouched());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmBf16Gpu, testing::ValuesIn(cuda_kernels<GemmBf16>()),
                         test_name);

}  // namespace
}  // namespace tilewright::test
