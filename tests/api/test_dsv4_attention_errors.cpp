// Every wrong argument of dsv4_attention(): the code, the argument and the message of the
// exception, and outputs that stay untouched.
#include "dsv4_call.hpp"

namespace tilewright::test {
namespace {

TEST(Dsv4Call, TheCallsThatTheCasesSpoilAreRight) {
  for (const Dsv4Call& call : {batched_call(), packed_dsv4_call(), quantized_call()}) {
    EXPECT_NO_THROW(dsv4_attention(call.tensors, call.options));
    EXPECT_FALSE(call.outputs_untouched());
  }
}

class BadDsv4Argument : public testing::TestWithParam<BadDsv4Call> {};

TEST_P(BadDsv4Argument, IsRefused) { expect_refused(GetParam(), batched_call()); }

INSTANTIATE_TEST_SUITE_P(
    Types, BadDsv4Argument,
    testing::Values(
        BadDsv4Call{"q_dtype",
                    [](Dsv4Call& c) { c.tensors.q.dtype = DType::fp16; },
                    "q",
                    {"fp16", "must be bf16, or fp32 on the cpu"}},
        BadDsv4Call{"o_dtype",
                    [](Dsv4Call& c) { c.tensors.o.dtype = DType::fp32; },
                    "o",
                    {"fp32", "must be bf16, the dtype of q"}},
        BadDsv4Call{"rows_dtype",
                    [](Dsv4Call& c) { c.tensors.window->rows.dtype = DType::e4m3; },
                    "window.rows",
                    {"584 e4m3", "512 bf16", "584, 528 or 288 u8"}},
        BadDsv4Call{"rows_bytes",
                    [](Dsv4Call& c) { c.tensors.compressed->rows.shape[2] = 511; },
                    "compressed.rows",
                    {"511 bf16", "512 bf16"}},
        BadDsv4Call{"range_end_dtype",
                    [](Dsv4Call& c) { c.tensors.window->range_end->dtype = DType::int64; },
                    "window.range_end",
                    {"int64", "must be int32"}},
        BadDsv4Call{"range_begin_dtype",
                    [](Dsv4Call& c) { c.tensors.window->range_begin->dtype = DType::fp32; },
                    "window.range_begin",
                    {"fp32", "must be int32"}},
        BadDsv4Call{"block_table_dtype",
                    [](Dsv4Call& c) { c.tensors.window->block_table->dtype = DType::int64; },
                    "window.block_table",
                    {"int64", "must be int32"}},
        BadDsv4Call{"indices_dtype",
                    [](Dsv4Call& c) { c.tensors.compressed->indices->dtype = DType::int64; },
                    "compressed.indices",
                    {"int64", "must be int32"}},
        BadDsv4Call{"list_lengths_dtype",
                    [](Dsv4Call& c) { c.tensors.compressed->list_lengths->dtype = DType::int64; },
                    "compressed.list_lengths",
                    {"int64", "must be int32"}},
        BadDsv4Call{"fresh_rows_dtype",
                    [](Dsv4Call& c) { c.tensors.fresh_rows->dtype = DType::fp32; },
                    "fresh_rows",
                    {"fp32", "must be bf16, the dtype of q"}},
        BadDsv4Call{"sinks_dtype",
                    [](Dsv4Call& c) { c.tensors.sinks->dtype = DType::bf16; },
                    "sinks",
                    {"bf16", "must be fp32"}},
        BadDsv4Call{"lse_dtype",
                    [](Dsv4Call& c) { c.tensors.lse->dtype = DType::bf16; },
                    "lse",
                    {"bf16", "must be fp32"}},
        BadDsv4Call{"rotary_dtype",
                    [](Dsv4Call& c) {
                      c.tensors.rotary_cos = c.input(DType::bf16, {10, 32});
                      c.tensors.rotary_sin = c.tensors.rotary_cos;
                    },
                    "rotary_cos",
                    {"bf16", "must be fp32"}},
        BadDsv4Call{"positions_dtype",
                    [](Dsv4Call& c) { c.tensors.positions->dtype = DType::int32; },
                    "positions",
                    {"int32", "must be int64"}},
        BadDsv4Call{"rows_elsewhere",
                    [](Dsv4Call& c) {
                      c.tensors.compressed->rows.device = {DeviceKind::cuda, 1};
                    },
                    "compressed.rows",
                    {"cuda:1", "must be on cpu like q"}},
        BadDsv4Call{"indices_elsewhere",
                    [](Dsv4Call& c) {
                      c.tensors.compressed->indices->device = {DeviceKind::cuda, 0};
                    },
                    "compressed.indices",
                    {"cuda:0", "must be on cpu like q"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Shapes, BadDsv4Argument,
    testing::Values(BadDsv4Call{"q_rank",
                                [](Dsv4Call& c) { c.tensors.q.rank = 3; },
                                "q",
                                {"rank 3", "rank 4 (batch, seqlen, heads, head_dim)",
                                 "no cu_seqlens_q is given"}},
                    BadDsv4Call{"head_dim",
                                [](Dsv4Call& c) {
                                  c.tensors.q = c.input(DType::bf16, {2, 2, 4, 576});
                                },
                                "q",
                                {"head_dim is 576", "must equal", "512"}},
                    BadDsv4Call{"heads",
                                [](Dsv4Call& c) {
                                  c.tensors.q = c.input(DType::bf16, {2, 2, 129, 512});
                                },
                                "q",
                                {"129 heads", "at most 128"}},
                    BadDsv4Call{"tokens",
                                [](Dsv4Call& c) {
                                  c.tensors.q = c.input(DType::bf16, {2, 9, 4, 512});
                                },
                                "q",
                                {"9 new tokens", "at most 8"}},
                    BadDsv4Call{"o_heads",
                                [](Dsv4Call& c) {
                                  c.tensors.o = c.output(DType::bf16, {2, 2, 5, 512});
                                },
                                "o",
                                {"heads is 5", "q's 4"}},
                    BadDsv4Call{"o_head_dim",
                                [](Dsv4Call& c) {
                                  c.tensors.o = c.output(DType::bf16, {2, 2, 4, 448});
                                },
                                "o",
                                {"head_dim is 448", "q's 512"}},
                    BadDsv4Call{"q_not_contiguous",
                                [](Dsv4Call& c) { c.tensors.q.stride[3] = 2; },
                                "q",
                                {"stride 2", "contiguous"}},
                    BadDsv4Call{"range_end_batch",
                                [](Dsv4Call& c) {
                                  c.tensors.window->range_end = c.ints({1, 2}, {1, 2});
                                },
                                "window.range_end",
                                {"batch is 1", "q's 2"}},
                    BadDsv4Call{"range_begin_tokens",
                                [](Dsv4Call& c) {
                                  c.tensors.window->range_begin = c.ints({1, 2}, {2, 1});
                                },
                                "window.range_begin",
                                {"seqlen is 1", "q's 2"}},
                    BadDsv4Call{"block_table_batch",
                                [](Dsv4Call& c) {
                                  c.tensors.window->block_table = c.ints({1, 2}, {1, 2});
                                },
                                "window.block_table",
                                {"batch is 1", "q's 2"}},
                    BadDsv4Call{"block_table_stride",
                                [](Dsv4Call& c) { c.tensors.window->block_table->stride[1] = 2; },
                                "window.block_table",
                                {"stride 2", "contiguous"}},
                    BadDsv4Call{"indices_rank",
                                [](Dsv4Call& c) { c.tensors.compressed->indices->rank = 2; },
                                "compressed.indices",
                                {"rank 2", "rank 3 (batch, seqlen, entries)"}},
                    BadDsv4Call{"indices_stride",
                                [](Dsv4Call& c) { c.tensors.compressed->indices->stride[2] = 2; },
                                "compressed.indices",
                                {"stride 2", "contiguous"}},
                    BadDsv4Call{"list_lengths_batch",
                                [](Dsv4Call& c) {
                                  c.tensors.compressed->list_lengths = c.ints({1, 2, 3}, {3});
                                },
                                "compressed.list_lengths",
                                {"batch is 3", "q's 2"}},
                    BadDsv4Call{"fresh_rows_dim",
                                [](Dsv4Call& c) {
                                  c.tensors.fresh_rows = c.input(DType::bf16, {2, 2, 448});
                                },
                                "fresh_rows",
                                {"head_dim is 448", "q's 512"}},
                    BadDsv4Call{"fresh_rows_tokens",
                                [](Dsv4Call& c) {
                                  c.tensors.fresh_rows = c.input(DType::bf16, {2, 1, 512});
                                },
                                "fresh_rows",
                                {"seqlen is 1", "q's 2"}},
                    BadDsv4Call{"sinks_heads",
                                [](Dsv4Call& c) { c.tensors.sinks = c.input(DType::fp32, {3}); },
                                "sinks",
                                {"heads is 3", "q's 4"}},
                    BadDsv4Call{"lse_heads",
                                [](Dsv4Call& c) {
                                  c.tensors.lse = c.output(DType::fp32, {2, 3, 2});
                                },
                                "lse",
                                {"heads is 3", "q's 4"}},
                    BadDsv4Call{"rotary_pairs",
                                [](Dsv4Call& c) {
                                  c.tensors.rotary_cos = c.input(DType::fp32, {10, 16});
                                  c.tensors.rotary_sin = c.tensors.rotary_cos;
                                },
                                "rotary_cos",
                                {"pairs is 16", "32"}},
                    BadDsv4Call{"rotary_positions",
                                [](Dsv4Call& c) {
                                  c.tensors.rotary_sin = c.input(DType::fp32, {11, 32});
                                },
                                "rotary_sin",
                                {"positions is 11", "10"}},
                    BadDsv4Call{"positions_tokens",
                                [](Dsv4Call& c) {
                                  c.tensors.positions = c.ints<std::int64_t>({1, 2}, {2, 1});
                                },
                                "positions",
                                {"seqlen is 1", "q's 2"}},
                    BadDsv4Call{"rows_of_a_page_with_gaps",
                                [](Dsv4Call& c) { c.tensors.window->rows.stride[1] = 600; },
                                "window.rows",
                                {"stride 600", "must be 584"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Combinations, BadDsv4Argument,
    testing::Values(
        BadDsv4Call{"no_keys",
                    [](Dsv4Call& c) {
                      c.tensors.window.reset();
                      c.tensors.compressed.reset();
                      c.tensors.fresh_rows.reset();
                    },
                    "window.rows",
                    {"absent", "neither compressed nor fresh_rows"}},
        BadDsv4Call{"neither_range_nor_list",
                    [](Dsv4Call& c) { c.tensors.compressed->indices.reset(); },
                    "compressed.range_end",
                    {"absent", "where compressed.indices is absent"}},
        BadDsv4Call{"range_and_list",
                    [](Dsv4Call& c) {
                      c.tensors.compressed->range_end = c.ints({1, 1, 1, 1}, {2, 2});
                    },
                    "compressed.range_end",
                    {"is given", "absent where compressed.indices is given"}},
        BadDsv4Call{"begin_of_a_list",
                    [](Dsv4Call& c) {
                      c.tensors.compressed->range_begin = c.ints({1, 1, 1, 1}, {2, 2});
                    },
                    "compressed.range_begin",
                    {"is given", "absent where compressed.indices is given"}},
        BadDsv4Call{"table_of_a_list",
                    [](Dsv4Call& c) {
                      c.tensors.compressed->block_table = c.ints({1, 1}, {2, 1});
                    },
                    "compressed.block_table",
                    {"is given", "absent where compressed.indices is given"}},
        BadDsv4Call{"ring_of_a_list",
                    [](Dsv4Call& c) { c.tensors.compressed->ring = 2; },
                    "compressed.ring",
                    {"is 2", "must be 0 where compressed.indices is given"}},
        BadDsv4Call{"lengths_of_a_range",
                    [](Dsv4Call& c) {
                      c.tensors.window->list_lengths = c.ints({1, 1}, {2});
                    },
                    "window.list_lengths",
                    {"is given", "absent where window.indices is absent"}},
        BadDsv4Call{"bound_of_a_list",
                    [](Dsv4Call& c) { c.tensors.compressed->most_keys = 2; },
                    "compressed.most_keys",
                    {"is 2", "must be 0 where compressed.indices is given"}},
        BadDsv4Call{"negative_bound",
                    [](Dsv4Call& c) { c.tensors.window->most_keys = -1; },
                    "window.most_keys",
                    {"is -1", "at least 0"}},
        BadDsv4Call{"ring_of_half_a_page",
                    [](Dsv4Call& c) { c.tensors.window->ring = 6; },
                    "window.ring",
                    {"is 6", "at most the page size 4", "a multiple of that and at most 8"}},
        BadDsv4Call{"ring_beyond_the_pages",
                    [](Dsv4Call& c) { c.tensors.window->ring = 12; },
                    "window.ring",
                    {"is 12", "at most 8"}},
        BadDsv4Call{"negative_ring",
                    [](Dsv4Call& c) { c.tensors.window->ring = -4; },
                    "window.ring",
                    {"is -4"}},
        BadDsv4Call{"cos_alone",
                    [](Dsv4Call& c) { c.tensors.rotary_sin.reset(); },
                    "rotary_sin",
                    {"absent", "where rotary_cos is"}},
        BadDsv4Call{"positions_missing",
                    [](Dsv4Call& c) { c.tensors.positions.reset(); },
                    "positions",
                    {"absent", "where rotary_cos is"}},
        BadDsv4Call{"positions_alone",
                    [](Dsv4Call& c) {
                      c.tensors.rotary_cos.reset();
                      c.tensors.rotary_sin.reset();
                    },
                    "rotary_cos",
                    {"absent", "where positions is"}},
        BadDsv4Call{"row_sum_alone",
                    [](Dsv4Call& c) {
                      c.tensors.row_sum = c.output(DType::fp32, {2, 4, 2});
                    },
                    "row_max",
                    {"absent", "where row_sum is"}},
        BadDsv4Call{"rotated_statistics",
                    [](Dsv4Call& c) {
                      c.tensors.o = c.output(DType::fp32, {2, 2, 4, 512});
                      c.tensors.row_max = c.output(DType::fp32, {2, 4, 2});
                      c.tensors.row_sum = c.output(DType::fp32, {2, 4, 2});
                    },
                    "rotary_cos",
                    {"is given", "row_max and row_sum are given"}},
        BadDsv4Call{
            "scale", [](Dsv4Call& c) { c.options.scale = -1.0f; }, "scale", {"-1", "at least 0"}},
        BadDsv4Call{"kernel",
                    [](Dsv4Call& c) { c.options.kernel = "fast"; },
                    "kernel",
                    {"is 'fast'", "auto, cpu"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Memory, BadDsv4Argument,
    testing::Values(
        BadDsv4Call{"o_is_q",
                    [](Dsv4Call& c) { c.tensors.o.data = const_cast<void*>(c.tensors.q.data); },
                    "o",
                    {"shares memory with q"}},
        BadDsv4Call{"o_in_rows",
                    [](Dsv4Call& c) {
                      void* const memory = c.input(DType::u8, {1 << 16}).data;  // all of o's
                      c.tensors.window->rows.data = memory;
                      c.tensors.o.data = memory;
                    },
                    "o",
                    {"shares memory with window.rows"}},
        BadDsv4Call{"lse_in_indices",
                    [](Dsv4Call& c) { c.tensors.compressed->indices->data = c.tensors.lse->data; },
                    "lse",
                    {"shares memory with compressed.indices"}},
        BadDsv4Call{"lse_in_o",
                    [](Dsv4Call& c) { c.tensors.lse->data = c.tensors.o.data; },
                    "o",
                    {"shares memory with lse"}},
        BadDsv4Call{"o_overlaps",
                    [](Dsv4Call& c) { c.tensors.o.stride[2] = 0; },
                    "o",
                    {"stride of 0", "must not overlap"}},
        BadDsv4Call{"null_rows",
                    [](Dsv4Call& c) { c.tensors.window->rows.data = nullptr; },
                    "window.rows",
                    {"null"}},
        BadDsv4Call{"misplaced_range",
                    [](Dsv4Call& c) { misplace(*c.tensors.window->range_end, 2); },
                    "window.range_end",
                    {"aligned to 4 bytes"}},
        BadDsv4Call{"misplaced_positions",
                    [](Dsv4Call& c) { misplace(*c.tensors.positions, 4); },
                    "positions",
                    {"aligned to 8 bytes"}}),
    kCaseName);

class BadPackedDsv4Argument : public testing::TestWithParam<BadDsv4Call> {};

TEST_P(BadPackedDsv4Argument, IsRefused) { expect_refused(GetParam(), packed_dsv4_call()); }

INSTANTIATE_TEST_SUITE_P(
    All, BadPackedDsv4Argument,
    testing::Values(
        BadDsv4Call{"q_rank",
                    [](Dsv4Call& c) { c.tensors.q.rank = 4; },
                    "q",
                    {"rank 4", "rank 3 (tokens, heads, head_dim)", "cu_seqlens_q is given"}},
        BadDsv4Call{"range_end_tokens",
                    [](Dsv4Call& c) { c.tensors.window->range_end->shape[0] = 3; },
                    "window.range_end",
                    {"tokens is 3", "q's 4"}},
        BadDsv4Call{"range_end_rank",
                    [](Dsv4Call& c) {
                      c.tensors.window->range_end->rank = 2;
                      c.tensors.window->range_end->shape[1] = 1;
                    },
                    "window.range_end",
                    {"rank 2", "rank 1 (tokens)"}},
        BadDsv4Call{"too_few_pages",
                    [](Dsv4Call& c) { c.tensors.window->rows.shape[0] = 1; },
                    "window.rows",
                    {"1 pages", "2 or more, one for each request", "no window.block_table"}},
        BadDsv4Call{"o_dtype",
                    [](Dsv4Call& c) { c.tensors.o.dtype = DType::bf16; },
                    "o",
                    {"bf16", "must be fp32", "row_max and row_sum"}},
        BadDsv4Call{"one_cu_seqlen",
                    [](Dsv4Call& c) { c.tensors.cu_seqlens_q->shape[0] = 1; },
                    "cu_seqlens_q",
                    {"1 element", "at least 2"}},
        BadDsv4Call{"cu_seqlens_dtype",
                    [](Dsv4Call& c) { c.tensors.cu_seqlens_q->dtype = DType::int64; },
                    "cu_seqlens_q",
                    {"int64", "int32"}},
        BadDsv4Call{"scale_of_statistics",
                    [](Dsv4Call& c) {
                      c.tensors.o_scale = c.output(DType::fp32, {4, 3, 4});
                    },
                    "o_scale",
                    {"is given", "row_max and row_sum are given"}},
        BadDsv4Call{"table_batch",
                    [](Dsv4Call& c) {
                      c.tensors.window->block_table = c.ints({0, 0, 0}, {3, 1});
                    },
                    "window.block_table",
                    {"batch is 3", "cu_seqlens_q's 2"}}),
    kCaseName);

class BadQuantizedArgument : public testing::TestWithParam<BadDsv4Call> {};

TEST_P(BadQuantizedArgument, IsRefused) { expect_refused(GetParam(), quantized_call()); }

INSTANTIATE_TEST_SUITE_P(
    All, BadQuantizedArgument,
    testing::Values(BadDsv4Call{"o_dtype",
                                [](Dsv4Call& c) { c.tensors.o.dtype = DType::u8; },
                                "o",
                                {"u8", "must be e4m3", "as o_scale is given"}},
                    BadDsv4Call{"o_scale_dtype",
                                [](Dsv4Call& c) { c.tensors.o_scale->dtype = DType::e8m0; },
                                "o_scale",
                                {"e8m0", "must be fp32"}},
                    BadDsv4Call{"o_scale_heads",
                                [](Dsv4Call& c) {
                                  c.tensors.o_scale = c.output(DType::fp32, {1, 1, 3, 4});
                                },
                                "o_scale",
                                {"heads is 3", "q's 2"}},
                    BadDsv4Call{"o_scale_groups",
                                [](Dsv4Call& c) {
                                  c.tensors.o_scale = c.output(DType::fp32, {1, 1, 2, 8});
                                },
                                "o_scale",
                                {"groups is 8", "4"}},
                    BadDsv4Call{"o_scale_overlaps",
                                [](Dsv4Call& c) { c.tensors.o_scale->stride[3] = 0; },
                                "o_scale",
                                {"stride of 0", "must not overlap"}},
                    BadDsv4Call{"o_scale_in_o",
                                [](Dsv4Call& c) { c.tensors.o_scale->data = c.tensors.o.data; },
                                "o",
                                {"shares memory with o_scale"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
