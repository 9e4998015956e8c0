// gemm_nvfp4 on the CPU, against the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "problems/gemm_problem.hpp"
#include "problems/problem.hpp"
#include "ran.hpp"
#include "reference/gemm.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

HostTensor run(const GemmCase& c, GemmHostSet& tensors) {
  gemm_nvfp4(tensors.views(c), options_of(c));
  return tensors.c;
}

void expect_right(const GemmCase& c) {
  SCOPED_TRACE(testing::Message() << c);
  GemmHostSet tensors = make_tensors(c);
  const GemmHostSet inputs = tensors;
  expect_right(c, inputs, run(c, tensors));
}

TEST(CpuGemm, IsRight) {
  Ran ran;
  for (const GemmCase& c : gemm_cases()) {
    ++ran;
    expect_right(c);
  }
}

// A packed weight gives the same bits as the codes that were packed.
void expect_same_when_packed(GemmCase c) {
  SCOPED_TRACE(testing::Message() << c);
  GemmHostSet tensors = make_tensors(c);
  GemmHostSet packed_tensors = tensors;
  const HostTensor expected = run(c, tensors);
  c.b_is_packed = true;
  const HostTensor result = run(c, packed_tensors);
  EXPECT_TRUE(same_bytes(result, expected));
}

TEST(CpuGemm, APackedWeightChangesNothing) {
  Ran ran;
  for (const GemmCase& c : gemm_cases()) {
    ++ran;
    expect_same_when_packed(c);
  }
  for (const std::int64_t n : {1, 7, 63, 65, 200}) {
    for (const std::int64_t k : {16, 80, 272, 528}) {
      expect_same_when_packed({.m = 3, .n = n, .k = k, .c_dtype = DType::fp32});
      expect_same_when_packed({.m = 100, .n = n, .k = k, .l = 2, .a_dtype = DType::e2m1x2});
    }
  }
}

TEST(CpuGemm, TakesAnyNAndMultiplesOf16AsK) {
  for (const std::int64_t n : {1, 7, 63, 65}) {
    for (const std::int64_t k : {16, 80, 272}) {
      expect_right({.m = 3, .n = n, .k = k, .a_dtype = DType::e2m1x2});
    }
  }
}

TEST(CpuGemm, TakesEveryM) {
  for (std::int64_t m = 1; m <= 300; ++m) {
    const DType a = std::array{DType::bf16, DType::fp16, DType::e2m1x2}[m % 3];
    expect_right({.m = m, .n = 32, .k = 64, .a_dtype = a, .seed = static_cast<std::uint64_t>(m)});
  }
}

// A GEMM of each row by itself gives the same bits as the GEMM of many rows.
TEST(CpuGemm, IsBatchInvariant) {
  const GemmCase all{.m = 120, .n = 80, .k = 592, .c_dtype = DType::fp32, .batch_invariant = true};
  GemmHostSet tensors = make_tensors(all);
  const HostTensor expected = run(all, tensors);
  const auto row_bytes = static_cast<std::size_t>(all.n) * sizeof(float);
  for (const std::int64_t m : {1, 2, 5, 13, 96, 97}) {
    for (const std::int64_t first : {std::int64_t{0}, all.m - m}) {
      GemmNvfp4Tensors some = tensors.views(all);
      std::memset(tensors.c.data(), 0, tensors.c.bytes());
      some.a.data = static_cast<const std::byte*>(some.a.data) + first * all.k * 2;
      some.a.shape[0] = some.c.shape[0] = m;
      gemm_nvfp4(some, options_of(all));
      EXPECT_EQ(std::memcmp(tensors.c.data(), expected.data() + first * row_bytes, m * row_bytes),
                0)
          << m << " from " << first;
    }
  }
}

// One column of A holds 1, so that C's rows are dequantised columns of B: every code by every
// scale.
TEST(CpuGemm, EveryScaleAndCodeIsRight) {
  constexpr int kScales = 128;
  HostTensor a(DType::bf16, {16, 16});
  HostTensor b(DType::e2m1x2, {kScales, 8});
  HostTensor sfb(DType::e4m3, {kScales, 1});
  HostTensor c(DType::fp32, {16, kScales});
  for (int i = 0; i < 16; ++i) {
    reference::store(a.view(), 17 * i, 1.0);
  }
  for (int scale = 0; scale < kScales; ++scale) {
    reference::store(sfb.view(), scale, scale);
    for (int i = 0; i < 8; ++i) {
      reference::store(b.view(), 8 * scale + i, 2 * i + 16 * (2 * i + 1));
    }
  }
  gemm_nvfp4({.a = a.view(), .b = b.view(), .sfb = sfb.view(), .c = c.view()});
  for (int code = 0; code < 16; ++code) {
    for (int scale = 0; scale < kScales; ++scale) {
      const double expected =
          reference::e2m1_value(code) * reference::scale_value(DType::e4m3, scale);
      const double actual = reference::load(c.view(), kScales * code + scale);
      EXPECT_TRUE(actual == expected || (std::isnan(actual) && std::isnan(expected)))
          << code << " " << scale;
    }
  }
}

TEST(CpuGemm, AGlobalScaleThatIsNoneMakesItsRowsNan) {
  const GemmCase c{.m = 5,
                   .n = 16,
                   .a_dtype = DType::e2m1x2,
                   .c_dtype = DType::fp32,
                   .global_scales = GlobalScales::each_row};
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                           std::numeric_limits<double>::quiet_NaN()}) {
    GemmHostSet tensors = make_tensors(c);
    reference::store(tensors.global_scale_a.view(), 3, bad);
    reference::store(tensors.global_scale_b.view(), 7, bad);
    const GemmHostSet inputs = tensors;
    const HostTensor result = run(c, tensors);
    expect_right(c, inputs, result);
    for (int i = 0; i < 5 * 16; ++i) {
      EXPECT_EQ(std::isnan(reference::load(result.view(), i)), i / 16 == 3 || i % 16 == 7);
    }
  }
}

TEST(CpuGemm, ABatchMayShareItsWeight) {
  const GemmCase c{.m = 9, .n = 32, .l = 4, .c_dtype = DType::fp32};
  GemmHostSet tensors = make_tensors(c);
  GemmNvfp4Tensors views = tensors.views(c);
  views.b.stride[0] = views.sfb->stride[0] = 0;
  const reference::GemmResult expected = reference::gemm_nvfp4(views, options_of(c));
  gemm_nvfp4(views, options_of(c));
  EXPECT_LE(reference::compare(tensors.c.view(), expected.c).rel_fro, 1e-6);

  const HostTensor of_codes = tensors.c;
  views.b = tensors.packed_b.view();
  views.b.stride[0] = 0;
  views.sfb.reset();
  gemm_nvfp4(views, options_of(c));
  EXPECT_TRUE(same_bytes(tensors.c, of_codes));
}

}  // namespace
}  // namespace tilewright::test
