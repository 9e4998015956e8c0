// Every wrong argument of prepack_nvfp4_weight() and unpack_nvfp4_weight(): the code, the argument
// and the message of the exception, and outputs that stay untouched.
#include <cstring>

#include "bad_call.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/nvfp4_weight.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr Device kGpu{DeviceKind::cuda, 0};

// Right calls, whose tensors a case then spoils: two weights of 70 rows and 160 columns.
struct Calls {
  Calls() {
    for (HostTensor* const tensor : {&codes, &scales, &packed}) {
      poison(*tensor);
    }
  }
  Calls(const Calls&) = delete;

  bool outputs_untouched() const {
    return is_poisoned(codes) && is_poisoned(scales) && is_poisoned(packed);
  }

  UnpackNvfp4WeightTensors unpack() const {
    return {.packed = packed_view, .codes = codes_view, .scales = scales_view};
  }
  PrepackNvfp4WeightTensors prepack() const {
    return {.codes = codes_view, .scales = scales_view, .packed = packed_view};
  }

  HostTensor codes{DType::e2m1x2, {2, 70, 80}};
  HostTensor scales{DType::e4m3, {2, 70, 10}};
  HostTensor packed{DType::u8, {2, 2, 4 * 2304}};
  TensorView codes_view = codes.view();
  TensorView scales_view = scales.view();
  TensorView packed_view = packed.view();
  ScaleLayout layout = ScaleLayout::linear;
};

using BadCall = BadCallOf<Calls>;

void expect_prepack_throws(const BadCall& bad) {
  Calls c;
  bad.spoil(c);
  expect_throws(bad, c, [&] { prepack_nvfp4_weight(c.prepack(), c.layout); });
}

void expect_unpack_throws(const BadCall& bad) {
  Calls c;
  bad.spoil(c);
  expect_throws(bad, c, [&] { unpack_nvfp4_weight(c.unpack(), c.layout); });
}

TEST(WeightCalls, ThatTheCasesSpoilAreRight) {
  Calls c;
  prepack_nvfp4_weight(c.prepack());
  unpack_nvfp4_weight(c.unpack());
  EXPECT_FALSE(c.outputs_untouched());
}

TEST(WeightCalls, OnAGpuThatIsNotThereAreRefused) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  const auto move = [](Calls& c) {
    c.codes_view.device = c.scales_view.device = c.packed_view.device = kGpu;
  };
  const BadCall bad{
      "no_device", move, "device", {"cuda:0", cpu_only_notice().data()}, ErrorCode::no_device};
  expect_prepack_throws(bad);
  expect_unpack_throws(bad);
}

// What is wrong for either call.
class BadWeight : public testing::TestWithParam<BadCall> {};

TEST_P(BadWeight, IsRefused) {
  expect_prepack_throws(GetParam());
  expect_unpack_throws(GetParam());
}

