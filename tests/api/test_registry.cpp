// The kernel table, and the constraints on devices that need not exist here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include "ran.hpp"
#include "registry_test.hpp"
#include "tilewright/operations.hpp"

namespace tilewright {
namespace {

using testing::HasSubstr;

const Kernel<Attention>& kernel(std::string_view name) { return named<Attention>(name); }

template <class Op>
class TableTest : public testing::Test {};

template <class... Ops>
testing::Types<Ops...> types_of(OperationList<Ops...>);

using AllOperations = decltype(types_of(Operations{}));
TYPED_TEST_SUITE(TableTest, AllOperations);

TYPED_TEST(TableTest, KernelsAndVariantsAreFoundByName) {
  ASSERT_FALSE(kernels<TypeParam>().empty());
  for (const Kernel<TypeParam>& k : kernels<TypeParam>()) {
    EXPECT_EQ(find_kernel<TypeParam>(k.info.name), &k);
    for (std::size_t i = 0; i < k.variants.size(); ++i) {
      const Kernel<TypeParam>& variant = k.variants[i];
      EXPECT_EQ(variant.info.name, k.info.name + "/" + std::to_string(i));
      EXPECT_EQ(find_kernel<TypeParam>(variant.info.name), &variant);
      EXPECT_EQ(variant.info.doc, k.info.doc);
    }
    EXPECT_EQ(find_kernel<TypeParam>(k.info.name + "/" + std::to_string(k.variants.size())),
              nullptr);
    EXPECT_EQ(find_kernel<TypeParam>(k.info.name + "/"), nullptr);
  }
  EXPECT_EQ(find_kernel<TypeParam>("no such kernel"), nullptr);
  EXPECT_EQ(find_kernel<TypeParam>("auto"), nullptr);
}

TYPED_TEST(TableTest, EveryRowIsComplete) {
  const bool has_cuda = cpu_only_notice().empty();
  for (const Kernel<TypeParam>& k : kernels<TypeParam>()) {
    SCOPED_TRACE(k.info.name);
    EXPECT_EQ(k.info.operation, TypeParam::kName);
    EXPECT_FALSE(k.info.summary.empty());
    EXPECT_FALSE(k.info.dtypes.empty());
    EXPECT_GE(k.info.alignment_bytes, 1);
    EXPECT_EQ(k.info.architectures.empty(), k.info.device == DeviceKind::cpu);
    EXPECT_EQ(k.info.is_built, has_cuda || k.info.device == DeviceKind::cpu);
    EXPECT_EQ(k.launch != nullptr, k.info.is_built);
    for (const Limit& limit : k.info.limits) {
      EXPECT_FALSE(limit.argument.empty() || limit.allowed.empty());
    }
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::path(TILEWRIGHT_SOURCE_DIR) / k.info.doc));
  }
}

TYPED_TEST(TableTest, IsPartOfTheListOfAllKernels) {
  const auto first = std::ranges::find(kernels(), TypeParam::kName, &KernelInfo::operation);
  ASSERT_NE(first, kernels().end());
  std::size_t at = static_cast<std::size_t>(first - kernels().begin());
  for (const Kernel<TypeParam>& k : kernels<TypeParam>()) {
    ASSERT_LT(at, kernels().size());
    EXPECT_EQ(kernels()[at++], &k.info);
  }
  EXPECT_TRUE(at == kernels().size() || kernels()[at]->operation != TypeParam::kName);
}

TEST(Registry, NamesAreUnique) {
  std::set<std::pair<std::string_view, std::string_view>> names;
  for (const KernelInfo* const k : kernels()) {
    EXPECT_TRUE(names.emplace(k->operation, k->name).second) << k->name;
  }
  EXPECT_EQ(names.size(), kernels().size());
}

// Rungs follow each other by the digits in their names.
TEST(Registry, TheLadderIsInOrder) {
  const std::span<const Kernel<Attention>> table = kernels<Attention>();
  EXPECT_EQ(table.front().info.name, "cpu");
  EXPECT_EQ(table.back().info.name, "flash");
  test::Ran rungs("rungs");
  char number = '0';
  for (const Kernel<Attention>& k : table.subspan(1, table.size() - 2)) {
    ASSERT_TRUE(k.info.name.size() > 1 && k.info.name.starts_with('k')) << k.info.name;
    EXPECT_GE(k.info.name[1], number) << k.info.name;
    number = k.info.name[1];
    ++rungs;
  }
}

