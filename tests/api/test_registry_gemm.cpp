// The constraints of gemm_nvfp4's kernels, on devices that need not exist here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <span>

#include "registry_test.hpp"

namespace tilewright {
namespace {

using testing::HasSubstr;

TEST(CanRunGemm, TheCpuKernelTakesAnyNAndBlocksOfK) {
  const DeviceInfo& cpu = device_info({DeviceKind::cpu, 0});
  const Kernel<GemmNvfp4>& gemm = named<GemmNvfp4>("cpu");
  EXPECT_FALSE(can_run(gemm, {.a_dtype = DType::e2m1x2, .m = 3, .n = 17, .k = 48}, cpu));
  const auto wrong_k = can_run(gemm, {.k = 24}, cpu);
  ASSERT_TRUE(wrong_k);
  EXPECT_EQ(wrong_k->argument, "b");
  EXPECT_EQ(wrong_k->message, "has K 24, kernel cpu takes multiples of 16");
  const auto wrong_dtype = can_run(gemm, {.a_dtype = DType::fp32}, cpu);
  ASSERT_TRUE(wrong_dtype);
  EXPECT_EQ(wrong_dtype->message, "has dtype fp32, kernel cpu takes bf16, fp16, e2m1x2");
  EXPECT_EQ(can_run(gemm, GemmNvfp4Problem{}, kH200)->argument, "device");
  EXPECT_EQ(workspace_bytes(gemm, GemmNvfp4Problem{}, cpu), 0u);
}

TEST(CanRunGemm, AKernelTakesItsFormsOfTheWeight) {
  const DeviceInfo& cpu = device_info({DeviceKind::cpu, 0});
  Kernel<GemmNvfp4> gemm = named<GemmNvfp4>("cpu");
  EXPECT_FALSE(can_run(gemm, {.b_is_packed = false}, cpu));
  EXPECT_FALSE(can_run(gemm, {.b_is_packed = true}, cpu));

  constexpr std::array kForms = {WeightForm::codes, WeightForm::packed};
  gemm.facts.weight_forms = std::span(kForms).first<1>();
  EXPECT_FALSE(can_run(gemm, {.b_is_packed = false}, cpu));
  const auto no_packed = can_run(gemm, {.b_is_packed = true}, cpu);
  ASSERT_TRUE(no_packed);
  EXPECT_EQ(no_packed->code, ErrorCode::unsupported);
  EXPECT_EQ(no_packed->argument, "b");
  EXPECT_EQ(no_packed->message,
            "is packed, kernel cpu takes codes and scales: use those that were packed");

  gemm.facts.weight_forms = std::span(kForms).last<1>();
  EXPECT_FALSE(can_run(gemm, {.b_is_packed = true}, cpu));
  const auto no_codes = can_run(gemm, {.b_is_packed = false}, cpu);
  ASSERT_TRUE(no_codes);
  EXPECT_EQ(no_codes->argument, "b");
  EXPECT_EQ(no_codes->message,
            "is codes, kernel cpu takes a packed weight: use prepack_nvfp4_weight()");
}

TEST(CanRunGemm, TheSimpleKernelTakesCodes) {
  if (!cpu_only_notice().empty()) {
    GTEST_SKIP() << "built without CUDA";
  }
  const Kernel<GemmNvfp4>& gemm = named<GemmNvfp4>("nvfp4_simple");
  EXPECT_FALSE(can_run(gemm, GemmNvfp4Problem{}, kH200));
  EXPECT_EQ(can_run(gemm, {.b_is_packed = true}, kH200)->argument, "b");
}

TEST(CanRunGemm, AWorkspaceThatTheDeviceCannotHoldIsRefused) {
  if (!cpu_only_notice().empty()) {
    GTEST_SKIP() << "built without CUDA";
  }
  const DeviceInfo small = gpu("a small GPU", 90, 1e-3);
  EXPECT_FALSE(can_run(gemm("nvfp4"), {.n = 8192, .k = 8192, .b_is_packed = true}, small));
  const auto reason = can_run(gemm("nvfp4"), {.n = 8192, .k = 8192}, small);  // it packs the weight
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->argument, "workspace");
  EXPECT_THAT(reason->message, HasSubstr("a small GPU has 1000000"));
}

TEST(CanRunGemm, TheFastKernelTakesEitherForm) {
  if (!cpu_only_notice().empty()) {
    GTEST_SKIP() << "built without CUDA";
  }
  const Kernel<GemmNvfp4>& gemm = named<GemmNvfp4>("nvfp4");
  for (const bool is_packed : {false, true}) {
    EXPECT_FALSE(can_run(gemm, {.b_is_packed = is_packed}, kH200));
  }
}

TEST(CanRunGemm, GpuKernelsNameTheSizesThatTheyDoNotTake) {
  if (!cpu_only_notice().empty()) {
    GTEST_SKIP() << "built without CUDA";
  }
  const auto expect_refused = [](std::string_view name, const GemmNvfp4Problem& problem,
                                 std::string_view argument, std::string_view message) {
    const auto reason = can_run(named<GemmNvfp4>(name), problem, kH200);
    ASSERT_TRUE(reason) << message;
    EXPECT_EQ(reason->code, ErrorCode::unsupported);
    EXPECT_EQ(reason->argument, argument);
    EXPECT_EQ(reason->message, message);
  };
  expect_refused("nvfp4", {.n = 24, .b_is_packed = true}, "b",
                 "has N 24, kernel nvfp4 takes multiples of 16");
  expect_refused("nvfp4", {.k = 72, .b_is_packed = true}, "b",
                 "has K 72, kernel nvfp4 takes multiples of 16");
  expect_refused("nvfp4_simple", {.n = 24}, "b",
                 "has N 24, kernel nvfp4_simple takes multiples of 16");
  expect_refused("nvfp4_simple", {.k = 80}, "b",
                 "has K 80, kernel nvfp4_simple takes multiples of 64");

  constexpr std::int64_t kRows = 1 << 15;
  const GemmNvfp4Problem too_large{.m = kRows, .n = kRows, .k = kRows, .l = 4};
  expect_refused("nvfp4_simple", too_large, "a",
                 "has L x M x N x K of 2^47 or more, M, N and K up to multiples of 8, 64 and 128, "
                 "kernel nvfp4_simple takes less");
  GemmNvfp4Problem packed = too_large;
  packed.b_is_packed = true;
  expect_refused("nvfp4", packed, "a",
                 "has L x M x N x K of 2^47 or more, M, N and K up to multiples of 8, 64 and 128, "
                 "kernel nvfp4 takes less");
  packed.m = kRows - 8;
  EXPECT_FALSE(can_run(named<GemmNvfp4>("nvfp4"), packed, kH200));
}

TEST(CanRunGemm, EveryKernelOfNvfp4TakesAWeight) {
  for (const Kernel<GemmNvfp4>& k : kernels<GemmNvfp4>()) {
    EXPECT_FALSE(k.facts.weight_forms.empty()) << k.info.name;
  }
}

}  // namespace
}  // namespace tilewright
