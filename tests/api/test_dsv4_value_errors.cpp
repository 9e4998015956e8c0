// Wrong values of dsv4_attention(), and problems that no tensors have or a kernel does not take.
#include <tuple>

#include "dsv4_call.hpp"
#include "registry_test.hpp"

namespace tilewright::test {
namespace {

constexpr bool kIsValue = true;

class BadDsv4Value : public testing::TestWithParam<BadDsv4Call> {};

TEST_P(BadDsv4Value, IsRefused) { expect_refused(GetParam(), batched_call(), kIsValue); }

INSTANTIATE_TEST_SUITE_P(
    All, BadDsv4Value,
    testing::Values(BadDsv4Call{"range_beyond_the_ring",
                                [](Dsv4Call& c) {
                                  c.tensors.window->range_begin = c.ints({0, 15, 0, 1}, {2, 2});
                                },
                                "window.range_begin",
                                {"range of 20 keys for token 0 of request 0",
                                 "at most 8, the rows of the ring"}},
                    BadDsv4Call{"begin_behind_its_end",
                                [](Dsv4Call& c) {
                                  c.tensors.window->range_begin = c.ints({14, 15, 0, 8}, {2, 2});
                                },
                                "window.range_begin",
                                {"is 8 for token 1 of request 1", "from 0 to its end, 7"}},
                    BadDsv4Call{"negative_begin",
                                [](Dsv4Call& c) {
                                  c.tensors.window->range_begin = c.ints({14, 15, -1, 1}, {2, 2});
                                },
                                "window.range_begin",
                                {"is -1 for token 0 of request 1"}},
                    BadDsv4Call{"negative_end",
                                [](Dsv4Call& c) {
                                  c.tensors.window->range_end = c.ints({20, 21, -6, 7}, {2, 2});
                                },
                                "window.range_end",
                                {"is -6 for token 0 of request 1", "at least 0"}},
                    BadDsv4Call{"end_beyond_the_capacity",
                                [](Dsv4Call& c) { c.tensors.window->ring = 0; },
                                "window.range_end",
                                {"is 20 for token 0 of request 0", "from 0 to 8"}},
                    BadDsv4Call{"page_beyond_the_cache",
                                [](Dsv4Call& c) {
                                  c.tensors.window->block_table = c.ints({4, 1, 5, 3}, {2, 2});
                                },
                                "window.block_table",
                                {"is 5 for request 1, entry 0", "from 0 to 4"}},
                    BadDsv4Call{"negative_page",
                                [](Dsv4Call& c) {
                                  c.tensors.window->block_table = c.ints({4, -1, 0, 3}, {2, 2});
                                },
                                "window.block_table",
                                {"is -1 for request 0, entry 1"}},
                    BadDsv4Call{"slot_beyond_the_cache",
                                [](Dsv4Call& c) {
                                  c.tensors.compressed->indices =
                                      c.ints({5, -1, 0, 3, 6, 4, -1, 1, 9, 0, 2, 9}, {2, 2, 3});
                                },
                                "compressed.indices",
                                {"is 6 for token 1 of request 0, entry 1",
                                 "-1 or less than 6, the slots of compressed.rows"}},
                    BadDsv4Call{"slot_below_minus_1",
                                [](Dsv4Call& c) {
                                  c.tensors.compressed->indices =
                                      c.ints({5, -1, 0, 3, 3, 4, -2, 1, 9, 0, 2, 9}, {2, 2, 3});
                                },
                                "compressed.indices",
                                {"is -2 for token 0 of request 1, entry 0"}},
                    BadDsv4Call{"length_beyond_the_list",
                                [](Dsv4Call& c) {
                                  c.tensors.compressed->list_lengths = c.ints({4, 2}, {2});
                                },
                                "compressed.list_lengths",
                                {"is 4 for request 0", "from 0 to 3"}},
                    BadDsv4Call{"negative_length",
                                [](Dsv4Call& c) {
                                  c.tensors.compressed->list_lengths = c.ints({3, -1}, {2});
                                },
                                "compressed.list_lengths",
                                {"is -1 for request 1"}},
                    BadDsv4Call{"position_beyond_the_tables",
                                [](Dsv4Call& c) {
                                  c.tensors.positions = c.ints<std::int64_t>({3, 4, 10, 0}, {2, 2});
                                },
                                "positions",
                                {"is 10 for token 0 of request 1", "from 0 to 9"}},
                    BadDsv4Call{"negative_position",
                                [](Dsv4Call& c) {
                                  c.tensors.positions = c.ints<std::int64_t>({3, -4, 9, 0}, {2, 2});
                                },
                                "positions",
                                {"is -4 for token 1 of request 0"}},
                    BadDsv4Call{
                        "scale_of_nan",
                        [](Dsv4Call& c) {
                          static_cast<std::uint8_t*>(const_cast<void*>(
                              c.tensors.window->rows.data))[4 * 2880 + 4 * 576 + 2 * 8 + 6] = 255;
                        },
                        "window.rows",
                        {"UE8M0 scale 255 in group 6 of slot 18", "at most 254"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Bounds, BadDsv4Value,
    testing::Values(BadDsv4Call{"range_from_0_beyond_the_ring",
                                [](Dsv4Call& c) { c.tensors.window->range_begin.reset(); },
                                "window.range_end",
                                {"range of 20 keys for token 0 of request 0",
                                 "at most 8, the rows of the ring"}},
                    BadDsv4Call{"range_beyond_its_bound",
                                [](Dsv4Call& c) { c.tensors.window->most_keys = 5; },
                                "window.range_begin",
                                {"range of 6 keys for token 0 of request 0",
                                 "at most 5, window.most_keys"}},
                    BadDsv4Call{"bound_beyond_the_ring",
                                [](Dsv4Call& c) {
                                  c.tensors.window->most_keys = 30;
                                  c.tensors.window->range_begin = c.ints({0, 15, 0, 1}, {2, 2});
                                },
                                "window.range_begin",
                                {"range of 20 keys", "at most 8, the rows of the ring"}}),
    kCaseName);

class BadPackedDsv4Value : public testing::TestWithParam<BadDsv4Call> {};

TEST_P(BadPackedDsv4Value, IsRefused) { expect_refused(GetParam(), packed_dsv4_call(), kIsValue); }

INSTANTIATE_TEST_SUITE_P(
    All, BadPackedDsv4Value,
    testing::Values(BadDsv4Call{"cu_seqlens_start",
                                [](Dsv4Call& c) {
                                  c.tensors.cu_seqlens_q = c.ints({1, 2, 3}, {3});
                                },
                                "cu_seqlens_q",
                                {"starts with 1"}},
                    BadDsv4Call{"cu_seqlens_fall",
                                [](Dsv4Call& c) {
                                  c.tensors.cu_seqlens_q = c.ints({0, 2, 1}, {3});
                                },
                                "cu_seqlens_q",
                                {"falls from 2 to 1"}},
                    BadDsv4Call{"cu_seqlens_end",
                                [](Dsv4Call& c) {
                                  c.tensors.cu_seqlens_q = c.ints({0, 2, 5}, {3});
                                },
                                "cu_seqlens_q",
                                {"ends with 5", "at most 4, the tokens of q"}},
                    BadDsv4Call{"end_beyond_the_page",
                                [](Dsv4Call& c) {
                                  c.tensors.window->range_end = c.ints({4, 7, 6, 99}, {4});
                                },
                                "window.range_end",
                                {"is 7 for token 1 of request 0", "from 0 to 6"}},
                    BadDsv4Call{"scale_of_nan",
                                [](Dsv4Call& c) {
                                  static_cast<std::uint8_t*>(const_cast<void*>(
                                      c.tensors.window->rows.data))[4 * 528 + 512 + 3] = 255;
                                },
                                "window.rows",
                                {"group 3 of slot 4"}},
                    BadDsv4Call{"too_many_tokens",
                                [](Dsv4Call& c) {
                                  c.tensors.q = c.input(DType::fp32, {12, 3, 512});
                                  c.tensors.o = c.output(DType::fp32, {12, 3, 512});
                                  c.tensors.row_max = c.output(DType::fp32, {3, 12});
                                  c.tensors.row_sum = c.output(DType::fp32, {3, 12});
                                  c.tensors.window->range_end =
                                      c.ints(std::vector<int>(12, 1), {12});
                                  c.tensors.cu_seqlens_q = c.ints({0, 2, 11}, {3});
                                },
                                "cu_seqlens_q",
                                {"gives 9 new tokens for request 1", "at most 8"}}),
    kCaseName);

// Rows that no token sees may have any scale.
TEST(Dsv4Values, ScalesOfRowsThatNobodySeesAreNotLookedAt) {
  const Dsv4Call call = packed_dsv4_call();
  static_cast<std::uint8_t*>(const_cast<void*>(call.tensors.window->rows.data))[5 * 528 + 512] =
      255;
  EXPECT_NO_THROW(dsv4_attention(call.tensors, call.options));
}

TEST(Dsv4CanRun, TheCpuKernelTakesAllFeatures) {
  using Keys = Dsv4ScopeProblem::Keys;
  const Dsv4AttentionProblem problem{.dtype = DType::fp32,
                                     .heads = 100,
                                     .window = {.keys = Keys::range, .format = KvRowFormat::e2m1},
                                     .compressed = {.keys = Keys::list},
                                     .packed = true,
                                     .fresh_rows = true,
                                     .sinks = true,
                                     .unnormalized = true,
                                     .inverse_rope = true,
                                     .e4m3_output = true};
  EXPECT_FALSE(can_run(named<Dsv4Attention>("cpu"), problem, device_info({DeviceKind::cpu, 0})));
}

TEST(Dsv4CanRun, AFeatureThatAKernelHasNotIsNamed) {
  Kernel<Dsv4Attention> none = named<Dsv4Attention>("cpu");
  none.facts.features = {};
  using Problem = Dsv4AttentionProblem;
  using Keys = Dsv4ScopeProblem::Keys;
  for (const auto& [feature, why, problem] :
       {std::tuple{"range_end", "is given", Problem{.window = {.keys = Keys::range}}},
        {"indices", "is given", Problem{.compressed = {.keys = Keys::list}}},
        {"packed", "cu_seqlens_q is given", Problem{.packed = true}},
        {"fresh_rows", "is given", Problem{.fresh_rows = true}},
        {"sinks", "is given", Problem{.sinks = true}},
        {"unnormalized", "row_max and row_sum are given", Problem{.unnormalized = true}},
        {"inverse rope", "rotary_cos is given", Problem{.inverse_rope = true}},
        {"e4m3 output", "o_scale is given", Problem{.e4m3_output = true}}}) {
    const auto reason = can_run(none, problem, device_info({DeviceKind::cpu, 0}));
    ASSERT_TRUE(reason) << feature;
    EXPECT_EQ(reason->code, ErrorCode::unsupported);
    EXPECT_EQ(reason->argument, feature);
    EXPECT_EQ(reason->message, std::string(why) + ", kernel cpu takes none");
  }
}

TEST(Dsv4CanRun, HeadsAndFormatsThatAKernelHasNotAreNamed) {
  constexpr std::array kHeads = {8, 64};
  constexpr std::array kFormats = {KvRowFormat::e4m3_bf16};
  using Keys = Dsv4ScopeProblem::Keys;
  Kernel<Dsv4Attention> few = named<Dsv4Attention>("cpu");
  few.facts.heads = kHeads;
  few.facts.window_formats = kFormats;
  const auto reason_of = [&](const Dsv4AttentionProblem& problem) {
    return can_run(few, problem, device_info({DeviceKind::cpu, 0})).value();
  };
  EXPECT_EQ(reason_of({.heads = 16}).message, "has 16 heads, kernel cpu takes 8, 64");
  const Reason of_rows = reason_of({.heads = 64, .window = {.keys = Keys::range}});
  EXPECT_EQ(of_rows.argument, "window.rows");
  EXPECT_EQ(of_rows.message, "has rows of bf16, kernel cpu takes e4m3_bf16");
}

TEST(Dsv4CanRun, SizesThatNoTensorsHaveAreRefused) {
  std::vector<std::pair<std::string, Dsv4AttentionProblem>> problems;
  for (const std::int64_t size : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{1} << 30}) {
    problems.push_back({"batch", {.batch = size}});
    problems.push_back({"q_len", {.q_len = size}});
    problems.push_back({"heads", {.heads = size}});
    problems.push_back({"window.pages", {.window = {.pages = size}}});
    problems.push_back({"window.page_size", {.window = {.page_size = size}}});
    problems.push_back({"compressed.most_keys", {.compressed = {.most_keys = size}}});
  }
  for (const Kernel<Dsv4Attention>& kernel : kernels<Dsv4Attention>()) {
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
  }
}

}  // namespace
}  // namespace tilewright::test