TEST(Registry, LimitsSayWhatAKernelTakes) {
  const auto limits_of = [](const KernelInfo& info) {
    std::vector<std::pair<std::string, std::string>> limits;
    for (const Limit& limit : info.limits) {
      limits.emplace_back(limit.argument, limit.allowed);
    }
    return limits;
  };
  using testing::Pair;
  EXPECT_THAT(limits_of(kernel("k4").info),
              testing::ElementsAre(Pair("head_dim", "64, 128"), Pair("window", "none"),
                                   Pair("softcap", "none"), Pair("sinks", "none"),
                                   Pair("packed", "none"), Pair("unnormalized", "none")));
  EXPECT_THAT(limits_of(kernel("cpu").info),
              testing::ElementsAre(Pair("head_dim", "at most 16384")));
  EXPECT_THAT(limits_of(gemm("nvfp4_simple").info),
              testing::ElementsAre(Pair("b", "codes"), Pair("c", "fp32, fp16, bf16"),
                                   Pair("N", "multiples of 16"), Pair("K", "multiples of 64")));
}

TEST(CanRun, EveryCudaKernelTakesTheSweepOnHopper) {
  if (!cpu_only_notice().empty()) {
    GTEST_SKIP() << "built without CUDA";
  }
  for (const Kernel<Attention>& k : kernels<Attention>()) {
    for (const std::int64_t head_dim : {64, 128}) {
      const AttentionProblem problem{
          .q_len = 16384, .kv_len = 16384, .heads = 32, .head_dim = head_dim};
      EXPECT_EQ(can_run(k, problem, kH200).has_value(), k.info.device == DeviceKind::cpu)
          << k.info.name;
    }
  }
}

TEST(CanRun, SaysThatABuildWithoutCudaHasNoGpuKernels) {
  if (cpu_only_notice().empty()) {
    GTEST_SKIP() << "built with CUDA";
  }
  const auto reason = can_run(kernel("k4").info, kH200);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->code, ErrorCode::no_device);
  EXPECT_EQ(reason->argument, "kernel");
  EXPECT_THAT(reason->message, HasSubstr("this is a CPU-only build of Tilewright"));
  EXPECT_EQ(cuda_device_count(), 0);
}

TEST(CanRun, TheCpuKernelTakesAnyFloatAndHeadDim) {
  const DeviceInfo& cpu = device_info({DeviceKind::cpu, 0});
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const std::int64_t head_dim : {1, 17, 64, 512}) {
      EXPECT_FALSE(can_run(kernel("cpu"), {.dtype = dtype, .head_dim = head_dim}, cpu));
    }
  }
}

TEST(CanRun, TheCpuKernelTakesAllFeatures) {
  const AttentionProblem problem{.head_dim = 192,
                                 .value_dim = 128,
                                 .causal = true,
                                 .window = true,
                                 .softcap = true,
                                 .sinks = true,
                                 .packed = true,
                                 .packed_queries = true,
                                 .unnormalized = true,
                                 .batch_invariant = true};
  EXPECT_FALSE(can_run(kernel("cpu"), problem, device_info({DeviceKind::cpu, 0})));
}

TEST(CanRun, TheLadderTakesSquareHeadDimsGivenEitherWay) {
  if (!cpu_only_notice().empty()) {
    GTEST_SKIP() << "built without CUDA";
  }
  EXPECT_FALSE(can_run(kernel("k6"), {.head_dim = 64}, kH200));
  EXPECT_FALSE(can_run(kernel("k6"), {.head_dim = 64, .value_dim = 64}, kH200));
}

TEST(CanRun, AVariantOfFlashTakesWhatItsConfigCan) {
  if (!cpu_only_notice().empty()) {
    GTEST_SKIP() << "built without CUDA";
  }
  const AttentionProblem any{.q_len = 3, .kv_len = 16384, .causal = true, .window = true};
  EXPECT_FALSE(can_run(kernel("flash/5"), any, kH200));
  EXPECT_FALSE(can_run(kernel("flash/8"), any, kH200));
  const AttentionProblem shared{.q_len = 200, .kv_len = 3, .softcap = true, .sinks = true};
  EXPECT_FALSE(can_run(kernel("flash/6"), shared, kH200));
}

TEST(HeadDimsName, SaysTheValuesDimWhereItDiffers) {
  EXPECT_EQ(name(HeadDims{64, 64}), "64");
  EXPECT_EQ(name(HeadDims{192, 128}), "192 (v 128)");
}

// A problem, a device, and what the refusal must say.
struct Refusal {
  const char* description;
  const char* kernel;
  AttentionProblem problem;
  DeviceInfo device;
  const char* argument;
  std::vector<const char*> parts;
};

