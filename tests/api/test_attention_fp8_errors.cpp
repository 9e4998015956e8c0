// Every wrong argument of attention_fp8(): the code, the argument and the message of the exception,
// and outputs that stay untouched. What attention() checks, too, is only touched on.
#include <limits>

#include "fp8_call.hpp"
#include "tilewright/attention_fp8_kernels.hpp"

namespace tilewright::test {
namespace {

using BadCall = BadCallOf<Fp8Call>;

class BadAttentionFp8 : public testing::TestWithParam<BadCall> {};

TEST_P(BadAttentionFp8, IsRefused) {
  Fp8Call c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { attention_fp8(c.t, c.options); });
}

TEST(AttentionFp8Calls, ThatTheCasesSpoilAreRight) {
  const auto run = [](void (*change)(Fp8Call&)) {
    Fp8Call c;
    change(c);
    EXPECT_NO_THROW(attention_fp8(c.t, c.options));
    EXPECT_FALSE(c.outputs_untouched());
    EXPECT_EQ(attention_fp8_workspace_bytes(c.t, c.options), 0u);
  };
  run([](Fp8Call&) {});
  run([](Fp8Call& c) { c.pack(); });
  run([](Fp8Call& c) { c.use_head_descales(); });
  run([](Fp8Call& c) { c.use_transposed_values(); });
  run([](Fp8Call& c) {
    c.pack();
    c.use_packed_transposed_values();
  });
  run([](Fp8Call& c) { c.t.q_descale = c.t.v_descale = c.one_descale.view(); });
  run([](Fp8Call& c) { c.t.q_descale = c.t.k_descale = c.t.v_descale = std::nullopt; });
  run([](Fp8Call& c) { reference::store(c.k_descale.view(), 0, 0.0); });
  run([](Fp8Call& c) {
    c.t.o = c.fp32_o.view();
    c.t.row_max = c.row_max.view();
    c.t.row_sum = c.row_sum.view();
  });
}

// Of sequences of 70 rows the second block of 64 has 6; packed, block 3 of 4 has none.
TEST(AttentionFp8Calls, LookAtNoDescaleOfNoRow) {
  Fp8Call c;
  c.pack();
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  c.starts_q = Fp8Call::lengths({0, 60, 60});
  c.t.cu_seqlens_q = c.starts_q.view();
  for (const std::int64_t unused : {1, 2, 3}) {
    reference::store(c.packed_q_descale.view(), unused, kNaN);
  }
  EXPECT_NO_THROW(attention_fp8(c.t, c.options));
}

INSTANTIATE_TEST_SUITE_P(
    Arguments, BadAttentionFp8,
    testing::Values(
        BadCall{"q_rank", [](auto& c) { c.t.q.rank = 3; }, "q", {"has rank 3"}},
        BadCall{"q_dtype", [](auto& c) { c.t.q.dtype = DType::u8; }, "q", {"u8", "must be e4m3"}},
        BadCall{"k_dtype", [](auto& c) { c.t.k.dtype = DType::u8; }, "k", {"must be e4m3"}},
        BadCall{"v_dtype", [](auto& c) { c.t.v->dtype = DType::u8; }, "v", {"must be e4m3"}},
        BadCall{"no_v", [](auto& c) { c.t.v.reset(); }, "v", {"is absent", "v_transposed"}},
        BadCall{"both",
                [](auto& c) { c.t.v_transposed = c.v_transposed.view(); },
                "v",
                {"is given, must be absent where v_transposed"}},
        BadCall{"o_dtype", [](auto& c) { c.t.o.dtype = DType::fp32; }, "o", {"bf16 or fp16"}},
        BadCall{"unnormalized_o",
                [](auto& c) {
                  c.t.row_max = c.row_max.view();
                  c.t.row_sum = c.row_sum.view();
                },
                "o",
                {"must be fp32, as row_max"}},
        BadCall{"head_dims", [](auto& c) { c.t.k.shape[3] = 32; }, "k", {"head_dim is 32"}},
        BadCall{"v_heads", [](auto& c) { c.t.v->shape[2] = 1; }, "v", {"heads is 1"}},
        BadCall{"scale", [](auto& c) { c.options.scale = -1.0f; }, "scale", {"at least 0"}},
        BadCall{"softcap", [](auto& c) { c.options.softcap = -1.0f; }, "softcap", {"at least 0"}},
        BadCall{"window",
                [](auto& c) { c.options.window.left = -1; },
                "window",
                {"left", "at least 0"}},
        BadCall{"sinks", [](auto& c) { c.t.sinks->shape[0] = 3; }, "sinks", {"heads is 3"}},
        BadCall{"overlap", [](auto& c) { c.t.o.data = c.q.data(); }, "o", {"q"}},
        BadCall{"on_a_descale",
                [](auto& c) { c.t.k_descale->data = c.t.lse->data; },
                "lse",
                {"k_descale"}},
        BadCall{"kernel", [](auto& c) { c.options.kernel = "none"; }, "kernel", {"must be one of"}},
        BadCall{"descale_rows",
                [](auto& c) { c.options.descale_rows = 32; },
                "descale_rows",
                {"is 32, must be 0, 64 or 128"}},
        BadCall{"blocks",
                [](auto& c) { c.options.descale_rows = 128; },
                "q_descale",
                {"blocks is 2, must equal those of 128 rows, 1"}},
        BadCall{"descale_rank",
                [](auto& c) { c.options.descale_rows = 0; },
                "q_descale",
                {"has rank 3, must have rank 2 (batch, kv heads)"}},
        BadCall{"block_rank",
                [](auto& c) { c.t.k_descale = c.head_descale.view(); },
                "k_descale",
                {"has rank 2, must have rank 3 (batch, heads, blocks), as descale_rows is 64"}},
        BadCall{"descale_dtype",
                [](auto& c) { c.t.v_descale->dtype = DType::int32; },
                "v_descale",
                {"must be fp32"}},
        BadCall{"descale_heads",
                [](auto& c) { c.t.q_descale = c.k_descale.view(); },
                "q_descale",
                {"heads is 2, must equal q's 4"}},
        BadCall{"descale_size",
                [](auto& c) {
                  c.t.q_descale = c.one_descale.view();
                  c.t.q_descale->shape[0] = 2;
                },
                "q_descale",
                {"size is 2"}},
        BadCall{"head_descale_batch",
                [](auto& c) {
                  c.use_head_descales();
                  c.t.k_descale->shape[0] = 1;
                },
                "k_descale",
                {"batch is 1, must equal q's 2"}},
        BadCall{"misaligned_descale",
                [](auto& c) { misplace(*c.t.k_descale, 2); },
                "k_descale",
                {"2 bytes past a 4-byte"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    TransposedValues, BadAttentionFp8,
    testing::Values(BadCall{"columns",
                            [](auto& c) {
                              c.use_transposed_values();
                              c.t.v_transposed->shape[3] = 104;
                            },
                            "v_transposed",
                            {"has 104 columns, must have a multiple of 16, and at least 112 for "
                             "k's 100 rows"}},
                    BadCall{"few_columns",
                            [](auto& c) {
                              c.use_transposed_values();
                              c.t.v_transposed->shape[3] = 96;
                            },
                            "v_transposed",
                            {"has 96 columns"}},
                    BadCall{"few_packed_columns",
                            [](auto& c) {
                              c.pack();
                              c.use_packed_transposed_values();
                              c.t.v_transposed->shape[2] = 208;
                            },
                            "v_transposed",
                            {"has 208 columns, must have a multiple of 16, and at least 224 for "
                             "k's 200 rows of 2 packed sequences"}},
                    BadCall{"columns_of_one_sequence",
                            [](auto& c) {
                              c.pack();
                              c.t.cu_seqlens_k->shape[0] = 1;
                              c.use_packed_transposed_values();
                            },
                            "cu_seqlens_k",
                            {"batch (elements less one) is 0, must equal cu_seqlens_q's 2"}},
                    BadCall{"transposed_heads",
                            [](auto& c) {
                              c.use_transposed_values();
                              c.t.v_transposed->shape[1] = 1;
                            },
                            "v_transposed",
                            {"heads is 1, must equal k's 2"}},
                    BadCall{"transposed_stride",
                            [](auto& c) {
                              c.use_transposed_values();
                              c.t.v_transposed->stride[3] = 2;
                            },
                            "v_transposed",
                            {"columns must be contiguous"}},
                    BadCall{"transposed_dim",
                            [](auto& c) {
                              c.use_transposed_values();
                              c.t.v_transposed->shape[2] = 32;
                            },
                            "o",
                            {"head_dim is 64, must equal v's 32"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Values, BadAttentionFp8,
    testing::Values(BadCall{"negative",
                            [](auto& c) { reference::store(c.q_descale.view(), 3, -1.0); },
                            "q_descale",
                            {"in element 3, must be finite and at least 0"}},
                    BadCall{"infinite",
                            [](auto& c) {
                              reference::store(c.v_descale.view(), 0,
                                               std::numeric_limits<double>::infinity());
                            },
                            "v_descale",
                            {"must be finite"}},
                    BadCall{"not_a_number",
                            [](auto& c) {
                              c.use_head_descales();
                              reference::store(c.head_descale.view(), 1,
                                               std::numeric_limits<double>::quiet_NaN());
                            },
                            "q_descale",
                            {"must be finite"}},
                    BadCall{"packed_descale",
                            [](auto& c) {
                              c.pack();
                              reference::store(c.packed_k_descale.view(), 2, -1.0);
                            },
                            "k_descale",
                            {"in element 2"}},
                    BadCall{"cu_seqlens",
                            [](auto& c) {
                              c.pack();
                              reference::store(c.starts_k.view(), 2, 300);
                            },
                            "cu_seqlens_k",
                            {"ends with 300"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
