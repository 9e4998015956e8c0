// How the kernel flash_fp8 runs a problem, decided on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cuda/attention/flash/plan.hpp"
#include "cuda/attention/flash_fp8/configs.hpp"
#include "ops/plan.hpp"
#include "tilewright/attention_fp8_kernels.hpp"

namespace tilewright::cuda {
namespace {

const Kernel<AttentionFp8>& flash_fp8() { return *find_kernel<AttentionFp8>("flash_fp8"); }

AttentionFp8Problem square(std::int64_t batch, std::int64_t length, std::int64_t heads,
                           std::int64_t head_dim, bool causal = false) {
  AttentionFp8Problem problem;
  problem.batch = batch;
  problem.q_len = problem.kv_len = length;
  problem.heads = problem.kv_heads = heads;
  problem.head_dim = problem.value_dim = head_dim;
  problem.causal = causal;
  problem.v_transposed = true;
  return problem;
}

Plan plan_of(const AttentionFp8Problem& problem, int sms = 132) {
  DeviceInfo gpu;
  gpu.multiprocessors = sms;
  return flash_fp8().plan(problem, gpu);
}

FlashPlan details_of(const AttentionFp8Problem& problem, int sms = 132) {
  return plan_of(problem, sms).details<FlashDetails>().plan;
}

TEST(FlashFp8Plan, OfEachHeadDimIsTheConfigOfThatHeadDim) {
  std::vector<int> head_dims;
  for (const HeadDims dims : flash_fp8().facts.head_dims) {
    head_dims.push_back(dims.qk);
    EXPECT_EQ(dims.v, dims.qk);
    for (const DType dtype : flash_fp8().info.dtypes) {
      for (const std::int64_t length : {1, 64, 1000, 16384}) {
        for (const bool causal : {false, true}) {
          AttentionFp8Problem problem = square(2, length, 16, dims.qk, causal);
          problem.dtype = dtype;
          const FlashConfig& config = kFp8Configs[details_of(problem).config];
          EXPECT_EQ(config.head_dim, dims.qk);
          EXPECT_EQ(config.value_dim, dims.v);
          EXPECT_TRUE(config.takes(dtype));
        }
      }
    }
  }
  EXPECT_THAT(head_dims, testing::ElementsAre(64, 128, 256));
}

TEST(FlashFp8Plan, ThreeConsumersAreForProblemsOfManyTiles) {
  const auto consumers = [](const AttentionFp8Problem& problem) {
    return kFp8Configs[details_of(problem).config].consumers;
  };
  for (const std::int64_t head_dim : {64, 128}) {
    EXPECT_EQ(consumers(square(1, 16384, 16, head_dim)), 3);
    EXPECT_EQ(consumers(square(1, 200, 4, head_dim)), 2);
    EXPECT_EQ(consumers(square(32, 512, 16, head_dim, /*causal=*/true)), 2);
  }
  AttentionFp8Problem capped = square(1, 16384, 16, 128);
  capped.softcap = true;
  EXPECT_EQ(consumers(capped), 2);  // three have no kernel with features
  EXPECT_EQ(consumers(square(1, 16384, 16, 256)), 2);
}

TEST(FlashFp8Plan, IsMadeForAnUnknownGpu) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    EXPECT_EQ(plan_of(square(2, 4096, 8, head_dim), /*sms=*/0).splits, 1);
  }
}

TEST(FlashFp8Plan, TicketsAreForTilesOfDifferentLength) {
  EXPECT_FALSE(details_of(square(1, 4096, 16, 256)).is_dynamic);
  EXPECT_EQ(plan_of(square(1, 4096, 16, 256)).workspace_bytes, 0u);
  EXPECT_TRUE(details_of(square(1, 4096, 16, 256, /*causal=*/true)).is_dynamic);
  AttentionFp8Problem windowed = square(1, 4096, 16, 256);
  windowed.window = true;
  EXPECT_TRUE(details_of(windowed).is_dynamic);
}

TEST(FlashFp8Plan, SectionsHaveTwiceAsManyHeadsAsThoseOf16Bits) {
  AttentionProblem problem = square(1, 16384, 64, 128, /*causal=*/true);
  EXPECT_EQ(details_of(square(1, 16384, 64, 128, /*causal=*/true)).section,
            2 * plan_flash(problem, 132).section);
}

TEST(FlashFp8Plan, KeysAreCutWhereSmsWouldIdle) {
  EXPECT_EQ(plan_of(square(8, 4096, 16, 256)).splits, 1);
  for (const std::int64_t head_dim : {64, 128, 256}) {
    AttentionFp8Problem few = square(1, 8192, 8, head_dim);
    few.q_len = 1;
    const FlashPlan plan = details_of(few);
    EXPECT_EQ(plan.splits, 8);
    EXPECT_EQ(plan_of(few).splits, plan.splits);
    EXPECT_EQ(plan.split_len % kFp8Configs[plan.config].bc, 0);
    EXPECT_GE(static_cast<std::int64_t>(plan.splits) * plan.split_len, few.kv_len);
    EXPECT_GE(plan_of(few).workspace_bytes,
              sizeof(float) * static_cast<std::size_t>(8 * 8 * (head_dim + 2)));
  }
}

TEST(FlashFp8Plan, OfABatchInvariantCallDoesNotDependOnTheBatch) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    AttentionFp8Problem problem = square(1, 8192, 4, head_dim);
    problem.q_len = 200;
    problem.batch_invariant = true;
    const FlashPlan alone = details_of(problem);
    EXPECT_GT(alone.splits, 1);
    for (const std::int64_t batch : {2, 7, 1000}) {
      problem.batch = batch;
      const FlashPlan plan = details_of(problem);
      EXPECT_EQ(plan.config, alone.config);
      EXPECT_EQ(plan.splits, alone.splits);
      EXPECT_EQ(plan.split_len, alone.split_len);
    }
  }
}

}  // namespace
}  // namespace tilewright::cuda
