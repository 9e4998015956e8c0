// Every wrong argument: the code, the argument and the message of the exception, and outputs that
// stay untouched. What only a GPU can refuse is in tests/gpu/test_errors.cpp.
#include <cmath>
#include <limits>

#include "attention_call.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::test {
namespace {

Call plain_call() {
  Call call;
  call.tensors = {.q = call.input(DType::bf16, {2, 5, 6, 64}),
                  .k = call.input(DType::bf16, {2, 7, 3, 64}),
                  .v = call.input(DType::bf16, {2, 7, 3, 32}),
                  .o = call.output(DType::bf16, {2, 5, 6, 32}),
                  .lse = call.output(DType::fp32, {2, 6, 5}),
                  .sinks = call.input(DType::fp32, {6})};
  return call;
}

// q and o side by side in the rows of one buffer.
TEST(AttentionCall, OutputsMayLieInTheGapsOfInputs) {
  Call call = plain_call();
  TensorView rows = call.input(DType::bf16, {2, 5, 6, 96});
  call.tensors.o = rows;
  call.tensors.o.shape[3] = 32;
  misplace(call.tensors.o, 128);
  rows.shape[3] = 64;
  call.tensors.q = rows;
  EXPECT_NO_THROW(attention(call.tensors, call.options));
}

class BadArgument : public testing::TestWithParam<BadCall> {};

TEST(AttentionCall, TheCallThatTheCasesSpoilIsRight) {
  const Call call = plain_call();
  EXPECT_NO_THROW(attention(call.tensors, call.options));
  EXPECT_FALSE(call.outputs_untouched());
}

TEST_P(BadArgument, IsRefused) { expect_refused(GetParam(), plain_call()); }

INSTANTIATE_TEST_SUITE_P(DtypeAndDevice, BadArgument,
                         testing::Values(BadCall{"k_dtype",
                                                 [](Call& c) { c.tensors.k.dtype = DType::fp16; },
                                                 "k",
                                                 {"fp16", "must be bf16", "dtype of q"}},
                                         BadCall{"v_dtype",
                                                 [](Call& c) { c.tensors.v.dtype = DType::fp32; },
                                                 "v",
                                                 {"fp32", "must be bf16"}},
                                         BadCall{"o_dtype",
                                                 [](Call& c) { c.tensors.o.dtype = DType::fp32; },
                                                 "o",
                                                 {"fp32", "must be bf16"}},
                                         BadCall{
                                             "lse_dtype",
                                             [](Call& c) { c.tensors.lse->dtype = DType::bf16; },
                                             "lse",
                                             {"bf16", "must be fp32"}},
                                         BadCall{"k_on_another_device",
                                                 [](Call& c) {
                                                   c.tensors.k.device = {DeviceKind::cuda, 1};
                                                 },
                                                 "k",
                                                 {"cuda:1", "must be on cpu"}},
                                         BadCall{"lse_on_another_device",
                                                 [](Call& c) {
                                                   c.tensors.lse->device = {DeviceKind::cuda, 0};
                                                 },
                                                 "lse",
                                                 {"cuda:0", "must be on cpu"}},
                                         BadCall{"cpu_tensors_to_a_gpu_kernel",
                                                 [](Call& c) { c.options.kernel = "k4"; },
                                                 "q",
                                                 {"on cpu", "k4", "cuda"}},
                                         BadCall{"gpu_tensors_to_the_cpu_kernel",
                                                 [](Call& c) {
                                                   c.move_to({DeviceKind::cuda, 0});
                                                   c.options.kernel = "cpu";
                                                 },
                                                 "q",
                                                 {"cuda:0", "the cpu"}}),
                         kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Shape, BadArgument,
    testing::Values(
        BadCall{"q_rank",
                [](Call& c) { c.tensors.q.rank = 3; },
                "q",
                {"rank 3", "rank 4 (batch, seqlen, heads, head_dim)", "no cu_seqlens_q"}},
        BadCall{"v_rank", [](Call& c) { c.tensors.v.rank = 5; }, "v", {"rank 5", "rank 4"}},
        BadCall{"lse_rank", [](Call& c) { c.tensors.lse->rank = 4; }, "lse", {"rank 4", "rank 3"}},
        BadCall{"no_queries",
                [](Call& c) { c.tensors.q.shape[1] = 0; },
                "q",
                {"(2, 0, 6, 64)", "at least 1"}},
        BadCall{"no_keys",
                [](Call& c) { c.tensors.k.shape[1] = 0; },
                "k",
                {"(2, 0, 3, 64)", "at least 1"}},
        BadCall{"no_heads", [](Call& c) { c.tensors.k.shape[2] = 0; }, "k", {"at least 1"}},
        BadCall{"negative_size", [](Call& c) { c.tensors.v.shape[0] = -2; }, "v", {"-2"}},
        BadCall{"huge_size",
                [](Call& c) { c.tensors.q.shape[1] = std::int64_t{1} << 31; },
                "q",
                {"2147483648", "2^30"}},
        BadCall{"k_batch", [](Call& c) { c.tensors.k.shape[0] = 1; }, "k", {"batch is 1", "q's 2"}},
        BadCall{"k_head_dim",
                [](Call& c) { c.tensors.k.shape[3] = 32; },
                "k",
                {"head_dim is 32", "q's 64"}},
        BadCall{"o_head_dim",
                [](Call& c) { c.tensors.o.shape[3] = 64; },
                "o",
                {"head_dim is 64", "v's 32"}},
        BadCall{
            "v_seqlen", [](Call& c) { c.tensors.v.shape[1] = 6; }, "v", {"seqlen is 6", "k's 7"}},
        BadCall{"v_heads", [](Call& c) { c.tensors.v.shape[2] = 6; }, "v", {"heads is 6", "k's 3"}},
        BadCall{"heads_do_not_divide",
                [](Call& c) { c.tensors.k.shape[2] = c.tensors.v.shape[2] = 4; },
                "k",
                {"4 heads", "divide q's 6"}},
        BadCall{
            "o_seqlen", [](Call& c) { c.tensors.o.shape[1] = 4; }, "o", {"seqlen is 4", "q's 5"}},
        BadCall{"lse_seqlen",
                [](Call& c) { c.tensors.lse->shape[2] = 4; },
                "lse",
                {"seqlen is 4", "q's 5"}},
        BadCall{"lse_heads",
                [](Call& c) { c.tensors.lse->shape[1] = 3; },
                "lse",
                {"heads is 3", "q's 6"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Memory, BadArgument,
    testing::Values(
        BadCall{"null_q", [](Call& c) { c.tensors.q.data = nullptr; }, "q", {"null"}},
        BadCall{"null_o", [](Call& c) { c.tensors.o.data = nullptr; }, "o", {"null"}},
        BadCall{"null_lse", [](Call& c) { c.tensors.lse->data = nullptr; }, "lse", {"null"}},
        BadCall{"head_dim_not_contiguous",
                [](Call& c) { c.tensors.k.stride[3] = 2; },
                "k",
                {"stride 2", "contiguous (stride 1)"}},
        BadCall{"o_head_dim_not_contiguous",
                [](Call& c) { c.tensors.o.stride[3] = 5; },
                "o",
                {"stride 5", "contiguous"}},
        BadCall{"o_overlaps_itself",
                [](Call& c) { c.tensors.o.stride[2] = 16; },
                "o",
                {"stride of 16", "must not overlap"}},
        BadCall{
            "o_broadcast", [](Call& c) { c.tensors.o.stride[0] = 0; }, "o", {"must not overlap"}},
        BadCall{"lse_overlaps_itself",
                [](Call& c) { c.tensors.lse->stride[1] = 1; },
                "lse",
                {"must not overlap"}},
        BadCall{"o_is_q",
                [](Call& c) { c.tensors.o.data = const_cast<void*>(c.tensors.q.data); },
                "o",
                {"shares memory with q", "must not overlap an input or another output"}},
        BadCall{"lse_in_the_sinks",
                [](Call& c) { c.tensors.sinks->data = c.tensors.lse->data; },
                "lse",
                {"shares memory with sinks"}},
        BadCall{"lse_in_o",
                [](Call& c) { c.tensors.lse->data = c.tensors.o.data; },
                "o",
                {"shares memory with lse"}},
        BadCall{"o_beyond_all_addresses",
                [](Call& c) { c.tensors.o.stride[0] = std::int64_t{1} << 62; },
                "o",
                {"in dimension", "must not span more than 2^60 bytes"}},
        BadCall{"k_below_all_addresses",
                [](Call& c) { c.tensors.k.stride[1] = std::numeric_limits<std::int64_t>::min(); },
                "k",
                {"in dimension", "must not span more than 2^60 bytes"}},
        BadCall{"lse_beyond_all_addresses",
                [](Call& c) {
                  c.tensors.lse->stride[0] = c.tensors.lse->stride[1] =
                      std::numeric_limits<std::int64_t>::max();
                },
                "lse",
                {"in dimension", "must not span more than 2^60 bytes"}},
        BadCall{"misaligned_q",
                [](Call& c) { misplace(c.tensors.q, 1); },
                "q",
                {"1 bytes past", "aligned to 2"}},
        BadCall{"misaligned_o", [](Call& c) { misplace(c.tensors.o, 1); }, "o", {"aligned to 2"}},
        BadCall{"misaligned_lse",
                [](Call& c) { misplace(*c.tensors.lse, 2); },
                "lse",
                {"aligned to 4"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(Options, BadArgument,
                         testing::Values(BadCall{"negative_scale",
                                                 [](Call& c) { c.options.scale = -0.5f; },
                                                 "scale",
                                                 {"-0.5", "at least 0"}},
                                         BadCall{"nan_scale",
                                                 [](Call& c) { c.options.scale = std::nanf(""); },
                                                 "scale",
                                                 {"nan", "finite"}},
                                         BadCall{"infinite_scale",
                                                 [](Call& c) {
                                                   c.options.scale =
                                                       std::numeric_limits<float>::infinity();
                                                 },
                                                 "scale",
                                                 {"inf", "finite"}},
                                         BadCall{"scale_beyond_fp32",
                                                 [](Call& c) { c.options.scale = 2e38f; },
                                                 "scale",
                                                 {"must be at most 1e38"}},
                                         BadCall{"unknown_kernel",
                                                 [](Call& c) { c.options.kernel = "k99"; },
                                                 "kernel",
                                                 {"'k99'", "auto, cpu, k1"}}),
                         kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Features, BadArgument,
    testing::Values(
        BadCall{"negative_softcap",
                [](Call& c) { c.options.softcap = -1.0f; },
                "softcap",
                {"-1.0", "at least 0"}},
        BadCall{"nan_softcap",
                [](Call& c) { c.options.softcap = std::nanf(""); },
                "softcap",
                {"nan", "finite"}},
        BadCall{"softcap_beyond_fp32",
                [](Call& c) { c.options.softcap = 3e38f; },
                "softcap",
                {"must be at most 1e38"}},
        BadCall{"softcap_below_fp32",
                [](Call& c) { c.options.softcap = 1e-40f; },
                "softcap",
                {"must be at least scale / 1e38"}},
        BadCall{"negative_left",
                [](Call& c) { c.options.window.left = -3; },
                "window",
                {"left is -3", "at least 0"}},
        BadCall{"negative_right",
                [](Call& c) { c.options.window.right = -1; },
                "window",
                {"right is -1", "at least 0"}},
        BadCall{"sinks_rank",
                [](Call& c) { c.tensors.sinks->rank = 3; },
                "sinks",
                {"rank 3", "rank 1 (heads)"}},
        BadCall{"sinks_dtype",
                [](Call& c) { c.tensors.sinks->dtype = DType::bf16; },
                "sinks",
                {"bf16", "must be fp32"}},
        BadCall{"sinks_heads",
                [](Call& c) { c.tensors.sinks->shape[0] = 3; },
                "sinks",
                {"heads is 3", "q's 6"}},
        BadCall{"sinks_null", [](Call& c) { c.tensors.sinks->data = nullptr; }, "sinks", {"null"}},
        BadCall{"sinks_misaligned",
                [](Call& c) { misplace(*c.tensors.sinks, 2); },
                "sinks",
                {"aligned to 4"}},
        BadCall{"sinks_elsewhere",
                [](Call& c) {
                  c.tensors.sinks->device = {DeviceKind::cuda, 0};
                },
                "sinks",
                {"cuda:0", "must be on cpu"}}),
    kCaseName);

TEST(BadDevice, AMissingGpuIsNamed) {
  const int missing = cuda_device_count();
  const std::string its_name = "cuda:" + std::to_string(missing);
  const auto spoil = [&](Call& c) { c.move_to({DeviceKind::cuda, missing}); };
  expect_refused(
      {"", spoil, "device", {its_name.c_str(), cpu_only_notice().data()}, ErrorCode::no_device},
      plain_call());
}

}  // namespace
}  // namespace tilewright::test
