// Wrong arguments of packed sequences and of values; problems that no tensors have.
#include <gmock/gmock.h>

#include <string_view>
#include <tuple>

#include "kvcache_call.hpp"
#include "registry_test.hpp"

namespace tilewright::test {
namespace {

class BadPackedKvCacheArgument : public testing::TestWithParam<BadKvCacheCall> {};

TEST_P(BadPackedKvCacheArgument, IsRefused) { expect_refused(GetParam(), packed_call()); }

INSTANTIATE_TEST_SUITE_P(
    All, BadPackedKvCacheArgument,
    testing::Values(
        BadKvCacheCall{"q_rank",
                       [](KvCacheCall& c) { c.tensors.q.rank = 4; },
                       "q",
                       {"rank 4", "rank 3 (tokens, heads, head_dim)", "cu_seqlens_q is given"}},
        BadKvCacheCall{"k_rank",
                       [](KvCacheCall& c) { c.tensors.k->rank = 4; },
                       "k",
                       {"rank 4", "rank 3", "cu_seqlens_q is given"}},
        BadKvCacheCall{"k_tokens",
                       [](KvCacheCall& c) { c.tensors.k->shape[0] = 6; },
                       "k",
                       {"tokens is 6", "q's 7"}},
        BadKvCacheCall{"one_cu_seqlen",
                       [](KvCacheCall& c) { c.tensors.cu_seqlens_q->shape[0] = 1; },
                       "cu_seqlens_q",
                       {"1 element", "at least 2"}},
        BadKvCacheCall{"cu_seqlens_dtype",
                       [](KvCacheCall& c) { c.tensors.cu_seqlens_q->dtype = DType::int64; },
                       "cu_seqlens_q",
                       {"int64", "int32"}},
        BadKvCacheCall{"batch_idx_batch",
                       [](KvCacheCall& c) { c.tensors.cache_batch_idx->shape[0] = 1; },
                       "cache_batch_idx",
                       {"batch is 1", "cu_seqlens_q's 2"}},
        BadKvCacheCall{"batch_idx_dtype",
                       [](KvCacheCall& c) { c.tensors.cache_batch_idx->dtype = DType::int64; },
                       "cache_batch_idx",
                       {"int64", "int32"}},
        BadKvCacheCall{"too_few_rows",
                       [](KvCacheCall& c) {
                         c.tensors.cache_batch_idx.reset();
                         c.tensors.k_cache.shape[0] = c.tensors.v_cache.shape[0] = 1;
                       },
                       "k_cache",
                       {"has 1 rows", "must have 2 or more"}},
        BadKvCacheCall{"tree_mask_rank",
                       [](KvCacheCall& c) {
                         c.tensors.tree_mask = c.input(DType::int64, {2, 3});
                       },
                       "tree_mask",
                       {"rank 2", "rank 1 (tokens)"}},
        BadKvCacheCall{"tree_mask_tokens",
                       [](KvCacheCall& c) { c.tensors.tree_mask = c.input(DType::int64, {6}); },
                       "tree_mask",
                       {"tokens is 6", "q's 7"}},
        BadKvCacheCall{"o_dtype",
                       [](KvCacheCall& c) { c.tensors.o.dtype = DType::fp16; },
                       "o",
                       {"fp16", "must be fp32", "row_max and row_sum"}},
        BadKvCacheCall{"row_sum_alone",
                       [](KvCacheCall& c) {
                         c.tensors.row_max.reset();
                         c.tensors.o = c.output(DType::fp16, {7, 4, 64});
                       },
                       "row_max",
                       {"absent", "where row_sum is"}},
        BadKvCacheCall{
            "k_descale_rank",
            [](KvCacheCall& c) { c.tensors.k_descale->rank = 4; },
            "k_descale",
            {"rank 4", "rank 3 (rows, capacity, heads)", "rank 1 (1) or 2 (batch, heads)"}},
        BadKvCacheCall{"k_descale_two",
                       [](KvCacheCall& c) { c.tensors.k_descale = c.input(DType::fp32, {2}); },
                       "k_descale",
                       {"is 2", "must equal one"}},
        BadKvCacheCall{"k_descale_batch",
                       [](KvCacheCall& c) { c.tensors.k_descale->shape[0] = 1; },
                       "k_descale",
                       {"batch is 1", "cu_seqlens_q's 2"}},
        BadKvCacheCall{"k_descale_heads",
                       [](KvCacheCall& c) { c.tensors.k_descale->shape[1] = 1; },
                       "k_descale",
                       {"heads is 1", "k_cache's 2"}},
        BadKvCacheCall{"v_descale_rows",
                       [](KvCacheCall& c) { c.tensors.v_descale->shape[1] = 11; },
                       "v_descale",
                       {"capacity is 11", "k_cache's 12"}},
        BadKvCacheCall{"v_descale_dtype",
                       [](KvCacheCall& c) { c.tensors.v_descale->dtype = DType::bf16; },
                       "v_descale",
                       {"bf16", "must be fp32"}},
        BadKvCacheCall{"v_descale_elsewhere",
                       [](KvCacheCall& c) {
                         c.tensors.v_descale->device = {DeviceKind::cuda, 0};
                       },
                       "v_descale",
                       {"cuda:0", "must be on cpu"}},
        BadKvCacheCall{"v_descale_misaligned",
                       [](KvCacheCall& c) { misplace(*c.tensors.v_descale, 2); },
                       "v_descale",
                       {"aligned to 4"}},
        BadKvCacheCall{"descale_in_the_cache",
                       [](KvCacheCall& c) { c.tensors.v_descale->data = c.tensors.k_cache.data; },
                       "k_cache",
                       {"shares memory with v_descale"}},
        BadKvCacheCall{"row_max_in_the_descale",
                       [](KvCacheCall& c) {
                         c.tensors.row_max->data = const_cast<void*>(c.tensors.v_descale->data);
                       },
                       "row_max",
                       {"shares memory with v_descale"}}),
    kCaseName);

class BadFp8Call : public testing::TestWithParam<BadKvCacheCall> {};

TEST_P(BadFp8Call, IsRefused) { expect_refused(GetParam(), fp8_call()); }

INSTANTIATE_TEST_SUITE_P(
    All, BadFp8Call,
    testing::Values(BadKvCacheCall{"o_dtype",
                                   [](KvCacheCall& c) {
                                     c.tensors.o = c.output(DType::fp16, {2, 3, 4, 32});
                                   },
                                   "o",
                                   {"fp16", "must be bf16, as q has dtype e4m3"}},
                    BadKvCacheCall{"cache_dtype",
                                   [](KvCacheCall& c) { c.tensors.k_cache.dtype = DType::bf16; },
                                   "k_cache",
                                   {"bf16", "must be e4m3, the dtype of q"}},
                    BadKvCacheCall{"q_dtype",
                                   [](KvCacheCall& c) {
                                     c.tensors.q = c.input(DType::bf16, {2, 3, 4, 64});
                                   },
                                   "q_descale",
                                   {"is given", "must be absent where q has dtype bf16"}},
                    BadKvCacheCall{"q_descale_rank",
                                   [](KvCacheCall& c) {
                                     c.tensors.q_descale = c.input(DType::fp32, {4, 12, 2});
                                   },
                                   "q_descale",
                                   {"rank 3", "rank 2 (batch, heads)", "rank 1 (1)"}},
                    BadKvCacheCall{
                        "q_descale_two",
                        [](KvCacheCall& c) { c.tensors.q_descale = c.input(DType::fp32, {2}); },
                        "q_descale",
                        {"is 2", "must equal one"}},
                    BadKvCacheCall{"q_descale_batch",
                                   [](KvCacheCall& c) { c.tensors.q_descale->shape[0] = 1; },
                                   "q_descale",
                                   {"batch is 1", "q's 2"}},
                    BadKvCacheCall{"q_descale_of_query_heads",
                                   [](KvCacheCall& c) {
                                     c.tensors.q_descale = c.input(DType::fp32, {2, 4});
                                   },
                                   "q_descale",
                                   {"heads is 4", "k_cache's 2"}},
                    BadKvCacheCall{"q_descale_dtype",
                                   [](KvCacheCall& c) { c.tensors.q_descale->dtype = DType::bf16; },
                                   "q_descale",
                                   {"bf16", "must be fp32"}},
                    BadKvCacheCall{"q_descale_elsewhere",
                                   [](KvCacheCall& c) {
                                     c.tensors.q_descale->device = {DeviceKind::cuda, 0};
                                   },
                                   "q_descale",
                                   {"cuda:0", "must be on cpu"}},
                    BadKvCacheCall{"q_descale_misaligned",
                                   [](KvCacheCall& c) { misplace(*c.tensors.q_descale, 2); },
                                   "q_descale",
                                   {"aligned to 4"}},
                    BadKvCacheCall{"lse_in_the_descale",
                                   [](KvCacheCall& c) {
                                     c.tensors.lse->data =
                                         const_cast<void*>(c.tensors.q_descale->data);
                                   },
                                   "lse",
                                   {"shares memory with q_descale"}}),
    kCaseName);

TEST(KvCacheFp8, TheRightCallPasses) {
  const KvCacheCall c = fp8_call();
  EXPECT_NO_THROW(attention_with_kvcache(c.tensors, c.options));
}

AttentionWithKvCacheProblem problem_of_e4m3_queries(std::int64_t head_dim = 128) {
  return {.dtype = DType::e4m3, .cache_dtype = DType::e4m3, .head_dim = head_dim};
}

std::size_t workspace_on_gpu(const char* kernel, const AttentionWithKvCacheProblem& problem) {
  return workspace_bytes(named<AttentionWithKvCache>(kernel), problem, kH200);
}

void expect_gpu_refuses(const char* kernel, const AttentionWithKvCacheProblem& problem,
                        ErrorCode code, std::string_view argument, const char* message) {
  try {
    std::ignore = workspace_on_gpu(kernel, problem);
    FAIL() << kernel << " takes them";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_EQ(error.argument(), argument) << error.what();
    EXPECT_THAT(error.what(), testing::HasSubstr(message));
  }
}

TEST(KvCacheFp8, GpuKernelsTakeTheQueries) {
  for (const char* const kernel : {"decode", "decode/19", "prefill", "prefill/2"}) {
    EXPECT_NO_THROW(workspace_on_gpu(kernel, problem_of_e4m3_queries())) << kernel;
  }
}

TEST(KvCacheFp8, AVariantWithoutE4m3CachesRefusesTheQueriesByName) {
  expect_gpu_refuses("decode/13", problem_of_e4m3_queries(256), ErrorCode::unsupported, "q",
                     "has dtype e4m3");
}

TEST(KvCacheFp8, DecodeRefusesTheQueriesWithSharedPrefixesByName) {
  AttentionWithKvCacheProblem problem = problem_of_e4m3_queries();
  problem.shared_prefix = true;
  for (const char* const kernel : {"decode", "decode/6"}) {
    expect_gpu_refuses(kernel, problem, ErrorCode::unsupported, "q",
                       "has dtype e4m3 and shared prefixes");
  }
}

TEST(KvCacheFp8, DecodeRefusesTheQueriesOver16BitCachesByName) {
  AttentionWithKvCacheProblem problem = problem_of_e4m3_queries();
  problem.cache_dtype = DType::bf16;
  expect_gpu_refuses("decode", problem, ErrorCode::invalid_argument, "k_cache",
                     "has dtype bf16, must be e4m3");
}

class BadPagedValue : public testing::TestWithParam<BadKvCacheCall> {};

TEST_P(BadPagedValue, IsRefused) {
  constexpr bool kIsValue = true;
  expect_refused(GetParam(), paged_call(), kIsValue);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPagedValue,
    testing::Values(
        BadKvCacheCall{"negative_length",
                       [](KvCacheCall& c) {
                         c.tensors.cache_seqlens = c.ints({9, -1});
                       },
                       "cache_seqlens",
                       {"is -1 for sequence 1", "between 0 and 13", "less 3 new rows"}},
        BadKvCacheCall{"length_beyond_the_capacity",
                       [](KvCacheCall& c) {
                         c.tensors.cache_seqlens = c.ints({14, 4});
                       },
                       "cache_seqlens",
                       {"is 14 for sequence 0", "between 0 and 13, the capacity less 3 new rows"}},
        BadKvCacheCall{"negative_leftpad",
                       [](KvCacheCall& c) {
                         c.tensors.leftpad_k = c.ints({-1, 0});
                       },
                       "leftpad_k",
                       {"is -1 for sequence 0", "between 0 and its length 12"}},
        BadKvCacheCall{"leftpad_beyond_the_length",
                       [](KvCacheCall& c) {
                         c.tensors.leftpad_k = c.ints({0, 8});
                       },
                       "leftpad_k",
                       {"is 8 for sequence 1", "between 0 and its length 7"}},
        BadKvCacheCall{"negative_page",
                       [](KvCacheCall& c) {
                         c.tensors.block_table = c.ints({7, 2, -1, 0, 5, 3, 0, 0}, 4);
                       },
                       "block_table",
                       {"is -1 for sequence 0 at page 2 of 3", "between 0 and 7"}},
        BadKvCacheCall{"page_beyond_the_caches",
                       [](KvCacheCall& c) {
                         c.tensors.block_table = c.ints({7, 2, 0, 0, 5, 8, 0, 0}, 4);
                       },
                       "block_table",
                       {"is 8 for sequence 1 at page 1 of 2", "between 0 and 7"}},
        BadKvCacheCall{"two_write_to_a_slot",
                       [](KvCacheCall& c) {
                         c.tensors.block_table = c.ints({7, 2, 3, 0, 5, 3, 0, 0}, 4);
                       },
                       "block_table",
                       {"row 1 of page 3", "sequences 1 and 0", "another one for each new row"}},
        BadKvCacheCall{"one_writes_to_a_slot_twice",
                       [](KvCacheCall& c) {
                         c.tensors.cache_seqlens = c.ints({2, 4});
                         c.tensors.k = c.input(DType::bf16, {2, 5, 3, 64});
                         c.tensors.v = c.input(DType::bf16, {2, 5, 3, 32});
                         c.tensors.block_table = c.ints({7, 7, 0, 0, 5, 3, 1, 0}, 4);
                       },
                       "block_table",
                       {"of page 7", "sequences 0 and 0"}}),
    kCaseName);

class BadPackedValue : public testing::TestWithParam<BadKvCacheCall> {};

TEST_P(BadPackedValue, IsRefused) {
  constexpr bool kIsValue = true;
  expect_refused(GetParam(), packed_call(), kIsValue);
}

INSTANTIATE_TEST_SUITE_P(
    All, BadPackedValue,
    testing::Values(BadKvCacheCall{"cu_seqlens_start",
                                   [](KvCacheCall& c) {
                                     c.tensors.cu_seqlens_q = c.ints({1, 2, 6});
                                   },
                                   "cu_seqlens_q",
                                   {"starts with 1"}},
                    BadKvCacheCall{"cu_seqlens_fall",
                                   [](KvCacheCall& c) {
                                     c.tensors.cu_seqlens_q = c.ints({0, 3, 2});
                                   },
                                   "cu_seqlens_q",
                                   {"falls from 3 to 2"}},
                    BadKvCacheCall{"cu_seqlens_end",
                                   [](KvCacheCall& c) {
                                     c.tensors.cu_seqlens_q = c.ints({0, 2, 8});
                                   },
                                   "cu_seqlens_q",
                                   {"ends with 8", "at most 7, the tokens of q"}},
                    BadKvCacheCall{"length_beyond_the_capacity",
                                   [](KvCacheCall& c) {
                                     c.tensors.cache_seqlens = c.ints({5, 9});
                                   },
                                   "cache_seqlens",
                                   {"is 9 for sequence 1", "between 0 and 8"}},
                    BadKvCacheCall{
                        "negative_row",
                        [](KvCacheCall& c) {
                          c.tensors.cache_batch_idx = c.ints({3, -1});
                        },
                        "cache_batch_idx",
                        {"is -1 for sequence 1", "between 0 and 3, a row of the caches"}},
                    BadKvCacheCall{"row_beyond_the_caches",
                                   [](KvCacheCall& c) {
                                     c.tensors.cache_batch_idx = c.ints({4, 0});
                                   },
                                   "cache_batch_idx",
                                   {"is 4 for sequence 0", "between 0 and 3"}},
                    BadKvCacheCall{"two_write_to_a_row",
                                   [](KvCacheCall& c) {
                                     c.tensors.cache_batch_idx = c.ints({2, 2});
                                   },
                                   "cache_batch_idx",
                                   {"is 2 for sequences 0 and 1", "must differ"}},
                    BadKvCacheCall{"a_tree_of_too_many_tokens",
                                   [](KvCacheCall& c) {
                                     c.tensors.q = c.input(DType::fp16, {70, 4, 64});
                                     c.tensors.o = c.output(DType::fp32, {70, 4, 64});
                                     c.tensors.row_max = c.output(DType::fp32, {4, 70});
                                     c.tensors.row_sum = c.output(DType::fp32, {4, 70});
                                     c.tensors.k.reset();
                                     c.tensors.v.reset();
                                     c.tensors.cu_seqlens_q = c.ints({0, 65, 70});
                                     c.tensors.tree_mask = c.input(DType::int64, {70});
                                   },
                                   "cu_seqlens_q",
                                   {"65 new tokens for sequence 0", "at most 64"}}),
    kCaseName);

// Rows that are not written may be several sequences'.
TEST(KvCacheValues, RowsThatAreReadMayBeShared) {
  KvCacheCall rows = packed_call();
  rows.tensors.k.reset();
  rows.tensors.v.reset();
  rows.tensors.cache_batch_idx = rows.ints({2, 2});
  EXPECT_NO_THROW(attention_with_kvcache(rows.tensors, rows.options));

  KvCacheCall pages = paged_call();
  pages.tensors.block_table = pages.ints({5, 2, 0, 0, 5, 3, 0, 0}, 4);
  EXPECT_NO_THROW(attention_with_kvcache(pages.tensors, pages.options));
}

TEST(KvCacheCanRun, TheCpuKernelTakesAllFeatures) {
  const AttentionWithKvCacheProblem problem{.dtype = DType::fp16,
                                            .cache_dtype = DType::e4m3,
                                            .head_dim = 192,
                                            .value_dim = 128,
                                            .window = true,
                                            .softcap = true,
                                            .sinks = true,
                                            .packed = true,
                                            .unnormalized = true,
                                            .left_padding = true,
                                            .shared_prefix = true,
                                            .new_rows = true,
                                            .tree_mask = true,
                                            .batch_invariant = true};
  const auto& cpu = named<AttentionWithKvCache>("cpu");
  EXPECT_FALSE(can_run(cpu, problem, device_info({DeviceKind::cpu, 0})));
  ASSERT_EQ(cpu.info.limits.size(), 1u);
  EXPECT_EQ(cpu.info.limits.front().argument, "head_dim");
}

TEST(KvCacheCanRun, AFeatureThatAKernelHasNotIsNamed) {
  Kernel<AttentionWithKvCache> none = named<AttentionWithKvCache>("cpu");
  none.facts.features = {};
  using Problem = AttentionWithKvCacheProblem;
  for (const auto& [feature, why, problem] :
       {std::tuple{"window", "is given", Problem{.window = true}},
        {"softcap", "is given", Problem{.softcap = true}},
        {"sinks", "is given", Problem{.sinks = true}},
        {"packed", "cu_seqlens_q is given", Problem{.packed = true}},
        {"unnormalized", "row_max and row_sum are given", Problem{.unnormalized = true}},
        {"leftpad_k", "is given", Problem{.left_padding = true}},
        {"prefix_groups", "is given", Problem{.shared_prefix = true}},
        {"new rows", "k and v are given", Problem{.new_rows = true}},
        {"tree_mask", "is given", Problem{.tree_mask = true}},
        {"e4m3 cache", "k_cache has dtype e4m3", Problem{.cache_dtype = DType::e4m3}},
        {"row descales", "k_descale or v_descale has one for each row",
         Problem{.row_descales = true}}}) {
    const auto reason = can_run(none, problem, device_info({DeviceKind::cpu, 0}));
    ASSERT_TRUE(reason) << feature;
    EXPECT_EQ(reason->code, ErrorCode::unsupported);
    EXPECT_EQ(reason->argument, feature);
    EXPECT_EQ(reason->message, std::string(why) + ", kernel cpu takes none");
  }
}

// Every kernel and variant, before any of its code divides by a size.
TEST(KvCacheCanRun, SizesThatNoTensorsHaveAreRefused) {
  using Problem = AttentionWithKvCacheProblem;
  std::vector<std::pair<std::string, Problem>> problems = {
      {"kv_heads", {.heads = 4, .kv_heads = 3}},
      {"kv_heads", {.heads = 3, .kv_heads = 4}},
      {"page_size", {.page_size = -1}},
      {"page_size", {.page_size = std::int64_t{1} << 30}},
      {"capacity", {.page_size = 16, .capacity = 40}},
      {"value_dim", {.value_dim = -1}},
      {"k_cache", {.cache_dtype = DType::fp16}},
      {"k_cache", {.dtype = DType::e4m3}},
  };
  for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 30}) {
    problems.push_back({"batch", {.batch = size}});
    problems.push_back({"q_len", {.q_len = size}});
    problems.push_back({"cache_rows", {.cache_rows = size}});
    problems.push_back({"capacity", {.capacity = size}});
    problems.push_back({"heads", {.heads = size}});
    problems.push_back({"kv_heads", {.kv_heads = size}});
    problems.push_back({"head_dim", {.head_dim = size}});
  }
  const auto check = [&](const Kernel<AttentionWithKvCache>& kernel) {
    for (const auto& [argument, problem] : problems) {
      SCOPED_TRACE(kernel.info.name + " " + argument);
      try {
        std::ignore = workspace_bytes(kernel, problem, kH200);
        FAIL() << "no exception";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
        EXPECT_EQ(error.argument(), argument) << error.what();
      }
    }
  };
  for (const Kernel<AttentionWithKvCache>& kernel : kernels<AttentionWithKvCache>()) {
    check(kernel);
    std::ranges::for_each(kernel.variants, check);
  }
}

}  // namespace
}  // namespace tilewright::test
