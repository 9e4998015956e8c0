// Every wrong argument of append_kv(): the code, the argument and the message of the exception, and
// outputs that stay untouched.
#include "append_call.hpp"
#include "registry_test.hpp"

namespace tilewright::test {
namespace {

using BadCall = BadCallOf<AppendCall>;

constexpr Device kGpu{DeviceKind::cuda, 0};

class BadAppend : public testing::TestWithParam<BadCall> {};

TEST_P(BadAppend, IsRefused) {
  AppendCall c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { append_kv(c.t, c.options); });
}

TEST(AppendCalls, ThatTheCasesSpoilAreRight) {
  AppendCall by_pages;
  append_kv(by_pages.t, by_pages.options);
  EXPECT_FALSE(is_poisoned(by_pages.k_cache) || is_poisoned(by_pages.v_cache));
  EXPECT_FALSE(is_poisoned(by_pages.q_out));
  AppendCall by_slots;
  by_slots.use_slots();
  append_kv(by_slots.t, by_slots.options);
  EXPECT_FALSE(is_poisoned(by_slots.computed_k_descale));
  AppendCall by_entries;
  by_entries.use_entries();
  append_kv(by_entries.t, by_entries.options);
  EXPECT_FALSE(is_poisoned(by_entries.k_cache));
}

// Pages and positions that no row needs may be anything.
TEST(AppendCalls, LookAtNoMoreValuesThanTheyNeed) {
  AppendCall pages;
  pages.set(pages.table, {-7, 0, 99, 99, 1, 4});
  append_kv(pages.t, pages.options);
  AppendCall positions;
  positions.use_slots();
  positions.t.q.reset();
  positions.t.q_out.reset();
  positions.set(positions.positions, {0, 1, -5});  // of a row that is not stored
  append_kv(positions.t, positions.options);
  AppendCall no_rows;  // of the second sequence, which is longer than the tables
  no_rows.set(no_rows.starts, {0, 5, 5});
  no_rows.set(no_rows.seqlens, {4, 12});
  no_rows.t.rotary_cos->shape[0] = no_rows.t.rotary_sin->shape[0] = 9;
  append_kv(no_rows.t, no_rows.options);
}

TEST(AppendCalls, OnAGpuThatIsNotThereAreRefused) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  AppendCall c;
  c.use_slots();
  c.t.rotary_cos.reset();
  c.t.rotary_sin.reset();
  c.t.positions.reset();
  c.t.q.reset();
  c.t.q_out.reset();
  c.t.k.device = c.t.v.device = c.t.slot_mapping->device = kGpu;
  c.t.k_cache.device = c.t.v_cache.device = kGpu;
  c.t.computed_k_descale->device = c.t.v_descale->device = kGpu;
  const BadCall no_device{
      "no_device", {}, "device", {"cuda:0", cpu_only_notice().data()}, ErrorCode::no_device};
  expect_throws(no_device, c, [&] { append_kv(c.t); });
}

