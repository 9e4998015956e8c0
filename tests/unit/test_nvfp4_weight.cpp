// Packing NVFP4 weights on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "common/nvfp4_weight_layout.hpp"
#include "problems/dequantize_problem.hpp"
#include "problems/problem.hpp"
#include "problems/weight_problem.hpp"
#include "ran.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

TEST(PackedWeight, EveryElementIsInItsPlace) {
  Ran ran;
  for (const WeightProblem& problem : weight_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    WeightHostSet tensors = make_tensors(problem);
    const WeightHostSet original = tensors;
    prepack_nvfp4_weight(tensors.prepack_views(), problem.layout);
    expect_packed(problem, tensors);
    EXPECT_TRUE(same_bytes(tensors.codes, original.codes));
    EXPECT_TRUE(same_bytes(tensors.scales, original.scales));
  }
}

TEST(PackedWeight, ComesBack) {
  Ran ran;
  for (const WeightProblem& problem : weight_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    WeightHostSet tensors = make_tensors(problem);
    prepack_nvfp4_weight(tensors.prepack_views(), problem.layout);
    WeightHostSet unpacked = without_weight(tensors);
    unpack_nvfp4_weight(unpacked.unpack_views(), problem.layout);
    expect_unpacked(problem, tensors, unpacked);
    if (problem.is_canonical) {
      EXPECT_TRUE(same_bytes(unpacked.codes, tensors.codes));
    }
  }
}

TEST(PackedWeight, OfWhatCameBackIsTheSame) {
  Ran ran;
  for (const WeightProblem& problem : weight_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    WeightHostSet tensors = make_tensors(problem);
    prepack_nvfp4_weight(tensors.prepack_views(), problem.layout);
    const HostTensor first = tensors.packed;
    unpack_nvfp4_weight(tensors.unpack_views(), problem.layout);
    std::fill_n(tensors.packed.data(), tensors.packed.bytes(), kUnwritten);
    prepack_nvfp4_weight(tensors.prepack_views(), problem.layout);
    EXPECT_TRUE(same_bytes(tensors.packed, first));
  }
}

// The signs of zeros are kept.
TEST(PackedWeight, EveryScaleAndCodeKeepsItsValue) {
  Ran ran;
  for (const DequantizeProblem& problem : dequantize_problems()) {
    if (problem.scale_dtype != DType::e4m3 || problem.global_scale) {
      continue;
    }
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    DequantizeHostSet tensors = make_tensors(problem);
    const ConstTensorView codes = tensors.codes.view();
    const auto [row_tiles, row_bytes] =
        packed_nvfp4_weight_shape(codes.shape[0], 2 * codes.shape[1]);
    HostTensor packed(DType::u8, {row_tiles, row_bytes});
    prepack_nvfp4_weight({.codes = codes, .scales = tensors.scales.view(), .packed = packed.view()},
                         problem.layout);
    std::fill_n(tensors.codes.data(), tensors.codes.bytes(), kUnwritten);
    std::fill_n(tensors.scales.data(), tensors.scales.bytes(), kUnwritten);
    unpack_nvfp4_weight(
        {.packed = packed.view(), .codes = tensors.codes.view(), .scales = tensors.scales.view()},
        problem.layout);
    dequantize_nvfp4(tensors.views(problem), options_of(problem));
    expect_right(problem, tensors);
  }
}

TEST(PackedWeight, ABatchMayLieAnyDistanceApart) {
  const WeightProblem problem{.n = 70, .k = 80, .l = 3};
  WeightHostSet tensors = make_tensors(problem);
  prepack_nvfp4_weight(tensors.prepack_views());
  const ConstTensorView dense = tensors.packed.view();
  HostTensor apart(DType::u8, {3, dense.shape[1], dense.shape[2]},
                   {dense.stride[0] + 48, dense.shape[2], 1});
  std::fill_n(apart.data(), apart.bytes(), kUnwritten);
  prepack_nvfp4_weight(
      {.codes = tensors.codes.view(), .scales = tensors.scales.view(), .packed = apart.view()});
  EXPECT_TRUE(reference::gaps_hold(apart, kUnwritten));
  for (std::int64_t weight = 0; weight < 3; ++weight) {
    EXPECT_EQ(std::memcmp(apart.data() + weight * (dense.stride[0] + 48),
                          tensors.packed.data() + weight * dense.stride[0],
                          static_cast<std::size_t>(dense.stride[0])),
              0);
  }
}

TEST(PackedWeight, ScalesKeepTheirValueInTheirPackedForm) {
  for (std::uint32_t e4m3 = 0; e4m3 < 0x7f; ++e4m3) {
    EXPECT_EQ(packed_scale_to_float(pack_scale(e4m3)), e4m3_to_float(e4m3)) << e4m3;
    EXPECT_EQ(pack_scale(e4m3 | 0x80u), pack_scale(e4m3)) << e4m3;
  }
  EXPECT_EQ(pack_scale(0x7f), kPackedScaleNaN);
  EXPECT_EQ(pack_scale(0xff), kPackedScaleNaN);
}

}  // namespace
}  // namespace tilewright::test