INSTANTIATE_TEST_SUITE_P(
    Codes, BadWeight,
    testing::Values(
        BadCall{"codes_rank",
                [](Calls& c) { c.codes_view.rank = 4; },
                "codes",
                {"rank 4", "rank 3 (batch, rows, columns), or 2 without the batch"}},
        BadCall{"codes_null",
                [](Calls& c) { c.codes_view.data = nullptr; },
                "codes",
                {"must point to memory"}},
        BadCall{"codes_size",
                [](Calls& c) { c.codes_view.shape[1] = 0; },
                "codes",
                {"(2, 0, 80)", "at least 1"}},
        BadCall{"codes_dtype",
                [](Calls& c) { c.codes_view.dtype = DType::u8; },
                "codes",
                {"dtype u8", "must be e2m1x2"}},
        BadCall{"codes_columns",
                [](Calls& c) { c.codes_view.shape[2] = 76; },
                "codes",
                {"76 columns", "multiple of 8, a block of NVFP4"}},
        BadCall{"codes_stride",
                [](Calls& c) { c.codes_view.stride[2] = 2; },
                "codes",
                {"stride 2", "contiguous"}},
        BadCall{"too_many_tiles",
                [](Calls& c) {
                  for (TensorView* const view : {&c.codes_view, &c.scales_view, &c.packed_view}) {
                    view->shape[0] = 1 << 29;
                  }
                },
                "codes",
                {"536870912 weights of 8 tiles", "fewer than 2^31"},
                ErrorCode::unsupported}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Scales, BadWeight,
    testing::Values(BadCall{"scales_rank",
                            [](Calls& c) { c.scales_view.rank = 2; },
                            "scales",
                            {"rank 2", "rank 3", "as codes"}},
                    BadCall{"scales_batch",
                            [](Calls& c) { c.scales_view.shape[0] = 1; },
                            "scales",
                            {"batch is 1", "codes' 2"}},
                    BadCall{"scales_device",
                            [](Calls& c) { c.scales_view.device = kGpu; },
                            "scales",
                            {"on cuda:0", "on cpu like codes"}},
                    BadCall{"scales_dtype",
                            [](Calls& c) { c.scales_view.dtype = DType::e8m0; },
                            "scales",
                            {"e8m0", "must be e4m3"}},
                    BadCall{"scales_rows",
                            [](Calls& c) { c.scales_view.shape[1] = 64; },
                            "scales",
                            {"rows is 64", "70"}},
                    BadCall{"scales_columns",
                            [](Calls& c) { c.scales_view.shape[2] = 9; },
                            "scales",
                            {"columns is 9", "blocks in a row, 10"}},
                    BadCall{"scales_swizzled",
                            [](Calls& c) { c.layout = ScaleLayout::swizzled; },
                            "scales",
                            {"rows is 70", "multiple of 128, 128"}},
                    BadCall{"scales_swizzled_columns",
                            [](Calls& c) {
                              c.layout = ScaleLayout::swizzled;
                              c.scales_view.shape[1] = 128;
                            },
                            "scales",
                            {"columns is 10", "multiple of 4, 12"}},
                    BadCall{
                        "scales_not_contiguous",
                        [](Calls& c) {
                          c.layout = ScaleLayout::swizzled;
                          c.scales_view.shape[1] = 128;
                          c.scales_view.shape[2] = 12;
                        },
                        "scales",
                        {"row stride of 10", "swizzled scales must be contiguous (stride 12)"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Packed, BadWeight,
    testing::Values(BadCall{"packed_rank",
                            [](Calls& c) { c.packed_view.rank = 2; },
                            "packed",
                            {"rank 2", "as codes"}},
                    BadCall{"packed_batch",
                            [](Calls& c) { c.packed_view.shape[0] = 3; },
                            "packed",
                            {"batch is 3", "2"}},
                    BadCall{"packed_device",
                            [](Calls& c) { c.packed_view.device = kGpu; },
                            "packed",
                            {"on cuda:0", "like codes"}},
                    BadCall{"packed_dtype",
                            [](Calls& c) { c.packed_view.dtype = DType::e2m1x2; },
                            "packed",
                            {"e2m1x2", "must be u8"}},
                    BadCall{"packed_rows",
                            [](Calls& c) { c.packed_view.shape[1] = 1; },
                            "packed",
                            {"rows is 1", "tiles of 64 of N 70, 2"}},
                    BadCall{"packed_columns",
                            [](Calls& c) { c.packed_view.shape[2] = 3 * 2304; },
                            "packed",
                            {"columns is 6912", "tiles that K 160 takes, 9216"}},
                    BadCall{"packed_stride",
                            [](Calls& c) { c.packed_view.stride[2] = 2; },
                            "packed",
                            {"contiguous"}},
                    BadCall{"packed_not_contiguous",
                            [](Calls& c) { c.packed_view.stride[1] = 9232; },
                            "packed",
                            {"row stride of 9232",
                             "a packed weight must be contiguous (stride 9216)"}}),
    kCaseName);

TEST(BadWeightOutput, ThatOverlapsIsRefused) {
  expect_prepack_throws({"packed",
                         [](Calls& c) { c.packed_view.stride[0] = 9216; },
                         "packed",
                         {"stride of 9216", "must not overlap"}});
  expect_unpack_throws({"codes",
                        [](Calls& c) { c.codes_view.stride[0] = 0; },
                        "codes",
                        {"stride of 0", "must not overlap"}});
  expect_unpack_throws({"scales",
                        [](Calls& c) { c.scales_view.stride[1] = 5; },
                        "scales",
                        {"stride of 5", "must not overlap"}});
}

TEST(BadWeightOutput, ThatOverlapsAnotherTensorIsRefused) {
  expect_prepack_throws({"packed_in_codes",
                         [](Calls& c) { c.codes_view.data = c.packed.data() + 16; },
                         "packed",
                         {"shares memory with codes"}});
  expect_prepack_throws({"packed_in_scales",
                         [](Calls& c) { c.scales_view.data = c.packed.data(); },
                         "packed",
                         {"shares memory with scales"}});
  expect_unpack_throws({"codes_in_packed",
                        [](Calls& c) { c.codes_view.data = c.packed.data(); },
                        "codes",
                        {"shares memory with packed"}});
  expect_unpack_throws({"scales_in_codes",
                        [](Calls& c) { c.scales_view.data = c.codes.data(); },
                        "codes",
                        {"shares memory with scales"}});
  expect_unpack_throws({"scales_in_packed",
                        [](Calls& c) { c.scales_view.data = c.packed.data() + 32; },
                        "scales",
                        {"shares memory with packed"}});
}

// An input may be the same weight many times.
TEST(WeightCalls, TakeBroadcastInputs) {
  Calls c;
  c.codes_view.stride[0] = c.scales_view.stride[0] = 0;
  prepack_nvfp4_weight(c.prepack());
  const std::byte* const packed = c.packed.data();
  EXPECT_EQ(std::memcmp(packed, packed + c.packed_view.stride[0],
                        static_cast<std::size_t>(c.packed_view.stride[0])),
            0);
}

}  // namespace
}  // namespace tilewright::test
