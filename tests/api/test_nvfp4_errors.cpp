// Every wrong argument of quantize_nvfp4(), dequantize_nvfp4() and the conversions of scales: the
// code, the argument and the message of the exception, and outputs that stay untouched.
#include <algorithm>
#include <functional>
#include <vector>

#include "bad_call.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/nvfp4.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr Device kGpu{DeviceKind::cuda, 0};

// Right calls, whose tensors a case then spoils: a matrix of 5 rows and 64 columns.
struct Calls {
  Calls() {
    for (HostTensor* const output : {&codes, &scales, &global_scale, &out, &swizzled}) {
      poison(*output);
    }
  }
  Calls(const Calls&) = delete;

  bool outputs_untouched() const {
    return is_poisoned(codes) && is_poisoned(scales) && is_poisoned(global_scale) &&
           is_poisoned(out) && is_poisoned(swizzled);
  }

  HostTensor x{DType::bf16, {5, 64}};
  HostTensor codes{DType::e2m1x2, {5, 32}};
  HostTensor scales{DType::e4m3, {5, 4}};
  HostTensor global_scale{DType::fp32, {1}};
  HostTensor out{DType::bf16, {5, 64}};
  HostTensor swizzled{DType::e4m3, {128, 4}};

  QuantizeNvfp4Tensors quantize{.x = x.view(),
                                .codes = codes.view(),
                                .scales = scales.view(),
                                .computed_global_scale = global_scale.view()};
  QuantizeNvfp4Options quantize_options{.global_scale_kind = GlobalScale::encode};
  DequantizeNvfp4Tensors dequantize{
      .codes = codes.view(), .scales = scales.view(), .out = out.view()};
  DequantizeNvfp4Options dequantize_options;
  ConstTensorView linear = scales.view();
};

using BadCall = BadCallOf<Calls>;

class BadQuantize : public testing::TestWithParam<BadCall> {};

TEST_P(BadQuantize, IsRefused) {
  Calls c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { quantize_nvfp4(c.quantize, c.quantize_options); });
  expect_throws(GetParam(), c,
                [&] { quantize_nvfp4_workspace_bytes(c.quantize, c.quantize_options); });
}

class BadDequantize : public testing::TestWithParam<BadCall> {};

TEST_P(BadDequantize, IsRefused) {
  Calls c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { dequantize_nvfp4(c.dequantize, c.dequantize_options); });
}

TEST(Nvfp4Calls, ThatTheCasesSpoilAreRight) {
  Calls c;
  EXPECT_EQ(quantize_nvfp4_workspace_bytes(c.quantize, c.quantize_options), 0u);
  quantize_nvfp4(c.quantize, c.quantize_options);
  dequantize_nvfp4(c.dequantize);
  swizzle_scales(c.scales.view(), c.swizzled.view());
  unswizzle_scales(c.swizzled.view(), c.scales.view());
  EXPECT_FALSE(c.outputs_untouched());
}

TEST(Nvfp4Calls, OnAGpuThatIsNotThereAreRefused) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  Calls c;
  const BadCall no_device{
      "no_device", {}, "device", {"cuda:0", cpu_only_notice().data()}, ErrorCode::no_device};
  for (TensorView* const view : {&c.quantize.codes, &c.quantize.scales, &c.dequantize.out}) {
    view->device = kGpu;
  }
  c.quantize.x.device = c.quantize.computed_global_scale->device = kGpu;
  c.dequantize.codes.device = c.dequantize.scales.device = c.linear.device = kGpu;
  expect_throws(no_device, c, [&] { quantize_nvfp4(c.quantize, c.quantize_options); });
  expect_throws(no_device, c, [&] { dequantize_nvfp4(c.dequantize); });
  TensorView swizzled = c.swizzled.view();
  swizzled.device = kGpu;
  expect_throws(no_device, c, [&] { swizzle_scales(c.linear, swizzled); });
}

