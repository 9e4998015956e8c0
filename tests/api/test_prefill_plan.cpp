// Which problems the prefill kernel takes, its plan, and the boxes that it loads: all of it is
// computed without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "cuda/attention/blocks/cache_boxes.hpp"
#include "cuda/attention/prefill/plan.hpp"
#include "ops/attention_with_kvcache/kernels.hpp"
#include "problems/random.hpp"
#include "registry_test.hpp"

namespace tilewright::cuda {
namespace {

using Problem = AttentionWithKvCacheProblem;

constexpr int kSms = 132;

Problem problem_of(int batch, int q_len, bool packed = false) {
  return {.batch = batch,
          .q_len = q_len,
          .cache_rows = batch,
          .capacity = 32768,
          .heads = 32,
          .kv_heads = 8,
          .packed = packed};
}

// The name of the kernel that `auto` takes on an H200: the last of the table that may and can.
std::string fastest(const Problem& problem) {
  std::string name;
  for (const auto& kernel : kernels<AttentionWithKvCache>()) {
    if (kernel.info.device == DeviceKind::cuda && suits(kernel, problem) &&
        !kernel.refuses(kernel, problem, kH200)) {
      name = kernel.info.name;
    }
  }
  return name;
}

// ---- Boxes

TEST(CacheBoxes, ATileHasTheBoxesOfItsSeenKeys) {
  test::Random pick(20261124);
  const auto random = [&](int low, int high) { return static_cast<int>(pick(low, high)); };
  for (int i = 0; i < 20000; ++i) {
    const int bc = 1 << random(6, 7);
    const int page_size = random(0, 3) == 0 ? 0 : random(1, 300);
    const CacheBoxes boxes = cache_boxes(page_size, largest_box(page_size, bc));
    ASSERT_EQ(bc % boxes.rows(), 0);
    const int seen_end = random(1, 3000);
    const int seen_first = random(0, 1) == 0 ? 0 : random(0, seen_end - 1);
    const int tile = random(seen_first / bc, (seen_end - 1) / bc);
    const BoxRange range = boxes.of_tile(tile, bc, seen_first, seen_end);
    ASSERT_GT(range.count(), 0);
    ASSERT_LE(range.count() * boxes.rows(), bc);
    for (int key = tile * bc; key < (tile + 1) * bc; ++key) {
      const bool is_seen = key >= seen_first && key < seen_end;
      ASSERT_TRUE(!is_seen || range.contains(key / boxes.rows())) << key;
    }
    // Its first and last box each have a key that is seen, so that their pages exist.
    ASSERT_GT((range.first + 1) * boxes.rows(), seen_first);
    ASSERT_LT((range.end - 1) * boxes.rows(), seen_end);
  }
}

TEST(CacheBoxes, ABoxLiesInOnePage) {
  for (const int bc : {64, 128}) {
    for (int page_size = 1; page_size <= 300; ++page_size) {
      const CacheBoxes boxes = cache_boxes(page_size, largest_box(page_size, bc));
      ASSERT_EQ(page_size % boxes.rows(), 0);
      for (int box = 0; box < 200; ++box) {
        const int key = box * boxes.rows();
        ASSERT_EQ(boxes.page_of(box), key / page_size);
        ASSERT_EQ(boxes.row_in_page(box), key % page_size);
      }
    }
  }
}

TEST(CacheBoxes, WithoutPagesABoxIsATile) {
  const CacheBoxes boxes = cache_boxes(0, largest_box(0, 128));
  EXPECT_EQ(boxes.rows(), 128);
  EXPECT_EQ(boxes.page_of(1000), 0);
  EXPECT_EQ(boxes.row_in_page(1000), 128000);
}

// A range without keys, as of a sequence whose padding is its length.
TEST(CacheBoxes, NoSeenKeysNeedNoBytes) {
  const CacheBoxes boxes = cache_boxes(16, 16);
  for (int len = 1; len <= 128; ++len) {
    const int count = boxes.of_tile(0, 128, len, len).count();
    EXPECT_GE(count, 0);
    EXPECT_LE(count, 1);
  }
}

// ---- Which kernel runs

TEST(PrefillPlan, ChunksRunInPrefillAndFewTokensInDecode) {
  EXPECT_EQ(fastest(problem_of(4, 1)), "decode");
  EXPECT_EQ(fastest(problem_of(4, 32)), "decode");
  EXPECT_EQ(fastest(problem_of(4, 33)), "prefill");
  EXPECT_EQ(fastest(problem_of(1, 2048)), "prefill");
}

TEST(PrefillPlan, HeadDimsHaveTheirOwnMostTokensOfDecode) {
  for (const auto& [qk, v, most] :
       {std::tuple{64, 64, 32}, {96, 96, 16}, {128, 128, 32}, {192, 128, 16}, {256, 256, 16}}) {
    for (const DType cache_dtype : {DType::bf16, DType::e4m3}) {
      Problem p = problem_of(4, most);
      p.head_dim = qk;
      p.value_dim = v;
      p.cache_dtype = cache_dtype;
      EXPECT_EQ(fastest(p), "decode") << qk;
      ++p.q_len;
      EXPECT_EQ(fastest(p), "prefill") << qk;
    }
  }
}

// The host does not know how many new tokens each packed sequence has, unless it is told the most.
TEST(PrefillPlan, TheLongestPackedSequenceDecides) {
  Problem p = problem_of(8, 128, true);
  EXPECT_EQ(fastest(p), "prefill");
  p.max_seqlen_q = 33;
  EXPECT_EQ(fastest(p), "prefill");
  p.max_seqlen_q = 32;
  EXPECT_EQ(fastest(p), "decode");
  p.batch_invariant = true;
  EXPECT_EQ(fastest(p), "prefill");
}

// Where the longest sequence is told, and all others must be as long, decode has none to run.
TEST(PrefillPlan, PackedSequencesThatMustBeChunksAreNotLeftToDecode) {
  Problem p = problem_of(3, 192, true);
  EXPECT_EQ(plan_chunks(p, kSms).plan.others_tokens, 32);
  p.max_seqlen_q = 79;  // the third may have 34
  EXPECT_EQ(plan_chunks(p, kSms).plan.others_tokens, 0);
  EXPECT_EQ(plan_chunks(p, kSms).bytes, kPrefillDecodeAt);
  p.max_seqlen_q = 80;
  EXPECT_EQ(plan_chunks(p, kSms).plan.others_tokens, 32);
  p.max_seqlen_q = 64;
  p.batch_invariant = true;
  EXPECT_EQ(plan_chunks(p, kSms).plan.others_tokens, 32);
}

// A host that says too little, or none, does not leave a sequence out.
TEST(PrefillPlan, WithoutChunksDecodeRunsSequencesOfAnyLength) {
  for (const auto& [batch, told] : {std::pair{1, 3}, {1, 16}, {8, 3}, {8, 16}}) {
    Problem p = problem_of(batch, 128, true);
    p.max_seqlen_q = told;
    const PrefillDetails details = plan_chunks(p, kSms);
    EXPECT_EQ(details.plan.others_tokens, 128);
    EXPECT_EQ(details.decode.plan.most_tokens, 128);
    EXPECT_EQ(details.plan.splits, 1);
    EXPECT_FALSE(details.plan.joins);
    EXPECT_EQ(details.bytes, kPrefillDecodeAt + details.decode.at.bytes);
  }
}

TEST(PrefillPlan, APackedSequenceByItselfIsPlannedAsOneThatIsNotPacked) {
  for (const int q_len : {1, 32, 33, 128, 300, 2048}) {
    const Problem packed = problem_of(1, q_len, true);
    const Problem other = problem_of(1, q_len);
    EXPECT_EQ(fastest(packed), fastest(other)) << q_len;
    EXPECT_EQ(plan_chunks(packed, kSms).plan.splits, plan_chunks(other, kSms).plan.splits) << q_len;
    EXPECT_EQ(plan_chunks(packed, kSms).bytes, plan_chunks(other, kSms).bytes) << q_len;
  }
  EXPECT_EQ(plan_chunks(problem_of(1, 128, true), kSms).plan.splits, 4);
  EXPECT_EQ(plan_chunks(problem_of(1, 128, true), kSms).plan.others_tokens, 0);
  Problem p = problem_of(1, 128, true);
  p.batch_invariant = true;
  EXPECT_EQ(plan_chunks(p, kSms).plan.splits, 1);
  EXPECT_EQ(plan_chunks(p, kSms).plan.others_tokens, 32);
}

TEST(PrefillPlan, APackedBatchOfOneTokenEachRunsInDecode) {
  EXPECT_EQ(fastest(problem_of(128, 128, true)), "decode");
  EXPECT_EQ(fastest(problem_of(128, 159, true)), "decode");
  EXPECT_EQ(fastest(problem_of(128, 160, true)), "prefill");  // one may have 33
  EXPECT_EQ(fastest(problem_of(4, 32, true)), "decode");
  EXPECT_EQ(fastest(problem_of(64, 2108, true)), "prefill");
}

// Which kernel runs a sequence must not depend on how many others there are.
TEST(PrefillPlan, ABatchInvariantBatchIsNotJudgedByItsSize) {
  Problem p = problem_of(128, 128, true);
  p.batch_invariant = true;
  EXPECT_EQ(fastest(p), "prefill");
  p.q_len = most_decode_tokens(p);  // none can be a chunk
  EXPECT_EQ(fastest(p), "decode");
}

TEST(PrefillPlan, WhatIsRefusedIsNamed) {
  const auto& prefill = named<AttentionWithKvCache>("prefill");
  Problem odd = problem_of(2, 100);
  odd.cache_dtype = DType::e4m3;
  odd.head_dim = 96;
  odd.page_size = 1;
  const auto pages = prefill.refuses(prefill, odd, kH200);
  ASSERT_TRUE(pages);
  EXPECT_EQ(pages->argument, "k_cache");
  EXPECT_NE(pages->message.find("page_size 1"), std::string::npos) << pages->message;
}

TEST(PrefillPlan, ChunksOverE4m3CachesRunInPrefill) {
  Problem p = problem_of(1, 2048);
  p.cache_dtype = DType::e4m3;
  EXPECT_EQ(fastest(p), "prefill");
  p.dtype = DType::e4m3;
  EXPECT_EQ(fastest(p), "prefill");
  p.row_descales = true;
  const auto& prefill = named<AttentionWithKvCache>("prefill");
  const auto reason = can_run(prefill, p, kH200);
  ASSERT_TRUE(reason);
  EXPECT_EQ(reason->argument, "row descales");
}

TEST(PrefillPlan, PagesOfTooFewE4m3RowsAreRefusedByName) {
  const auto& prefill = named<AttentionWithKvCache>("prefill");
  Problem p = problem_of(1, 2048);
  p.cache_dtype = DType::e4m3;
  for (const auto& [head_dim_of_q, rows] :
       {std::pair{64, 2}, {96, 4}, {128, 1}, {192, 2}, {256, 1}}) {
    p.head_dim = head_dim_of_q;
    p.value_dim = head_dim_of_q == 192 ? 128 : 0;
    for (const int page_size : {1, 2, 3, 4, 6, 8, 16}) {
      p.page_size = page_size;
      p.capacity = 1000 * page_size;
      const auto reason = prefill.refuses(prefill, p, kH200);
      EXPECT_EQ(reason.has_value(), page_size % rows != 0) << head_dim_of_q << ' ' << page_size;
      if (reason) {
        EXPECT_NE(reason->message.find("multiples of " + std::to_string(rows)), std::string::npos)
            << reason->message;
      }
    }
  }
}

TEST(PrefillPlan, VariantsTakeAnyLengthAndAnyPage) {
  const auto& prefill = named<AttentionWithKvCache>("prefill");
  ASSERT_EQ(prefill.variants.size(), static_cast<std::size_t>(kPrefillConfigCount));
  for (const auto& variant : prefill.variants) {
    for (const int q_len : {1, 64, 65, 5000}) {
      for (int page_size = 1; page_size <= 256; ++page_size) {
        Problem p = problem_of(2, q_len);
        p.head_dim = variant.facts.head_dims.front().qk;
        p.value_dim = variant.facts.head_dims.front().v;
        p.page_size = page_size;
        p.capacity = 100 * page_size;
        EXPECT_FALSE(variant.refuses(variant, p, kH200)) << page_size;
      }
    }
  }
}

// ---- The plan

TEST(PrefillPlan, EachPairOfHeadDimsHasItsConfig) {
  for (int i = 0; i < kPrefillConfigCount; ++i) {
    Problem p = problem_of(1, 2048);
    p.head_dim = kPrefillConfigs[i].head_dim;
    p.value_dim = kPrefillConfigs[i].value_dim;
    EXPECT_EQ(prefill_config(p), i);
  }
  Problem p = problem_of(1, 2048);
  p.head_dim = 80;
  EXPECT_EQ(prefill_config(p), std::nullopt);
}

// So that a config's number serves both tables.
TEST(PrefillPlan, ConfigsOverE4m3CachesHaveTheirNamesakesHeadDims) {
  for (int i = 0; i < kPrefillConfigCount; ++i) {
    EXPECT_EQ(kPrefillE4m3Configs[i].head_dim, kPrefillConfigs[i].head_dim);
    EXPECT_EQ(kPrefillE4m3Configs[i].value_dim, kPrefillConfigs[i].value_dim);
  }
}

// Results over caches of both dtypes are to have the same bits, and splits are merged.
TEST(PrefillPlan, AnE4m3CacheIsSplitAsOneOf16BitsIs) {
  for (const PrefillConfig& config : kPrefillConfigs) {
    for (const int q_len : {65, 128, 200, 512, 2048}) {
      Problem p = problem_of(1, q_len);
      p.heads = 16;
      p.kv_heads = 4;
      p.head_dim = config.head_dim;
      p.value_dim = config.value_dim;
      const int splits = plan_chunks(p, kSms).plan.splits;
      p.cache_dtype = DType::e4m3;
      EXPECT_EQ(plan_chunks(p, kSms).plan.splits, splits) << config.head_dim << ' ' << q_len;
    }
  }
}

TEST(PrefillPlan, ALoadBringsTheLargestPieceOfPageAndTile) {
  Problem p = problem_of(1, 2048);
  const auto box_rows = [&](int page_size) {
    p.page_size = page_size;
    return plan_chunks(p, kSms).plan.box_rows;
  };
  EXPECT_EQ(box_rows(0), 128);
  EXPECT_EQ(box_rows(256), 128);
  EXPECT_EQ(box_rows(64), 64);
  EXPECT_EQ(box_rows(192), 64);
  EXPECT_EQ(box_rows(48), 16);
  EXPECT_EQ(box_rows(1), 1);
}

TEST(PrefillPlan, RowsOfSmallPagesAreCopied) {
  Problem p = problem_of(1, 2048);
  const auto plan = [&](int page_size) {
    p.page_size = page_size;
    return plan_chunks(p, kSms).plan;
  };
  EXPECT_FALSE(plan(0).copies_rows);
  for (const int page_size : {1, 2, 3, 5, 6, 7, 9, 250}) {
    EXPECT_TRUE(plan(page_size).copies_rows) << page_size;
    EXPECT_EQ(plan(page_size).box_rows, 1) << page_size;
  }
  for (const int page_size : {4, 8, 12, 16, 256}) {
    EXPECT_FALSE(plan(page_size).copies_rows) << page_size;
  }
  p.head_dim = 256;
  EXPECT_TRUE(plan(1).copies_rows);
  EXPECT_TRUE(plan(3).copies_rows);
  EXPECT_FALSE(plan(2).copies_rows);
  p.cache_dtype = DType::e4m3;
  EXPECT_FALSE(plan(1).copies_rows);
}

TEST(PrefillPlan, PackedSequencesOfFewTokensAreLeftToDecode) {
  const Problem p = problem_of(64, 2108, true);
  const PrefillDetails mixed = plan_chunks(p, kSms);
  EXPECT_EQ(mixed.plan.others_tokens, 32);
  EXPECT_EQ(mixed.decode.plan.most_tokens, 32);
  EXPECT_EQ(mixed.bytes, kPrefillDecodeAt + mixed.decode.at.bytes);

  const PrefillDetails alone = plan_prefill(p, kSms, prefill_config(p).value());
  EXPECT_EQ(alone.plan.others_tokens, 0);
  EXPECT_EQ(alone.bytes, kPrefillDecodeAt);

  const Problem chunks = problem_of(4, 512);
  EXPECT_EQ(plan_chunks(chunks, kSms).bytes, kPrefillDecodeAt);
  const Problem few = problem_of(4, 5);
  EXPECT_EQ(plan_chunks(few, kSms).bytes,
            kPrefillDecodeAt + plan_chunks(few, kSms).decode.at.bytes);
  EXPECT_EQ(plan_chunks(few, kSms).plan.splits, 1);
}

// Chunks raise the average number of tokens, but not that of the sequences that decode is left
// with.
TEST(PrefillPlan, ChunksDoNotWidenTheRowTilesOfDecode) {
  const auto rows = [](const Problem& p) {
    return kDecodeConfigs[plan_chunks(p, kSms).decode.plan.config].rows;
  };
  const Problem mixed = problem_of(64, 2108, true);
  EXPECT_EQ(mixed.heads / mixed.kv_heads, 4);
  EXPECT_EQ(rows(mixed), 16);
  EXPECT_EQ(rows(problem_of(2000, 2108, true)), 8);
  Problem one_kv_head = mixed;
  one_kv_head.kv_heads = 1;
  EXPECT_EQ(rows(one_kv_head), 64);
}

TEST(PrefillPlan, TheLongestSequenceTellsWhatIsLeftToDecode) {
  const auto rows = [](int q_len, int longest) {
    Problem p = problem_of(64, q_len, true);
    p.max_seqlen_q = longest;
    return kDecodeConfigs[plan_chunks(p, kSms).decode.plan.config].rows;
  };
  EXPECT_EQ(rows(60 * 1 + 4 * 512, 512), 8);
  EXPECT_EQ(rows(60 * 2 + 4 * 512, 512), 8);
  EXPECT_EQ(rows(60 * 4 + 4 * 512, 512), 16);
  EXPECT_EQ(rows(60 * 1 + 3 * 512 + 300, 512), 16);  // which a chunk of 300 looks like
}

// Decode by itself runs sequences of any length.
TEST(PrefillPlan, DecodeLeavesNoSequenceToOthers) {
  const Problem p = problem_of(64, 2108, true);
  EXPECT_EQ(plan_decode(p, kSms, best_decode_config(p, kSms).value()).plan.most_tokens,
            std::numeric_limits<int>::max());
}

TEST(PrefillPlan, KeysAreSplitWhereTilesAreFew) {
  const auto splits = [](const Problem& p) { return plan_chunks(p, kSms).plan.splits; };
  EXPECT_EQ(splits(problem_of(1, 2048)), 1);
  EXPECT_EQ(splits(problem_of(1, 256)), 2);  // 64 tiles
  EXPECT_EQ(splits(problem_of(1, 128)), 4);
  Problem p = problem_of(1, 128);
  p.capacity = 3000;
  EXPECT_EQ(splits(p), 2);
  p.capacity = 2047;
  EXPECT_EQ(splits(p), 1);

  p = problem_of(1, 128);
  const std::size_t whole = plan_chunks(problem_of(1, 2048), kSms).bytes;
  EXPECT_GE(plan_chunks(p, kSms).bytes, whole + 4 * 32 * 128 * (128 + 2) * sizeof(float));
  p.window = true;
  EXPECT_EQ(splits(p), 1);
  p.window = false;
  p.batch_invariant = true;  // or bits would depend on the batch
  EXPECT_EQ(splits(p), 1);
}

TEST(PrefillPlan, KeysOfSeveralPackedSequencesAreSplitByHowManyTilesTheyMayHave) {
  const auto splits = [](const Problem& p) { return plan_chunks(p, kSms).plan.splits; };
  EXPECT_EQ(splits(problem_of(2, 128, true)), 2);  // 2 row tiles of 32 heads
  EXPECT_EQ(splits(problem_of(2, 130, true)), 1);  // 3, of which one may have 129 tokens
  Problem p = problem_of(8, 576, true);
  p.heads = 8;
  EXPECT_EQ(splits(p), 1);  // 9 row tiles
  p.max_seqlen_q = 72;
  EXPECT_EQ(splits(p), 2);  // 8
  p.batch_invariant = true;
  EXPECT_EQ(splits(p), 1);

  // Of 64 sequences with 98 tokens together, two can have more than 32.
  p = problem_of(64, 98, true);
  EXPECT_EQ(splits(p), 2);
  EXPECT_EQ(plan_prefill(p, kSms, prefill_config(p).value()).plan.splits, 1);
}

TEST(PrefillPlan, SplitsLeaveResultsApart) {
  constexpr std::size_t kFloat_bytes = sizeof(float);
  for (const bool packed : {false, true}) {
    for (const int batch : {1, 2}) {
      const PrefillDetails details =
          plan_chunks(problem_of(batch, packed ? 128 : 64, packed), kSms);
      ASSERT_GT(details.plan.splits, 1);
      const int tokens = packed ? 128 : 64 * batch;
      const std::size_t rows = static_cast<std::size_t>(32 * tokens * details.plan.splits);
      const std::size_t behind_decode = kPrefillDecodeAt + details.decode.at.bytes;
      EXPECT_EQ(details.decode.at.bytes > 0, packed && batch > 1);
      EXPECT_GE(details.splits.row_max, behind_decode);
      EXPECT_GE(details.splits.row_sum, details.splits.row_max + rows * kFloat_bytes);
      EXPECT_GE(details.splits.o, details.splits.row_sum + rows * kFloat_bytes);
      EXPECT_EQ(details.splits.o % 16, 0u);
      EXPECT_GE(details.bytes, details.splits.o + rows * 128 * kFloat_bytes);
    }
  }
}

TEST(PrefillPlan, SectionsShareTheCacheByKvHeads) {
  EXPECT_EQ(plan_chunks(problem_of(1, 2048), kSms).plan.section % 4, 0);
}

}  // namespace
}  // namespace tilewright::cuda
