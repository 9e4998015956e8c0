// Every wrong argument of rotate_quantize(): the code, the argument and the message of the
// exception, and outputs that stay untouched.
#include <limits>

#include "fp8_call.hpp"

namespace tilewright::test {
namespace {

using BadCall = BadCallOf<RotateCall>;

class BadRotateQuantize : public testing::TestWithParam<BadCall> {};

TEST_P(BadRotateQuantize, IsRefused) {
  RotateCall c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { rotate_quantize(c.t, c.options); });
}

TEST(RotateQuantizeCalls, ThatTheCasesSpoilAreRight) {
  const auto run = [](void (*change)(RotateCall&)) {
    RotateCall c;
    change(c);
    EXPECT_NO_THROW(rotate_quantize(c.t, c.options));
    EXPECT_FALSE(c.outputs_untouched());
  };
  run([](RotateCall&) {});
  run([](RotateCall& c) { c.pack(); });
  run([](RotateCall& c) { c.transpose(); });
  run([](RotateCall& c) {
    c.pack();
    c.transpose_packed();
  });
  run([](RotateCall& c) { c.fix_descale(); });
}

INSTANTIATE_TEST_SUITE_P(
    Arguments, BadRotateQuantize,
    testing::Values(
        BadCall{"x_rank", [](auto& c) { c.t.x.rank = 3; }, "x", {"has rank 3", "no cu_seqlens"}},
        BadCall{"x_dtype",
                [](auto& c) { c.t.x.dtype = DType::e4m3; },
                "x",
                {"must be fp32, fp16 or bf16"}},
        BadCall{"seed_dims",
                [](auto& c) { c.t.x.shape[3] = 48; },
                "x",
                {"has head_dim 48, must have a power of two from 2 to 256"}},
        BadCall{"no_out", [](auto& c) { c.t.out.reset(); }, "out", {"is absent"}},
        BadCall{"both_outs",
                [](auto& c) { c.t.out_transposed = c.out_transposed.view(); },
                "out",
                {"must be absent where out_transposed is given"}},
        BadCall{"out_dtype", [](auto& c) { c.t.out->dtype = DType::u8; }, "out", {"e4m3"}},
        BadCall{"out_heads", [](auto& c) { c.t.out->shape[2] = 1; }, "out", {"heads is 1"}},
        BadCall{"out_dims", [](auto& c) { c.t.out->shape[3] = 32; }, "out", {"head_dim is 32"}},
        BadCall{"out_overlap", [](auto& c) { c.t.out->stride[2] = 32; }, "out", {"not overlap"}},
        BadCall{"columns",
                [](auto& c) {
                  c.transpose();
                  c.t.out_transposed->shape[3] = 72;
                },
                "out_transposed",
                {"has 72 columns, must have a multiple of 16, and at least 80 for x's 70 rows"}},
        BadCall{
            "packed_columns",
            [](auto& c) {
              c.pack();
              c.transpose_packed();
              c.t.out_transposed->shape[2] = 144;
            },
            "out_transposed",
            {"has 144 columns, must have a multiple of 16, and at least 160 for x's 140 rows of "
             "2 packed sequences"}},
        BadCall{"transposed_dims",
                [](auto& c) {
                  c.transpose();
                  c.t.out_transposed->shape[2] = 32;
                },
                "out_transposed",
                {"head_dim is 32, must equal x's 64"}},
        BadCall{"descale_rows",
                [](auto& c) { c.options.descale_rows = 0; },
                "descale_rows",
                {"is 0, must be 64 or 128"}},
        BadCall{"no_descale", [](auto& c) { c.t.descale.reset(); }, "descale", {"is absent"}},
        BadCall{"both_descales",
                [](auto& c) { c.t.fixed_descale = c.fixed_descale.view(); },
                "descale",
                {"must be absent where fixed_descale is given"}},
        BadCall{"blocks",
                [](auto& c) { c.options.descale_rows = 128; },
                "descale",
                {"blocks is 2, must equal those of 128 rows, 1"}},
        BadCall{"packed_blocks",
                [](auto& c) {
                  c.pack();
                  c.t.descale->shape[1] = 3;
                },
                "descale",
                {"blocks is 3, must equal those of 64 rows, 4"}},
        BadCall{"fixed_batch",
                [](auto& c) {
                  c.fix_descale();
                  c.t.fixed_descale->shape[0] = 1;
                },
                "fixed_descale",
                {"batch is 1"}},
        BadCall{"no_sin", [](auto& c) { c.t.rotary_sin.reset(); }, "rotary_sin", {"is absent"}},
        BadCall{"no_cos",
                [](auto& c) { c.t.rotary_cos.reset(); },
                "rotary_sin",
                {"must be absent where rotary_cos is absent"}},
        BadCall{"pairs",
                [](auto& c) { c.t.rotary_cos->shape[1] = 33; },
                "rotary_cos",
                {"33 pairs", "half of x's head_dim 64"}},
        BadCall{"few_positions",
                [](auto& c) {
                  c.t.positions.reset();
                  c.t.rotary_cos->shape[0] = c.t.rotary_sin->shape[0] = 69;
                },
                "rotary_cos",
                {"has 69 positions, must have at least 70"}},
        BadCall{"positions_rank",
                [](auto& c) { c.t.positions->rank = 1; },
                "positions",
                {"has rank 1"}},
        BadCall{"positions_dtype",
                [](auto& c) { c.t.positions->dtype = DType::int32; },
                "positions",
                {"int64"}},
        BadCall{"positions_size",
                [](auto& c) { c.t.positions->shape[1] = 69; },
                "positions",
                {"seqlen is 69"}},
        BadCall{"one_start",
                [](auto& c) {
                  c.pack();
                  c.t.cu_seqlens->shape[0] = 1;
                },
                "cu_seqlens",
                {"has 1 element"}},
        BadCall{"on_x", [](auto& c) { c.t.out->data = c.x.data(); }, "out", {"x"}},
        BadCall{"on_out", [](auto& c) { c.t.descale->data = c.out.data(); }, "descale", {"out"}},
        BadCall{"kernel", [](auto& c) { c.options.kernel = "k"; }, "kernel", {"must be one of"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Values, BadRotateQuantize,
    testing::Values(BadCall{"position",
                            [](auto& c) { reference::store(c.positions.view(), 9, 80); },
                            "positions",
                            {"is 80 for row 9, must be from 0 to 79"}},
                    BadCall{"start",
                            [](auto& c) {
                              c.pack();
                              reference::store(c.starts.view(), 2, 141);
                            },
                            "cu_seqlens",
                            {"ends with 141"}},
                    BadCall{"long_sequence",
                            [](auto& c) {
                              c.pack();
                              reference::store(c.starts.view(), 1, 100);
                            },
                            "rotary_cos",
                            {"has 80 positions, must have at least 100, those of sequence 0"}},
                    BadCall{"fixed_zero",
                            [](auto& c) {
                              c.fix_descale();
                              reference::store(c.fixed_descale.view(), 2, 0.0);
                            },
                            "fixed_descale",
                            {"must be finite and at least FLT_MIN"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