INSTANTIATE_TEST_SUITE_P(
    X, BadQuantize,
    testing::Values(
        BadCall{"x_rank", [](Calls& c) { c.quantize.x.rank = 3; }, "x", {"rank 3", "rank 2"}},
        BadCall{"x_dtype",
                [](Calls& c) { c.quantize.x.dtype = DType::e4m3; },
                "x",
                {"e4m3", "must be fp32, fp16 or bf16"}},
        BadCall{"x_columns",
                [](Calls& c) { c.quantize.x.shape[1] = 40; },
                "x",
                {"40 columns", "multiple of 16"}},
        BadCall{"x_empty", [](Calls& c) { c.quantize.x.shape[0] = 0; }, "x", {"(0, 64)"}},
        BadCall{"x_null", [](Calls& c) { c.quantize.x.data = nullptr; }, "x", {"null"}},
        BadCall{"x_strided",
                [](Calls& c) { c.quantize.x.stride[1] = 2; },
                "x",
                {"stride 2", "contiguous"}},
        BadCall{"x_misaligned",
                [](Calls& c) { misplace(c.quantize.x, 1); },
                "x",
                {"1 bytes past", "aligned to 2"}},
        BadCall{"x_too_large",
                [](Calls& c) {
                  c.quantize.x.shape = {1 << 29, 1 << 20};
                },
                "x",
                {"2^31 blocks"},
                ErrorCode::unsupported}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Outputs, BadQuantize,
    testing::Values(BadCall{"codes_dtype",
                            [](Calls& c) { c.quantize.codes.dtype = DType::e4m3; },
                            "codes",
                            {"e4m3", "must be e2m1x2"}},
                    BadCall{"codes_device",
                            [](Calls& c) { c.quantize.codes.device = kGpu; },
                            "codes",
                            {"cuda:0", "must be on cpu like x"}},
                    BadCall{"codes_rows",
                            [](Calls& c) { c.quantize.codes.shape[0] = 4; },
                            "codes",
                            {"rows is 4, must equal x's 5"}},
                    BadCall{"codes_columns",
                            [](Calls& c) { c.quantize.codes.shape[1] = 64; },
                            "codes",
                            {"columns is 64", "half of x's, 32"}},
                    BadCall{"codes_overlap",
                            [](Calls& c) { c.quantize.codes.stride[0] = 16; },
                            "codes",
                            {"must not overlap"}},
                    BadCall{"scales_dtype",
                            [](Calls& c) { c.quantize.scales.dtype = DType::e8m0; },
                            "scales",
                            {"e8m0", "must be e4m3"}},
                    BadCall{"scales_columns",
                            [](Calls& c) { c.quantize.scales.shape[1] = 3; },
                            "scales",
                            {"columns is 3", "blocks in a row, 4"}},
                    BadCall{"scales_overlap",
                            [](Calls& c) { c.quantize.scales.stride[0] = 0; },
                            "scales",
                            {"must not overlap"}},
                    BadCall{
                        "linear_scales_called_swizzled",
                        [](Calls& c) { c.quantize_options.scale_layout = ScaleLayout::swizzled; },
                        "scales",
                        {"rows is 5", "up to a multiple of 128, 128"}},
                    BadCall{"swizzled_scales_with_gaps",
                            [](Calls& c) {
                              c.quantize_options.scale_layout = ScaleLayout::swizzled;
                              c.quantize.scales = c.swizzled.view();
                              c.quantize.scales.stride[0] = 8;
                            },
                            "scales",
                            {"row stride of 8", "contiguous (stride 4)"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    SharedMemory, BadQuantize,
    testing::Values(BadCall{"codes_in_x",
                            [](Calls& c) { c.quantize.codes.data = c.x.data() + 16; },
                            "codes",
                            {"shares memory with x", "must not overlap an input or another"}},
                    BadCall{"scales_in_codes",
                            [](Calls& c) { c.quantize.scales.data = c.codes.data(); },
                            "codes",
                            {"shares memory with scales"}},
                    BadCall{"scales_in_x",
                            [](Calls& c) { c.quantize.scales.data = c.x.data(); },
                            "scales",
                            {"shares memory with x"}},
                    BadCall{"computed_global_scale_in_scales",
                            [](Calls& c) {
                              c.quantize.computed_global_scale->data = c.scales.data() + 8;
                            },
                            "scales",
                            {"shares memory with computed_global_scale"}},
                    BadCall{"computed_global_scale_in_x",
                            [](Calls& c) { c.quantize.computed_global_scale->data = c.x.data(); },
                            "computed_global_scale",
                            {"shares memory with x"}},
                    BadCall{"codes_hold_the_global_scale",
                            [](Calls& c) {
                              c.quantize.computed_global_scale.reset();
                              c.quantize.global_scale = c.global_scale.view();
                              c.quantize.global_scale->data = c.codes.data();
                            },
                            "codes",
                            {"shares memory with global_scale"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    GlobalScale, BadQuantize,
    testing::Values(BadCall{"no_global_scale_kind",
                            [](Calls& c) { c.quantize_options.global_scale_kind.reset(); },
                            "global_scale_kind",
                            {"is absent", "must be encode or decode"}},
                    BadCall{"no_global_scale",
                            [](Calls& c) { c.quantize.computed_global_scale.reset(); },
                            "computed_global_scale",
                            {"is absent", "global_scale is absent"}},
                    BadCall{"two_global_scales",
                            [](Calls& c) { c.quantize.global_scale = c.global_scale.view(); },
                            "computed_global_scale",
                            {"is given", "must be absent"}},
                    BadCall{"global_scale_dtype",
                            [](Calls& c) { c.quantize.computed_global_scale->dtype = DType::bf16; },
                            "computed_global_scale",
                            {"bf16", "must be fp32"}},
                    BadCall{"global_scale_per_row",
                            [](Calls& c) { c.quantize.computed_global_scale->shape[0] = 5; },
                            "computed_global_scale",
                            {"size is 5", "must equal"}},
                    BadCall{"global_scale_misaligned",
                            [](Calls& c) { misplace(*c.quantize.computed_global_scale, 2); },
                            "computed_global_scale",
                            {"2 bytes past", "aligned to 4"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Cases, BadDequantize,
    testing::Values(BadCall{"codes_dtype",
                            [](Calls& c) { c.dequantize.codes.dtype = DType::bf16; },
                            "codes",
                            {"bf16", "must be e2m1x2"}},
                    BadCall{"scales_dtype",
                            [](Calls& c) { c.dequantize.scales.dtype = DType::fp32; },
                            "scales",
                            {"fp32", "must be e4m3, or e8m0 of MXFP4"}},
                    BadCall{"mxfp4_columns",
                            [](Calls& c) {
                              c.dequantize.scales.dtype = DType::e8m0;
                              c.dequantize.codes.shape[1] = 24;
                            },
                            "codes",
                            {"24 columns", "multiple of 16, the bytes of a block"}},
                    BadCall{"mxfp4_scales",
                            [](Calls& c) { c.dequantize.scales.dtype = DType::e8m0; },
                            "scales",
                            {"columns is 4", "blocks in a row, 2"}},
                    BadCall{"mxfp4_global_scale",
                            [](Calls& c) {
                              c.dequantize.scales.dtype = DType::e8m0;
                              c.dequantize.scales.shape[1] = 2;
                              c.dequantize.global_scale = c.global_scale.view();
                            },
                            "global_scale",
                            {"MXFP4 has none"}},
                    BadCall{"global_scale_without_kind",
                            [](Calls& c) { c.dequantize.global_scale = c.global_scale.view(); },
                            "global_scale_kind",
                            {"is absent", "must be encode or decode"}},
                    BadCall{"out_dtype",
                            [](Calls& c) { c.dequantize.out.dtype = DType::int32; },
                            "out",
                            {"int32", "must be fp32, fp16 or bf16"}},
                    BadCall{"out_device",
                            [](Calls& c) { c.dequantize.out.device = kGpu; },
                            "out",
                            {"must be on cpu like codes"}},
                    BadCall{"out_columns",
                            [](Calls& c) { c.dequantize.out.shape[1] = 32; },
                            "out",
                            {"columns is 32", "twice codes', 64"}},
                    BadCall{"out_overlap",
                            [](Calls& c) { c.dequantize.out.stride[0] = 32; },
                            "out",
                            {"must not overlap"}},
                    BadCall{"out_in_codes",
                            [](Calls& c) { c.dequantize.codes.data = c.out.data() + 100; },
                            "out",
                            {"shares memory with codes"}},
                    BadCall{"out_in_scales",
                            [](Calls& c) { c.dequantize.scales.data = c.out.data(); },
                            "out",
                            {"shares memory with scales"}},
                    BadCall{"out_in_global_scale",
                            [](Calls& c) {
                              c.dequantize.global_scale = c.global_scale.view();
                              c.dequantize.global_scale->data = c.out.data();
                              c.dequantize_options.global_scale_kind = GlobalScale::encode;
                            },
                            "out",
                            {"shares memory with global_scale"}},
                    BadCall{"out_misaligned",
                            [](Calls& c) { misplace(c.dequantize.out, 1); },
                            "out",
                            {"aligned to 2"}}),
    kCaseName);

struct BadScales {
  const char* description;
  std::function<void(TensorView& linear, TensorView& swizzled)> spoil;
  const char* argument;
  std::vector<const char*> parts;
};

class BadConversion : public testing::TestWithParam<BadScales> {};

TEST_P(BadConversion, IsRefused) {
  Calls c;
  TensorView linear = c.scales.view();
  TensorView swizzled = c.swizzled.view();
  GetParam().spoil(linear, swizzled);
  const BadCall bad{GetParam().description, {}, GetParam().argument, GetParam().parts};
  expect_throws(bad, c, [&] { swizzle_scales(linear, swizzled); });
  expect_throws(bad, c, [&] { unswizzle_scales(swizzled, linear); });
}

TEST(BadConversionOutput, ThatOverlapsTheInputIsRefused) {
  Calls c;
  const TensorView swizzled = c.swizzled.view();
  TensorView linear = c.scales.view();
  linear.data = c.swizzled.data() + 100;
  expect_throws({"", {}, "swizzled", {"shares memory with linear"}}, c,
                [&] { swizzle_scales(linear, swizzled); });
  expect_throws({"", {}, "linear", {"shares memory with swizzled"}}, c,
                [&] { unswizzle_scales(swizzled, linear); });
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadConversion,
    testing::Values(BadScales{"linear_dtype",
                              [](TensorView& linear, TensorView&) { linear.dtype = DType::e2m1x2; },
                              "linear",
                              {"e2m1x2", "must be e4m3 or e8m0"}},
                    BadScales{
                        "swizzled_dtype",
                        [](TensorView&, TensorView& swizzled) { swizzled.dtype = DType::e8m0; },
                        "swizzled",
                        {"e8m0", "must be e4m3, the dtype of linear"}},
                    BadScales{"swizzled_shape",
                              [](TensorView&, TensorView& swizzled) { swizzled.shape[0] = 5; },
                              "swizzled",
                              {"rows is 5", "128"}},
                    BadScales{"swizzled_device",
                              [](TensorView&, TensorView& swizzled) { swizzled.device = kGpu; },
                              "swizzled",
                              {"must be on cpu like linear"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