std::ostream& operator<<(std::ostream& out, const Refusal& r) { return out << r.description; }

class Refused : public testing::TestWithParam<Refusal> {};

TEST_P(Refused, NamesTheArgumentItsValueAndWhatIsAllowed) {
  const Refusal& r = GetParam();
  if (kernel(r.kernel).info.device == DeviceKind::cuda && !cpu_only_notice().empty()) {
    GTEST_SKIP() << "built without CUDA";
  }
  const auto reason = can_run(kernel(r.kernel), r.problem, r.device);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->code, ErrorCode::unsupported);
  EXPECT_EQ(reason->argument, r.argument);
  for (const char* part : r.parts) {
    EXPECT_THAT(reason->message, HasSubstr(part));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Constraints, Refused,
    testing::Values(
        Refusal{"ampere",
                "k2",
                {},
                gpu("NVIDIA A100", 80, 80),
                "device",
                {"NVIDIA A100", "8.0", "9.0"}},
        Refusal{"blackwell",
                "k4",
                {},
                gpu("NVIDIA B200", 100, 192),
                "device",
                {"NVIDIA B200", "10.0", "9.0"}},
        Refusal{"gpu_kernel_on_cpu", "k4", {}, DeviceInfo{}, "device", {"cpu", "k4", "cuda"}},
        Refusal{"cpu_kernel_on_gpu", "cpu", {}, kH200, "device", {"cuda:0", "the cpu"}},
        Refusal{"dtype", "k1", {.dtype = DType::fp16}, kH200, "q", {"fp16", "k1", "bf16"}},
        Refusal{"head_dim", "k3_2", {.head_dim = 96}, kH200, "q", {"96", "64, 128"}},
        Refusal{"too_many_rows",
                "k4",
                {.batch = 1 << 20, .q_len = 1 << 20},
                kH200,
                "q",
                {"1048576", "2^28"}},
        Refusal{"window", "k6", {.window = true}, kH200, "window", {"k6", "takes none"}},
        Refusal{"softcap", "k4", {.softcap = true}, kH200, "softcap", {"k4", "takes none"}},
        Refusal{"sinks", "k5", {.sinks = true}, kH200, "sinks", {"k5", "takes none"}},
        Refusal{"packed",
                "k6",
                {.packed = true},
                kH200,
                "packed",
                {"cu_seqlens_q, cu_seqlens_k or seqused_k is given", "k6", "takes none"}},
        Refusal{"unnormalized",
                "k6",
                {.unnormalized = true},
                kH200,
                "unnormalized",
                {"row_max and row_sum are given", "k6", "takes none"}},
        Refusal{"value_dim",
                "k6",
                {.head_dim = 128, .value_dim = 64},
                kH200,
                "q",
                {"128 (v 64)", "64, 128, 256"}},
        Refusal{"row_head_dim", "flash/3", {.head_dim = 128}, kH200, "q", {"128", "flash/3", "96"}},
        Refusal{"row_dtype",
                "flash/7",
                {.dtype = DType::fp16},
                kH200,
                "q",
                {"fp16", "flash/7", "takes bf16"}},
        Refusal{"row_packed", "flash/6", {.packed = true}, kH200, "packed", {"flash/6"}},
        Refusal{"row_window", "flash/6", {.window = true}, kH200, "window", {"flash/6"}},
        Refusal{"row_causal",
                "flash/7",
                {.q_len = 256, .kv_len = 256, .causal = true},
                kH200,
                "causal",
                {"flash/7", "takes no mask"}},
        Refusal{"row_odd_tiles",
                "flash/6",
                {.q_len = 257, .kv_len = 256},
                kH200,
                "q",
                {"seqlen 257", "flash/6", "a multiple of 2 tiles of 128 rows"}},
        // S: 4 * 32 * 65536 * 65536 bytes.
        Refusal{"scores_do_not_fit",
                "k1",
                {.q_len = 65536, .kv_len = 65536, .heads = 32},
                kH200,
                "workspace",
                {"549755813888", "141000000000", "NVIDIA H200"}}),
    [](const auto& parameter) { return parameter.param.description; });

TEST(WorkspaceBytes, OnlyK1NeedsMemoryForTheScores) {
  const AttentionProblem problem{.batch = 3, .q_len = 100, .kv_len = 200, .heads = 5};
  for (const Kernel<Attention>& k : kernels<Attention>()) {
    EXPECT_EQ(workspace_bytes(k, problem, kH200), k.info.name == "k1" ? 4u * 3 * 5 * 100 * 200 : 0u)
        << k.info.name;
  }
}

