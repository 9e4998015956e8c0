// Every wrong argument of packed sequences and of un-normalised results.
#include <tuple>

#include "attention_call.hpp"
#include "cuda/cuda_backend.hpp"

namespace tilewright::test {
namespace {

// Sequences of 4 and 6 queries and of 6 and 7 keys, and rows behind them.
Call packed_call() {
  Call call;
  call.tensors = {.q = call.input(DType::bf16, {12, 6, 64}),
                  .k = call.input(DType::bf16, {14, 3, 64}),
                  .v = call.input(DType::bf16, {14, 3, 64}),
                  .o = call.output(DType::fp32, {12, 6, 64}),
                  .lse = call.output(DType::fp32, {6, 12}),
                  .cu_seqlens_q = call.lengths({0, 4, 10}),
                  .cu_seqlens_k = call.lengths({0, 6, 13}),
                  .seqused_k = call.lengths({5, 7}),
                  .row_max = call.output(DType::fp32, {6, 12}),
                  .row_sum = call.output(DType::fp32, {6, 12})};
  return call;
}

TEST(PackedCall, TheCallThatTheCasesSpoilIsRight) {
  const Call call = packed_call();
  EXPECT_NO_THROW(attention(call.tensors, call.options));
  EXPECT_FALSE(call.outputs_untouched());
}

TEST(PackedCall, QueriesOrKeysMayBePackedAlone) {
  Call queries = packed_call();
  queries.tensors.cu_seqlens_k.reset();
  queries.tensors.k = queries.input(DType::bf16, {2, 7, 3, 64});
  queries.tensors.v = queries.input(DType::bf16, {2, 7, 3, 64});
  EXPECT_NO_THROW(attention(queries.tensors));

  Call keys = packed_call();
  keys.tensors.cu_seqlens_q.reset();
  keys.tensors.q = keys.input(DType::bf16, {2, 5, 6, 64});
  keys.tensors.o = keys.output(DType::fp32, {2, 5, 6, 64});
  for (auto* const statistic : {&keys.tensors.lse, &keys.tensors.row_max, &keys.tensors.row_sum}) {
    *statistic = keys.output(DType::fp32, {2, 6, 5});
  }
  EXPECT_NO_THROW(attention(keys.tensors));
}

class BadPackedArgument : public testing::TestWithParam<BadCall> {};

TEST_P(BadPackedArgument, IsRefused) { expect_refused(GetParam(), packed_call()); }

void set_rank(ConstTensorView& tensor, int rank) { tensor.rank = rank; }

INSTANTIATE_TEST_SUITE_P(
    Shape, BadPackedArgument,
    testing::Values(BadCall{"q_rank",
                            [](Call& c) { set_rank(c.tensors.q, 4); },
                            "q",
                            {"rank 4", "rank 3 (tokens, heads, head_dim)",
                             "cu_seqlens_q is given"}},
                    BadCall{"k_rank",
                            [](Call& c) {
                              c.tensors.k = c.input(DType::bf16, {2, 7, 3, 64});
                            },
                            "k",
                            {"rank 4", "rank 3", "cu_seqlens_k is given"}},
                    BadCall{"k_rank_without_lengths",
                            [](Call& c) { c.tensors.cu_seqlens_k.reset(); },
                            "k",
                            {"rank 3", "rank 4", "no cu_seqlens_k is given"}},
                    BadCall{"o_rank",
                            [](Call& c) {
                              c.tensors.o = c.output(DType::fp32, {2, 6, 6, 64});
                            },
                            "o",
                            {"rank 4", "rank 3", "cu_seqlens_q is given"}},
                    BadCall{"lse_rank",
                            [](Call& c) {
                              c.tensors.lse = c.output(DType::fp32, {2, 6, 6});
                            },
                            "lse",
                            {"rank 3", "rank 2 (heads, tokens)", "cu_seqlens_q is given"}},
                    BadCall{"o_tokens",
                            [](Call& c) { c.tensors.o.shape[0] = 11; },
                            "o",
                            {"tokens is 11", "q's 12"}},
                    BadCall{"v_tokens",
                            [](Call& c) { c.tensors.v.shape[0] = 13; },
                            "v",
                            {"tokens is 13", "k's 14"}},
                    BadCall{"lse_tokens",
                            [](Call& c) { c.tensors.lse->shape[1] = 11; },
                            "lse",
                            {"tokens is 11", "q's 12"}},
                    BadCall{"row_max_heads",
                            [](Call& c) { c.tensors.row_max->shape[0] = 3; },
                            "row_max",
                            {"heads is 3", "q's 6"}},
                    BadCall{"row_sum_tokens",
                            [](Call& c) { c.tensors.row_sum->shape[1] = 10; },
                            "row_sum",
                            {"tokens is 10", "q's 12"}},
                    BadCall{"no_tokens",
                            [](Call& c) { c.tensors.q.shape[0] = 0; },
                            "q",
                            {"(0, 6, 64)", "at least 1"}},
                    BadCall{"cu_seqlens_q_rank",
                            [](Call& c) { set_rank(*c.tensors.cu_seqlens_q, 2); },
                            "cu_seqlens_q",
                            {"rank 2", "rank 1 (batch + 1)"}},
                    BadCall{"seqused_k_rank",
                            [](Call& c) { set_rank(*c.tensors.seqused_k, 2); },
                            "seqused_k",
                            {"rank 2", "rank 1 (batch)"}},
                    BadCall{"no_sequences",
                            [](Call& c) { c.tensors.cu_seqlens_q->shape[0] = 1; },
                            "cu_seqlens_q",
                            {"has 1 element", "at least 2"}},
                    BadCall{"cu_seqlens_k_batch",
                            [](Call& c) {
                              c.tensors.cu_seqlens_k = c.lengths({0, 3, 6, 13});
                            },
                            "cu_seqlens_k",
                            {"batch", "is 3", "cu_seqlens_q's 2"}},
                    BadCall{"seqused_k_batch",
                            [](Call& c) { c.tensors.seqused_k->shape[0] = 1; },
                            "seqused_k",
                            {"batch is 1", "cu_seqlens_q's 2"}},
                    BadCall{"k_batch",
                            [](Call& c) {
                              c.tensors.cu_seqlens_k.reset();
                              c.tensors.k = c.tensors.v = c.input(DType::bf16, {3, 7, 3, 64});
                            },
                            "k",
                            {"batch is 3", "cu_seqlens_q's 2"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Memory, BadPackedArgument,
    testing::Values(BadCall{"cu_seqlens_q_dtype",
                            [](Call& c) { c.tensors.cu_seqlens_q->dtype = DType::fp32; },
                            "cu_seqlens_q",
                            {"fp32", "must be int32"}},
                    BadCall{"cu_seqlens_k_device",
                            [](Call& c) {
                              c.tensors.cu_seqlens_k->device = {DeviceKind::cuda, 0};
                            },
                            "cu_seqlens_k",
                            {"cuda:0", "must be on cpu"}},
                    BadCall{"seqused_k_null",
                            [](Call& c) { c.tensors.seqused_k->data = nullptr; },
                            "seqused_k",
                            {"null"}},
                    BadCall{"cu_seqlens_q_stride",
                            [](Call& c) { c.tensors.cu_seqlens_q->stride[0] = 2; },
                            "cu_seqlens_q",
                            {"stride 2", "contiguous"}},
                    BadCall{"cu_seqlens_q_misaligned",
                            [](Call& c) { misplace(*c.tensors.cu_seqlens_q, 2); },
                            "cu_seqlens_q",
                            {"2 bytes past", "aligned to 4"}},
                    BadCall{"cu_seqlens_k_misaligned",
                            [](Call& c) { misplace(*c.tensors.cu_seqlens_k, 2); },
                            "cu_seqlens_k",
                            {"aligned to 4"}},
                    BadCall{"seqused_k_misaligned",
                            [](Call& c) { misplace(*c.tensors.seqused_k, 2); },
                            "seqused_k",
                            {"aligned to 4"}},
                    BadCall{"row_max_misaligned",
                            [](Call& c) { misplace(*c.tensors.row_max, 2); },
                            "row_max",
                            {"aligned to 4"}},
                    BadCall{"row_sum_misaligned",
                            [](Call& c) { misplace(*c.tensors.row_sum, 2); },
                            "row_sum",
                            {"aligned to 4"}},
                    BadCall{"o_misaligned_for_its_own_dtype",
                            [](Call& c) { misplace(c.tensors.o, 2); },
                            "o",
                            {"2 bytes past", "aligned to 4"}},
                    BadCall{"o_overlaps_itself",
                            [](Call& c) { c.tensors.o.stride[0] = 64; },
                            "o",
                            {"must not overlap"}},
                    BadCall{"row_max_overlaps_itself",
                            [](Call& c) { c.tensors.row_max->stride[0] = 1; },
                            "row_max",
                            {"must not overlap"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Unnormalized, BadPackedArgument,
    testing::Values(BadCall{"row_sum_absent",
                            [](Call& c) { c.tensors.row_sum.reset(); },
                            "row_sum",
                            {"is absent", "where row_max is"}},
                    BadCall{"row_max_absent",
                            [](Call& c) {
                              c.tensors.row_max.reset();
                              c.tensors.o = c.output(DType::bf16, {12, 6, 64});
                            },
                            "row_max",
                            {"is absent", "where row_sum is"}},
                    BadCall{"row_max_dtype",
                            [](Call& c) { c.tensors.row_max->dtype = DType::bf16; },
                            "row_max",
                            {"bf16", "must be fp32"}},
                    BadCall{"row_sum_device",
                            [](Call& c) {
                              c.tensors.row_sum->device = {DeviceKind::cuda, 0};
                            },
                            "row_sum",
                            {"cuda:0", "must be on cpu"}},
                    BadCall{"o_dtype",
                            [](Call& c) {
                              c.tensors.o = c.output(DType::bf16, {12, 6, 64});
                            },
                            "o",
                            {"bf16", "must be fp32", "row_max and row_sum are given"}}),
    kCaseName);

// What only a look at the data tells: the workspace's size can be asked for all the same.
class BadLengths : public testing::TestWithParam<BadCall> {};

TEST_P(BadLengths, AreRefused) {
  Call call = packed_call();
  GetParam().spoil(call);
  EXPECT_NO_THROW(std::ignore = attention_workspace_bytes(call.tensors, call.options));
  expect_throws(GetParam(), call, [&] { attention(call.tensors, call.options); });
}

INSTANTIATE_TEST_SUITE_P(
    Values, BadLengths,
    testing::Values(BadCall{"cu_seqlens_q_start",
                            [](Call& c) {
                              c.tensors.cu_seqlens_q = c.lengths({1, 4, 10});
                            },
                            "cu_seqlens_q",
                            {"starts with 1", "start with 0"}},
                    BadCall{"cu_seqlens_q_falls",
                            [](Call& c) {
                              c.tensors.cu_seqlens_q = c.lengths({0, 11, 10});
                            },
                            "cu_seqlens_q",
                            {"falls from 11 to 10 at element 2", "must ascend"}},
                    BadCall{"cu_seqlens_q_end",
                            [](Call& c) {
                              c.tensors.cu_seqlens_q = c.lengths({0, 4, 13});
                            },
                            "cu_seqlens_q",
                            {"ends with 13", "at most 12", "q"}},
                    BadCall{"cu_seqlens_k_end",
                            [](Call& c) {
                              c.tensors.cu_seqlens_k = c.lengths({0, 6, 15});
                            },
                            "cu_seqlens_k",
                            {"ends with 15", "at most 14", "k"}},
                    BadCall{"seqused_k_too_many",
                            [](Call& c) {
                              c.tensors.seqused_k = c.lengths({5, 8});
                            },
                            "seqused_k",
                            {"is 8 for sequence 1", "between 0 and its length 7"}},
                    BadCall{"seqused_k_negative",
                            [](Call& c) {
                              c.tensors.seqused_k = c.lengths({-1, 7});
                            },
                            "seqused_k",
                            {"is -1 for sequence 0", "between 0"}},
                    BadCall{"seqused_k_of_batched_keys",
                            [](Call& c) {
                              c.tensors.cu_seqlens_k.reset();
                              c.tensors.k = c.tensors.v = c.input(DType::bf16, {2, 6, 3, 64});
                            },
                            "seqused_k",
                            {"is 7 for sequence 1", "length 6"}}),
    kCaseName);

TEST(CopyToHost, WithoutCudaThereIsNoDevice) {
  if (cpu_only_notice().empty()) {
    GTEST_SKIP() << "built with CUDA";
  }
  EXPECT_THROW(cuda::copy_to_host(nullptr, nullptr, 1, 0, nullptr), Error);
}

}  // namespace
}  // namespace tilewright::test
