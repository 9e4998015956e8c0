// Wrong rotations, descales and values of append_kv(), and outputs in memory that another argument
// has.
#include "append_call.hpp"

namespace tilewright::test {
namespace {

using BadCall = BadCallOf<AppendCall>;

class BadAppendDetail : public testing::TestWithParam<BadCall> {};

TEST_P(BadAppendDetail, IsRefused) {
  AppendCall c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { append_kv(c.t, c.options); });
}

INSTANTIATE_TEST_SUITE_P(
    Rotation, BadAppendDetail,
    testing::Values(BadCall{"no_sines",
                            [](AppendCall& c) { c.t.rotary_sin.reset(); },
                            "rotary_sin",
                            {"is absent", "where rotary_cos is given"}},
                    BadCall{"no_cosines",
                            [](AppendCall& c) { c.t.rotary_cos.reset(); },
                            "rotary_sin",
                            {"is given", "where rotary_cos is absent"}},
                    BadCall{"no_positions_of_slots",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.positions.reset();
                            },
                            "positions",
                            {"is absent", "rotary_cos and slot_mapping"}},
                    BadCall{"positions_of_no_rotation",
                            [](AppendCall& c) {
                              c.t.rotary_cos.reset();
                              c.t.rotary_sin.reset();
                              c.t.positions = c.positions.view();
                            },
                            "positions",
                            {"must be absent where rotary_cos is absent"}},
                    BadCall{"queries_without_rotation",
                            [](AppendCall& c) {
                              c.t.rotary_cos.reset();
                              c.t.rotary_sin.reset();
                            },
                            "q",
                            {"must be absent where rotary_cos is absent"}},
                    BadCall{"no_q_out",
                            [](AppendCall& c) { c.t.q_out.reset(); },
                            "q_out",
                            {"is absent", "where q is given"}},
                    BadCall{"no_q",
                            [](AppendCall& c) { c.t.q.reset(); },
                            "q_out",
                            {"is given", "where q is absent"}},
                    BadCall{"cos_rank",
                            [](AppendCall& c) { c.t.rotary_cos->rank = 1; },
                            "rotary_cos",
                            {"rank 1", "rank 2 (positions, pairs)"}},
                    BadCall{"cos_dtype",
                            [](AppendCall& c) { c.t.rotary_cos->dtype = DType::fp16; },
                            "rotary_cos",
                            {"fp16", "must be fp32 or bf16, the dtype of k"}},
                    BadCall{"too_many_pairs",
                            [](AppendCall& c) {
                              c.t.rotary_cos->shape = {2, 9};
                            },
                            "rotary_cos",
                            {"has 9 pairs", "half of k's head_dim 16"}},
                    BadCall{"sin_dtype",
                            [](AppendCall& c) { c.t.rotary_sin->dtype = DType::bf16; },
                            "rotary_sin",
                            {"bf16", "must be fp32, the dtype of rotary_cos"}},
                    BadCall{"sin_positions",
                            [](AppendCall& c) { c.t.rotary_sin->shape[0] = 11; },
                            "rotary_sin",
                            {"positions is 11, must equal rotary_cos' 12"}},
                    BadCall{"sin_pairs",
                            [](AppendCall& c) { c.t.rotary_sin->shape[1] = 3; },
                            "rotary_sin",
                            {"pairs is 3, must equal rotary_cos' 4"}},
                    BadCall{"positions_dtype",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.positions->dtype = DType::int32;
                            },
                            "positions",
                            {"int32", "must be int64"}},
                    BadCall{"positions_count",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.positions->shape[0] = 4;
                            },
                            "positions",
                            {"tokens is 4, must equal k's 5"}},
                    BadCall{"q_tokens",
                            [](AppendCall& c) { c.t.q->shape[0] = 4; },
                            "q",
                            {"tokens is 4, must equal k's 5"}},
                    BadCall{"q_head_dim",
                            [](AppendCall& c) { c.t.q->shape[2] = 8; },
                            "q",
                            {"head_dim is 8, must equal k's 16"}},
                    BadCall{"q_dtype",
                            [](AppendCall& c) { c.t.q->dtype = DType::fp16; },
                            "q",
                            {"fp16", "must be bf16, the dtype of k"}},
                    BadCall{"q_out_heads",
                            [](AppendCall& c) { c.t.q_out->shape[1] = 3; },
                            "q_out",
                            {"heads is 3, must equal q's 4"}},
                    BadCall{"q_out_overlap",
                            [](AppendCall& c) { c.t.q_out->stride[1] = 8; },
                            "q_out",
                            {"must not overlap"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Descales, BadAppendDetail,
    testing::Values(
        BadCall{"no_descale",
                [](AppendCall& c) { c.t.k_descale.reset(); },
                "k_descale",
                {"is absent", "k_cache is e4m3 and computed_k_descale is absent"}},
        BadCall{"two_descales",
                [](AppendCall& c) { c.t.computed_v_descale = c.computed_v_descale.view(); },
                "computed_v_descale",
                {"is given", "where v_descale is given"}},
        BadCall{"descale_of_bf16",
                [](AppendCall& c) { c.t.k_cache.dtype = c.t.v_cache.dtype = DType::bf16; },
                "k_descale",
                {"is given", "where k_cache is not e4m3"}},
        BadCall{"descale_by_sequence_of_slots",
                [](AppendCall& c) {
                  c.use_slots();
                  c.t.computed_k_descale.reset();
                  c.t.k_descale = c.k_descale.view();
                },
                "k_descale",
                {"rank 2", "slots have no sequence"}},
        BadCall{"descale_rank",
                [](AppendCall& c) { c.t.k_descale->rank = 3; },
                "k_descale",
                {"rank 3", "rank 1 (1), or 2 (sequences, heads)"}},
        BadCall{"descale_sequences",
                [](AppendCall& c) { c.t.k_descale->shape[0] = 1; },
                "k_descale",
                {"sequences is 1, must equal cache_seqlens' 2"}},
        BadCall{"descale_heads",
                [](AppendCall& c) { c.t.k_descale->shape[1] = 1; },
                "k_descale",
                {"heads is 1, must equal k's 2"}},
        BadCall{"descale_size",
                [](AppendCall& c) { c.t.v_descale->shape[0] = 2; },
                "v_descale",
                {"size is 2, must equal"}},
        BadCall{"descale_dtype",
                [](AppendCall& c) { c.t.v_descale->dtype = DType::bf16; },
                "v_descale",
                {"bf16", "must be fp32"}},
        BadCall{"descale_misaligned",
                [](AppendCall& c) { misplace(*c.t.v_descale, 2); },
                "v_descale",
                {"aligned to 4"}},
        BadCall{"computed_descale_rank",
                [](AppendCall& c) {
                  c.use_slots();
                  c.t.computed_k_descale->rank = 2;
                },
                "computed_k_descale",
                {"rank 2", "rank 3 (pages, page size, heads)"}},
        BadCall{"computed_descale_pages",
                [](AppendCall& c) {
                  c.use_slots();
                  c.t.computed_k_descale->shape[0] = 5;
                },
                "computed_k_descale",
                {"pages is 5, must equal k_cache's 6"}},
        BadCall{"computed_descale_heads",
                [](AppendCall& c) {
                  c.use_slots();
                  c.t.computed_k_descale->shape[2] = 1;
                },
                "computed_k_descale",
                {"heads is 1, must equal k_cache's 2"}},
        BadCall{"computed_descale_overlap",
                [](AppendCall& c) {
                  c.use_slots();
                  c.t.computed_k_descale->stride[0] = 0;
                },
                "computed_k_descale",
                {"must not overlap"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    SharedMemory, BadAppendDetail,
    testing::Values(BadCall{"k_cache_in_k",
                            [](AppendCall& c) { c.t.k_cache.data = c.k.data(); },
                            "k_cache",
                            {"shares memory with k"}},
                    BadCall{"v_cache_in_k_cache",
                            [](AppendCall& c) { c.t.v_cache.data = c.k_cache.data() + 8; },
                            "k_cache",
                            {"shares memory with v_cache"}},
                    BadCall{"q_out_in_q",
                            [](AppendCall& c) { c.t.q_out->data = c.q.data(); },
                            "q_out",
                            {"shares memory with q"}},
                    BadCall{"v_cache_in_the_block_table",
                            [](AppendCall& c) { c.t.block_table->data = c.v_cache.data() + 4; },
                            "v_cache",
                            {"shares memory with block_table"}},
                    BadCall{"slots_in_the_computed_descale",
                            [](AppendCall& c) {
                              c.use_slots();
                              c.t.slot_mapping->data = c.computed_k_descale.data();
                            },
                            "computed_k_descale",
                            {"shares memory with slot_mapping"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Values, BadAppendDetail,
    testing::Values(
        BadCall{"a_slot_below",
                [](AppendCall& c) {
                  c.use_slots();
                  c.set(c.slots, {0, -2});
                },
                "slot_mapping",
                {"is -2 for row 1, must be -1 or less than 24, the slots of k_cache"}},
        BadCall{"a_slot_beyond",
                [](AppendCall& c) {
                  c.use_slots();
                  c.set(c.slots, {0, 1, 2, 24});
                },
                "slot_mapping",
                {"is 24 for row 3"}},
        BadCall{"a_slot_twice",
                [](AppendCall& c) {
                  c.use_slots();
                  c.set(c.slots, {7, 1, -1, -1, 7});
                },
                "slot_mapping",
                {"gives slot 7 to rows 0 and 4, must give each row its own"}},
        BadCall{"a_negative_length",
                [](AppendCall& c) {
                  c.set(c.seqlens, {-1, 0});
                },
                "cache_seqlens",
                {"is -1 for sequence 0 with 3 new tokens, must be at least 0"}},
        BadCall{"a_length_beyond_the_table",
                [](AppendCall& c) {
                  c.set(c.seqlens, {0, 11});
                },
                "cache_seqlens",
                {"is 11 for sequence 1 with 2 new tokens",
                 "at most 12, the capacity of a row of block_table"}},
        BadCall{"a_length_beyond_the_entry",
                [](AppendCall& c) {
                  c.use_entries();
                  c.set(c.seqlens, {2, 0});
                },
                "cache_seqlens",
                {"is 2 for sequence 0 with 3 new tokens",
                 "at most 4, the capacity of an entry of k_cache"}},
        BadCall{"starts_that_fall",
                [](AppendCall& c) {
                  c.set(c.starts, {0, 4, 3});
                },
                "cu_seqlens_new",
                {"falls from 4 to 3 at element 2, must ascend"}},
        BadCall{"starts_from_1",
                [](AppendCall& c) {
                  c.set(c.starts, {1, 3, 5});
                },
                "cu_seqlens_new",
                {"starts with 1, must start with 0"}},
        BadCall{"starts_beyond_k",
                [](AppendCall& c) {
                  c.set(c.starts, {0, 3, 6});
                },
                "cu_seqlens_new",
                {"ends with 6, must be at most 5, the tokens of k"}},
        BadCall{"a_page_beyond",
                [](AppendCall& c) {
                  c.set(c.table, {5, 6, 3, 2, 1, 4});
                },
                "block_table",
                {"is 6 for sequence 0, entry 1, must be from 0 to 5, the pages of k_cache"}},
        BadCall{"a_negative_page",
                [](AppendCall& c) {
                  c.set(c.table, {5, 0, 3, 2, 1, -1});
                },
                "block_table",
                {"is -1 for sequence 1, entry 2"}},
        BadCall{"a_page_twice",
                [](AppendCall& c) {
                  c.set(c.table, {5, 2, 3, 2, 1, 2});
                },
                "block_table",
                {"gives slot 8 to rows 0 and 4"}},
        BadCall{"an_entry_beyond",
                [](AppendCall& c) {
                  c.use_entries();
                  c.set(c.batch_idx, {6, 0});
                },
                "cache_batch_idx",
                {"is 6 for sequence 0, must be from 0 to 5, the entries of k_cache"}},
        BadCall{"an_entry_twice",
                [](AppendCall& c) {
                  c.use_entries();
                  c.set(c.batch_idx, {3, 3});
                },
                "cache_batch_idx",
                {"gives slot 14 to rows 1 and 3"}},
        BadCall{"a_position_beyond",
                [](AppendCall& c) {
                  c.use_slots();
                  c.set(c.positions, {0, 1, 12});
                },
                "positions",
                {"is 12 for row 2, must be from 0 to 11, the positions of rotary_cos"}},
        BadCall{"a_negative_position",
                [](AppendCall& c) {
                  c.use_slots();
                  c.set(c.positions, {0, -1});
                },
                "positions",
                {"is -1 for row 1"}},
        BadCall{"lengths_beyond_the_rotation",
                [](AppendCall& c) { c.t.rotary_cos->shape[0] = c.t.rotary_sin->shape[0] = 8; },
                "rotary_cos",
                {"has 8 positions, must have at least 9, those of sequence 1"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