TEST(AppendKernels, SayWhatTheyDoNotTake) {
  const Kernel<AppendKv>& hopper = named<AppendKv>("hopper");
  EXPECT_EQ(workspace_bytes(hopper, {.rows = 100, .kv_heads = 8}, kH200), 0u);
  using BadProblem = BadCallOf<AppendKvProblem>;
  for (const BadProblem& bad : {
           BadProblem{"head_dim",
                      [](auto& p) { p.head_dim = 100; },
                      "k",
                      {"has head_dim 100, kernel hopper takes multiples of 8"},
                      ErrorCode::unsupported},
           BadProblem{"value_dim",
                      [](auto& p) { p.value_dim = 4; },
                      "v",
                      {"has head_dim 4, kernel hopper takes multiples of 8"},
                      ErrorCode::unsupported},
           BadProblem{"dtype",
                      [](auto& p) { p.dtype = DType::fp32; },
                      "k",
                      {"has dtype fp32, kernel hopper takes fp16, bf16"},
                      ErrorCode::unsupported},
           BadProblem{"heads",
                      [](auto& p) { p.rows = p.kv_heads = 1 << 15; },
                      "k",
                      {"has 2^31 or more heads of q, k and v in all rows"},
                      ErrorCode::unsupported},
           BadProblem{"rows", [](auto& p) { p.rows = 0; }, "rows", {"is 0, must be at least 1"}},
       }) {
    AppendKvProblem problem;
    bad.spoil(problem);
    expect_throws(bad, [&] { workspace_bytes(hopper, problem, kH200); });
  }
  EXPECT_EQ(workspace_bytes(named<AppendKv>("cpu"), {.head_dim = 100}, kH200), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, BadAppend,
    testing::Values(BadCall{"two_ways",
                            [](AppendCall& c) { c.t.slot_mapping = c.slots.view(); },
                            "cache_seqlens",
                            {"is given", "must be absent where slot_mapping is"}},
                    BadCall{"no_way",
                            [](AppendCall& c) { c.t.cache_seqlens.reset(); },
                            "slot_mapping",
                            {"is absent", "must be given where cache_seqlens is absent"}},
                    BadCall{"starts_beside_slots",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.cu_seqlens_new = c.starts.view();
                            },
                            "cu_seqlens_new",
                            {"must be absent where slot_mapping is given"}},
                    BadCall{"pages_beside_slots",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.block_table = c.table.view();
                            },
                            "block_table",
                            {"must be absent where slot_mapping is given"}},
                    BadCall{"entries_beside_slots",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.cache_batch_idx = c.batch_idx.view();
                            },
                            "cache_batch_idx",
                            {"must be absent where slot_mapping is given"}},
                    BadCall{"pages_and_entries",
                            [](AppendCall& c) { c.t.cache_batch_idx = c.batch_idx.view(); },
                            "cache_batch_idx",
                            {"must be absent where block_table is given"}},
                    BadCall{"slots_rank",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.slot_mapping->rank = 2;
                            },
                            "slot_mapping",
                            {"rank 2", "rank 1 (tokens)"}},
                    BadCall{"slots_dtype",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.slot_mapping->dtype = DType::int32;
                            },
                            "slot_mapping",
                            {"int32", "must be int64"}},
                    BadCall{"slots_count",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.slot_mapping->shape[0] = 4;
                            },
                            "slot_mapping",
                            {"tokens is 4, must equal k's 5"}},
                    BadCall{"slots_misaligned",
                            [](AppendCall& c) {
                              c.use_slots();
                              misplace(*c.t.slot_mapping, 4);
                            },
                            "slot_mapping",
                            {"aligned to 8"}},
                    BadCall{"seqlens_dtype",
                            [](AppendCall& c) { c.t.cache_seqlens->dtype = DType::int64; },
                            "cache_seqlens",
                            {"int64", "must be int32"}},
                    BadCall{"seqlens_device",
                            [](AppendCall& c) { c.t.cache_seqlens->device = kGpu; },
                            "cache_seqlens",
                            {"must be on cpu like k"}},
                    BadCall{"starts_count",
                            [](AppendCall& c) { c.t.cu_seqlens_new->shape[0] = 2; },
                            "cu_seqlens_new",
                            {"sequences (elements less one) is 1, must equal cache_seqlens' 2"}},
                    BadCall{"table_rows",
                            [](AppendCall& c) { c.t.block_table->shape[0] = 1; },
                            "block_table",
                            {"sequences is 1, must equal cache_seqlens' 2"}},
                    BadCall{"table_strided",
                            [](AppendCall& c) { c.t.block_table->stride[1] = 2; },
                            "block_table",
                            {"must be contiguous"}},
                    BadCall{"entries_count",
                            [](AppendCall& c) {
                              c.use_entries();
                              c.t.cache_batch_idx->shape[0] = 1;
                            },
                            "cache_batch_idx",
                            {"sequences is 1, must equal cache_seqlens' 2"}},
                    BadCall{"a_cache_of_other_sequences",
                            [](AppendCall& c) {
                              c.use_entries();
                              c.t.cache_batch_idx.reset();
                            },
                            "k_cache",
                            {"sequences is 6, must equal cache_seqlens'",
                             "neither block_table nor cache_batch_idx", "2"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Rows, BadAppend,
    testing::Values(
        BadCall{"k_rank",
                [](AppendCall& c) { c.t.k.rank = 2; },
                "k",
                {"rank 2", "rank 3 (tokens, heads, head_dim), as cu_seqlens_new is given"}},
        BadCall{"k_without_starts",
                [](AppendCall& c) { c.t.cu_seqlens_new.reset(); },
                "k",
                {"rank 3", "rank 4 (sequences, tokens"}},
        BadCall{"k_dtype",
                [](AppendCall& c) { c.t.k.dtype = DType::e4m3; },
                "k",
                {"e4m3", "must be fp32, fp16 or bf16"}},
        BadCall{"k_null", [](AppendCall& c) { c.t.k.data = nullptr; }, "k", {"null"}},
        BadCall{"k_empty", [](AppendCall& c) { c.t.k.shape[0] = 0; }, "k", {"(0, 2, 16)"}},
        BadCall{"k_strided",
                [](AppendCall& c) { c.t.k.stride[2] = 2; },
                "k",
                {"head_dim must be contiguous"}},
        BadCall{"k_misaligned", [](AppendCall& c) { misplace(c.t.k, 1); }, "k", {"aligned to 2"}},
        BadCall{"v_dtype",
                [](AppendCall& c) { c.t.v.dtype = DType::fp16; },
                "v",
                {"fp16", "must be bf16, the dtype of k"}},
        BadCall{"v_tokens",
                [](AppendCall& c) { c.t.v.shape[0] = 4; },
                "v",
                {"tokens is 4, must equal k's 5"}},
        BadCall{"v_heads",
                [](AppendCall& c) { c.t.v.shape[1] = 1; },
                "v",
                {"heads is 1, must equal k's 2"}},
        BadCall{"k_cache_rank",
                [](AppendCall& c) { c.t.k_cache.rank = 3; },
                "k_cache",
                {"rank 3", "rank 4 (pages, page size"}},
        BadCall{"k_cache_dtype",
                [](AppendCall& c) { c.t.k_cache.dtype = DType::fp16; },
                "k_cache",
                {"fp16", "must be bf16, the dtype of k, or e4m3"}},
        BadCall{"k_cache_heads",
                [](AppendCall& c) { c.t.k_cache.shape[2] = 1; },
                "k_cache",
                {"heads is 1, must equal k's 2"}},
        BadCall{"k_cache_head_dim",
                [](AppendCall& c) { c.t.k_cache.shape[3] = 8; },
                "k_cache",
                {"head_dim is 8, must equal k's 16"}},
        BadCall{"k_cache_overlap",
                [](AppendCall& c) { c.t.k_cache.stride[1] = 16; },
                "k_cache",
                {"must not overlap"}},
        BadCall{"k_cache_device",
                [](AppendCall& c) { c.t.k_cache.device = kGpu; },
                "k_cache",
                {"must be on cpu like k"}},
        BadCall{"v_cache_dtype",
                [](AppendCall& c) { c.t.v_cache.dtype = DType::bf16; },
                "v_cache",
                {"bf16", "must be e4m3, the dtype of k_cache"}},
        BadCall{"v_cache_pages",
                [](AppendCall& c) { c.t.v_cache.shape[0] = 5; },
                "v_cache",
                {"pages is 5, must equal k_cache's 6"}},
        BadCall{"v_cache_page_size",
                [](AppendCall& c) { c.t.v_cache.shape[1] = 3; },
                "v_cache",
                {"page size is 3, must equal k_cache's 4"}},
        BadCall{"v_cache_head_dim",
                [](AppendCall& c) { c.t.v_cache.shape[3] = 4; },
                "v_cache",
                {"head_dim is 4, must equal v's 8"}},
        BadCall{"kernel",
                [](AppendCall& c) { c.options.kernel = "k1"; },
                "kernel",
                {"is 'k1'", "auto, cpu, hopper"}},
        BadCall{"a_gpu_kernel",
                [](AppendCall& c) { c.options.kernel = "hopper"; },
                "k",
                {"is on cpu, kernel hopper takes tensors on cuda"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
