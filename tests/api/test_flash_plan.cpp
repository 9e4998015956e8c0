// How the flash kernel runs a problem, decided on the host.
#include <gtest/gtest.h>

#include "cuda/attention/flash/plan.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::cuda {
namespace {

constexpr int kSms = 132;

AttentionProblem square(std::int64_t batch, std::int64_t length, std::int64_t heads,
                        std::int64_t head_dim, bool causal = false) {
  return {.batch = batch,
          .q_len = length,
          .kv_len = length,
          .heads = heads,
          .kv_heads = heads,
          .head_dim = head_dim,
          .causal = causal};
}

FlashPlan plan_of(int splits, bool is_dynamic) {
  return {.config = 0, .splits = splits, .split_len = 0, .section = 1, .is_dynamic = is_dynamic};
}

const FlashConfig& config_of(const AttentionProblem& problem) {
  return kFlashConfigs[plan_flash(problem, kSms).config];
}

TEST(FlashPlan, HasAConfigForAllThatTheTableOfKernelsPromises) {
  const Kernel<Attention>& flash = *find_kernel<Attention>("flash");
  for (const HeadDims dims : flash.facts.head_dims) {
    for (const DType dtype : flash.info.dtypes) {
      for (const std::int64_t length : {1, 64, 128, 1000, 1024, 2048, 8192, 16384}) {
        for (const bool causal : {false, true}) {
          AttentionProblem problem = square(2, length, 16, dims.qk, causal);
          problem.dtype = dtype;
          problem.value_dim = dims.v;
          const FlashConfig& config = config_of(problem);
          EXPECT_EQ(config.head_dim, dims.qk);
          EXPECT_EQ(config.value_dim, dims.v);
          EXPECT_TRUE(config.takes(dtype));
        }
      }
    }
  }
}

TEST(FlashPlan, SharesKvOnlyWhereNeighboursWalkAlike) {
  EXPECT_EQ(config_of(square(1, 16384, 16, 128)).cluster, 2);
  EXPECT_EQ(config_of(square(1, 16384, 16, 128, /*causal=*/true)).cluster, 1);
  EXPECT_EQ(config_of(square(1, 16384 + 1, 16, 128)).cluster, 1) << "an odd number of row tiles";
  AttentionProblem packed = square(4, 16384, 16, 128);
  packed.packed = packed.packed_queries = true;
  EXPECT_EQ(config_of(packed).cluster, 1);
}

TEST(FlashPlan, TakesNoClusterUnderASoftCap) {
  AttentionProblem capped = square(1, 16384, 16, 128);
  capped.softcap = true;
  EXPECT_EQ(config_of(capped).cluster, 1);
}

TEST(FlashPlan, TakesSmallTilesWhereLargerOnesLeaveSmsIdle) {
  const auto rows_of = [](const AttentionProblem& problem) { return config_of(problem).br(); };
  EXPECT_EQ(rows_of(square(32, 512, 32, 64)), 192);
  EXPECT_EQ(rows_of(square(32, 512, 32, 64, /*causal=*/true)), 128);
  EXPECT_EQ(rows_of(square(4, 4096, 32, 64, /*causal=*/true)), 192);
  EXPECT_EQ(rows_of(square(1, 4096, 8, 64)), 128) << "2 rounds of 128 rows beside 2 of 192";
  EXPECT_EQ(rows_of(square(32, 512, 21, 96)), 128);
  EXPECT_EQ(rows_of(square(2, 8192, 21, 96)), 192);
  EXPECT_EQ(rows_of(square(2, 8192, 21, 96, /*causal=*/true)), 192);
  EXPECT_EQ(rows_of(square(1, 2048, 8, 128)), 128);
  EXPECT_EQ(rows_of(square(1, 2048, 8, 128, /*causal=*/true)), 64) << "tiles of all lengths";
}

TEST(FlashPlan, TakesLargeTilesOfAChunkWhoseKeysFillTheSms) {
  const auto plan_of_chunk = [](std::int64_t tokens, std::int64_t keys) {
    AttentionProblem chunk = square(1, keys, 32, 128, /*causal=*/true);
    chunk.q_len = tokens;
    return plan_flash(chunk, kSms);
  };
  const auto rows_of = [](const FlashPlan& plan) { return kFlashConfigs[plan.config].br(); };
  EXPECT_EQ(rows_of(plan_of_chunk(512, 8192)), 128) << "128 even tiles";
  EXPECT_EQ(rows_of(plan_of_chunk(512, 600)), 64) << "128 tiles of all lengths";
  EXPECT_EQ(rows_of(plan_of_chunk(128, 8192)), 128);
  EXPECT_EQ(plan_of_chunk(128, 8192).splits, 4);
  EXPECT_EQ(rows_of(plan_of_chunk(128, 2048)), 64) << "too few keys for four splits";
  EXPECT_EQ(rows_of(plan_of_chunk(64, 8192)), 64) << "no tile has more rows";
}

TEST(FlashPlan, IsMadeForAnUnknownGpu) {
  for (const std::int64_t head_dim : {64, 128, 256}) {
    EXPECT_EQ(plan_flash(square(2, 4096, 8, head_dim), /*sms=*/0).splits, 1);
  }
}

TEST(FlashPlan, RunsInTheRowThatIsAskedFor) {
  const AttentionProblem problem = square(1, 16384, 16, 128);
  for (const int row : {5, 6, 7, 8}) {
    EXPECT_EQ(plan_flash(problem, kSms, row).config, row);
  }
}

TEST(FlashPlan, OfARowWithSmallTilesCutsKeysByTheirNumber) {
  const AttentionProblem problem = square(1, 4096, 1, 128);
  EXPECT_EQ(plan_flash(problem, kSms, 5).splits, 4);  // 32 tiles of 128 rows
  EXPECT_EQ(plan_flash(problem, kSms, 8).splits, 2);  // 64 tiles of 64
}

TEST(FlashPlan, NamesTheVariantThatItTakes) {
  const Kernel<Attention>& flash = *find_kernel<Attention>("flash");
  DeviceInfo gpu;
  gpu.multiprocessors = kSms;
  for (const bool causal : {false, true}) {
    const AttentionProblem problem = square(1, 16384, 16, 128, causal);
    const Kernel<Attention>* const variant = variant_of(flash, problem, gpu);
    ASSERT_NE(variant, nullptr);
    EXPECT_EQ(variant - flash.variants.data(), plan_flash(problem, kSms).config);
  }
  EXPECT_EQ(variant_of(flash, square(1, 512, 1, 80), gpu), nullptr);
  constexpr int kLargest = (1 << 30) - 1;  // rows that no launch takes
  EXPECT_EQ(variant_of(flash, square(kLargest, kLargest, kLargest, 128), gpu), nullptr);
}

TEST(FlashPlan, TicketsAreForTilesOfDifferentLength) {
  EXPECT_FALSE(plan_flash(square(1, 4096, 16, 128), kSms).is_dynamic);
  EXPECT_TRUE(plan_flash(square(1, 4096, 16, 128, true), kSms).is_dynamic);
  AttentionProblem windowed = square(1, 4096, 16, 128);
  windowed.window = true;
  EXPECT_TRUE(plan_flash(windowed, kSms).is_dynamic);
}

TEST(FlashPlan, SectionsAreOfEqualSizeAndHoldWholeGroups) {
  for (const std::int64_t length : {512, 4096, 16384}) {
    AttentionProblem problem = square(16384 / length, length, 16, 128, true);
    problem.kv_heads = 4;
    const int section = plan_flash(problem, kSms).section;
    EXPECT_EQ(section % 4, 0);
    EXPECT_EQ(problem.batch * problem.heads % section, 0) << length;
  }
}

TEST(FlashPlan, KeysAreCutWhereSmsWouldIdle) {
  EXPECT_EQ(plan_flash(square(8, 4096, 16, 128), kSms).splits, 1);
  AttentionProblem decode = square(1, 8192, 8, 128);
  decode.q_len = 1;
  const FlashPlan plan = plan_flash(decode, kSms);
  EXPECT_GT(plan.splits, 1);
  EXPECT_EQ(plan.split_len % kFlashConfigs[plan.config].bc, 0);
  EXPECT_GE(static_cast<std::int64_t>(plan.splits) * plan.split_len, decode.kv_len);
  EXPECT_LT(static_cast<std::int64_t>(plan.splits - 1) * plan.split_len, decode.kv_len);

  AttentionProblem used_lengths = decode;
  used_lengths.packed = true;
  EXPECT_EQ(plan_flash(used_lengths, kSms).splits, plan.splits);
  AttentionProblem packed_keys = used_lengths;
  packed_keys.packed_keys = true;
  EXPECT_EQ(plan_flash(packed_keys, kSms).splits, 1);
}

TEST(FlashPlan, KeysOfUsedLengthsAreNotCutWhereBatchInvariant) {
  for (const std::int64_t kv_len : {2048, 8192}) {
    AttentionProblem problem = square(1, kv_len, 8, 128);
    problem.q_len = 1;
    problem.packed = problem.batch_invariant = true;
    EXPECT_EQ(plan_flash(problem, kSms).splits, 1);
  }
}

TEST(FlashPlan, OfABatchInvariantCallDoesNotDependOnTheBatch) {
  for (const std::int64_t q_len : {1, 64, 500, 4096}) {
    AttentionProblem problem = square(1, 8192, 8, 128);
    problem.q_len = q_len;
    problem.batch_invariant = true;
    const FlashPlan alone = plan_flash(problem, kSms);
    for (const std::int64_t batch : {2, 7, 64, 1000}) {
      problem.batch = batch;
      const FlashPlan plan = plan_flash(problem, kSms);
      EXPECT_EQ(plan.config, alone.config);
      EXPECT_EQ(plan.splits, alone.splits);
      EXPECT_EQ(plan.split_len, alone.split_len);
    }
  }
}

TEST(FlashPlan, OfABatchInvariantPackedCallDoesNotDependOnTheTokensOfAll) {
  for (const FlashConfig& config : kFlashConfigs) {
    AttentionProblem problem = square(1, 100, 8, config.head_dim, /*causal=*/true);
    problem.value_dim = config.value_dim;
    problem.packed = problem.packed_queries = problem.batch_invariant = true;
    const FlashPlan alone = plan_flash(problem, kSms);
    for (const std::int64_t tokens : {1024, 1025, 2048, 100000}) {
      problem.batch = tokens / 100;
      problem.q_len = problem.kv_len = tokens;
      const FlashPlan plan = plan_flash(problem, kSms);
      EXPECT_EQ(plan.config, alone.config) << config.head_dim << ", " << tokens << " tokens";
      EXPECT_EQ(plan.splits, 1);
    }
  }
}

TEST(FlashWorkspace, HoldsATicketAndTheParts) {
  EXPECT_EQ(flash_workspace(square(1, 4096, 16, 128), plan_of(1, false)).bytes, 0u);
  EXPECT_EQ(flash_workspace(square(1, 4096, 16, 128), plan_of(1, true)).bytes, 256u);
  AttentionProblem problem = square(2, 8192, 3, 192);
  problem.q_len = 5;
  problem.value_dim = 128;
  const FlashWorkspace at = flash_workspace(problem, plan_of(4, true));
  const std::size_t rows = std::size_t{4} * 2 * 3 * 5;
  EXPECT_EQ(at.ticket, 0u);
  EXPECT_GE(at.row_sum, at.row_max + 4 * rows);
  EXPECT_GE(at.o, at.row_sum + 4 * rows);
  EXPECT_GE(at.bytes, at.o + 4 * rows * 128);
  for (const std::size_t offset : {at.row_max, at.row_sum, at.o, at.bytes}) {
    EXPECT_EQ(offset % 256, 0u);
  }
}

}  // namespace
}  // namespace tilewright::cuda