TEST(WorkspaceBytes, OfTheLargestProblems) {
  constexpr std::int64_t kLargest = (std::int64_t{1} << 30) - 1;
  constexpr std::int64_t kMostRows = 1 << 28;
  EXPECT_EQ(workspace_bytes(kernel("k1"), {.q_len = kMostRows, .kv_len = kLargest}, kH200),
            4u * kMostRows * kLargest);
  EXPECT_EQ(workspace_bytes(named<GemmNvfp4>("nvfp4"),
                            {.m = kLargest, .n = 16, .k = 16, .b_is_packed = true}, kH200),
            0u);
}

void expect_refused(const std::function<void()>& call, ErrorCode code, const char* argument,
                    const char* message) {
  try {
    call();
    ADD_FAILURE() << "no exception: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.argument(), argument);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(WorkspaceBytes, IsRefusedForSizesThatNoTensorHas) {
  const Kernel<GemmNvfp4>& gemm = named<GemmNvfp4>("nvfp4");
  for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 30}) {
    const std::string message = "is " + std::to_string(size) + ", must be at least 1";
    for (const auto& [argument, problem] : {std::pair{"m", GemmNvfp4Problem{.m = size}},
                                            {"n", GemmNvfp4Problem{.n = size}},
                                            {"k", GemmNvfp4Problem{.k = size}},
                                            {"l", GemmNvfp4Problem{.l = size}}}) {
      expect_refused([&] { std::ignore = workspace_bytes(gemm, problem, kH200); },
                     ErrorCode::invalid_argument, argument, message.c_str());
    }
    for (const auto& [argument, problem] : {std::pair{"batch", AttentionProblem{.batch = size}},
                                            {"q_len", AttentionProblem{.q_len = size}},
                                            {"kv_len", AttentionProblem{.kv_len = size}},
                                            {"heads", AttentionProblem{.heads = size}},
                                            {"kv_heads", AttentionProblem{.kv_heads = size}},
                                            {"head_dim", AttentionProblem{.head_dim = size}}}) {
      expect_refused([&] { std::ignore = workspace_bytes(kernel("flash"), problem, kH200); },
                     ErrorCode::invalid_argument, argument, message.c_str());
    }
  }
}

// Their tickets would not fit.
TEST(WorkspaceBytes, IsRefusedForTooManyPartsOfTiles) {
  const AttentionProblem problem{.batch = (1 << 23) + 8,
                                 .kv_len = 32768,
                                 .head_dim = 64,
                                 .causal = true,
                                 .batch_invariant = true};
  expect_refused([&] { std::ignore = workspace_bytes(kernel("flash"), problem, kH200); },
                 ErrorCode::unsupported, "q", "in 32 parts of the keys");
  AttentionProblem fewer = problem;
  fewer.batch = 1 << 22;
  EXPECT_GT(workspace_bytes(kernel("flash"), fewer, kH200), std::size_t{1} << 30);
}

TEST(CanRun, TheCpuKernelRefusesHeadDimsBeyondItsScratch) {
  const DeviceInfo& cpu = device_info({DeviceKind::cpu, 0});
  EXPECT_FALSE(can_run(kernel("cpu"), {.head_dim = 16384}, cpu));
  for (const AttentionProblem& problem :
       {AttentionProblem{.head_dim = 16385}, {.head_dim = 64, .value_dim = 1 << 25}}) {
    const auto reason = can_run(kernel("cpu"), problem, cpu);
    ASSERT_TRUE(reason);
    EXPECT_EQ(reason->argument, "q");
    EXPECT_THAT(reason->message, HasSubstr("kernel cpu takes at most 16384"));
  }
}

TEST(DeviceInfo, OfTheCpuIsFilledIn) {
  const DeviceInfo& cpu = device_info({DeviceKind::cpu, 0});
  EXPECT_FALSE(cpu.name.empty());
  EXPECT_GE(cpu.multiprocessors, 1);
  EXPECT_GT(cpu.memory_bytes, std::size_t{1} << 28);
}

TEST(DeviceInfo, OfAMissingGpuIsRefused) {
  const int missing = cuda_device_count();
  try {
    device_info({DeviceKind::cuda, missing});
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::no_device);
    EXPECT_EQ(error.argument(), "device");
    EXPECT_THAT(error.what(), HasSubstr("cuda:" + std::to_string(missing)));
  }
}

}  // namespace
}  // namespace tilewright
