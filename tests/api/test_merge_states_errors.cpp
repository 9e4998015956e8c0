// Every wrong argument of merge_states(): the code, the argument and the message of the exception,
// and outputs that stay untouched.
#include "bad_call.hpp"
#include "reference/host_tensor.hpp"
#include "registry_test.hpp"
#include "tilewright/merge_states.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr Device kGpu{DeviceKind::cuda, 0};

// A right call, which a case then spoils: un-normalised parts, un-normalised result.
struct Call {
  Call() {
    for (HostTensor* const output : {&out, &lse_out, &row_max_out, &row_sum_out}) {
      poison(*output);
    }
  }
  Call(const Call&) = delete;

  bool outputs_untouched() const {
    return is_poisoned(out) && is_poisoned(lse_out) && is_poisoned(row_max_out) &&
           is_poisoned(row_sum_out);
  }

  // Makes it a call with normalised parts and result.
  void normalize() {
    t.lse = row_max.view();
    t.row_max.reset();
    t.row_sum.reset();
    t.row_max_out.reset();
    t.row_sum_out.reset();
  }

  HostTensor o{DType::fp32, {3, 5, 2, 16}};
  HostTensor row_max{DType::fp32, {3, 2, 5}};
  HostTensor row_sum{DType::fp32, {3, 2, 5}};
  HostTensor sinks{DType::fp32, {2}};
  HostTensor out{DType::fp32, {5, 2, 16}};
  HostTensor lse_out{DType::fp32, {2, 5}};
  HostTensor row_max_out{DType::fp32, {2, 5}};
  HostTensor row_sum_out{DType::fp32, {2, 5}};

  MergeStatesTensors t{.o = o.view(),
                       .out = out.view(),
                       .row_max = row_max.view(),
                       .row_sum = row_sum.view(),
                       .lse_out = lse_out.view(),
                       .row_max_out = row_max_out.view(),
                       .row_sum_out = row_sum_out.view(),
                       .sinks = sinks.view()};
  MergeStatesOptions options;
};

using BadCall = BadCallOf<Call>;

class BadMerge : public testing::TestWithParam<BadCall> {};

TEST_P(BadMerge, IsRefused) {
  Call c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { merge_states(c.t, c.options); });
}

TEST(MergeCalls, ThatTheCasesSpoilAreRight) {
  Call c;
  merge_states(c.t, c.options);
  EXPECT_FALSE(c.outputs_untouched());
  Call normalized;
  normalized.normalize();
  merge_states(normalized.t, normalized.options);
}

TEST(MergeCalls, OnAGpuThatIsNotThereAreRefused) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  Call c;
  c.normalize();
  c.t.sinks.reset();
  c.t.o.device = c.t.lse->device = c.t.out.device = c.t.lse_out->device = kGpu;
  const BadCall no_device{
      "no_device", {}, "device", {"cuda:0", cpu_only_notice().data()}, ErrorCode::no_device};
  expect_throws(no_device, c, [&] { merge_states(c.t); });
}

TEST(MergeKernels, SayWhatTheyDoNotTake) {
  const Kernel<MergeStates>& hopper = named<MergeStates>("hopper");
  EXPECT_EQ(workspace_bytes(hopper, {.parts = 4, .tokens = 100, .heads = 8}, kH200), 0u);
  using BadProblem = BadCallOf<MergeStatesProblem>;
  for (const BadProblem& bad : {
           BadProblem{"head_dim",
                      [](auto& p) { p.head_dim = 100; },
                      "o",
                      {"has head_dim 100, kernel hopper takes multiples of 8"},
                      ErrorCode::unsupported},
           BadProblem{"dtype",
                      [](auto& p) { p.dtype = DType::e4m3; },
                      "o",
                      {"has dtype e4m3, kernel hopper takes fp32, fp16, bf16"},
                      ErrorCode::unsupported},
           BadProblem{"elements",
                      [](auto& p) { p.tokens = p.heads = 1 << 14; },
                      "o",
                      {"has T x H x Dv of 2^34 or more"},
                      ErrorCode::unsupported},
           BadProblem{"parts", [](auto& p) { p.parts = 0; }, "parts", {"is 0, must be at least 1"}},
       }) {
    MergeStatesProblem problem;
    bad.spoil(problem);
    expect_throws(bad, [&] { workspace_bytes(hopper, problem, kH200); });
  }
  EXPECT_EQ(workspace_bytes(named<MergeStates>("cpu"), {.head_dim = 100}, kH200), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Forms, BadMerge,
    testing::Values(BadCall{"row_sum_absent",
                            [](Call& c) { c.t.row_sum.reset(); },
                            "row_sum",
                            {"is absent", "where row_max is"}},
                    BadCall{"row_max_absent",
                            [](Call& c) { c.t.row_max.reset(); },
                            "row_max",
                            {"is absent", "where row_sum is"}},
                    BadCall{"row_max_out_absent",
                            [](Call& c) { c.t.row_max_out.reset(); },
                            "row_max_out",
                            {"is absent", "where row_sum_out is"}},
                    BadCall{"two_forms",
                            [](Call& c) { c.t.lse = c.row_max.view(); },
                            "lse",
                            {"is given", "must be absent where row_max and row_sum"}},
                    BadCall{"no_form",
                            [](Call& c) {
                              c.normalize();
                              c.t.lse.reset();
                            },
                            "lse",
                            {"is absent", "must be given"}},
                    BadCall{"unnormalized_result_of_normalized_parts",
                            [](Call& c) {
                              c.normalize();
                              c.t.row_max_out = c.row_max_out.view();
                              c.t.row_sum_out = c.row_sum_out.view();
                            },
                            "row_max_out",
                            {"is given", "must be absent where lse is"}},
                    BadCall{"unnormalized_16_bit_parts",
                            [](Call& c) { c.t.o.dtype = DType::bf16; },
                            "o",
                            {"bf16", "must be fp32, as row_max and row_sum are given"}},
                    BadCall{"unnormalized_16_bit_result",
                            [](Call& c) { c.t.out.dtype = DType::fp16; },
                            "out",
                            {"fp16", "must be fp32, as row_max_out and row_sum_out are given"}},
                    BadCall{"another_dtype",
                            [](Call& c) {
                              c.normalize();
                              c.t.o.dtype = DType::bf16;
                              c.t.out.dtype = DType::fp16;
                            },
                            "out",
                            {"fp16", "must be bf16, the dtype of o"}},
                    BadCall{"integers",
                            [](Call& c) {
                              c.normalize();
                              c.t.o.dtype = DType::int32;
                            },
                            "o",
                            {"int32", "must be fp32, fp16 or bf16"}},
                    BadCall{"an_integer_result",
                            [](Call& c) {
                              c.normalize();
                              c.t.out.dtype = DType::int32;
                            },
                            "out",
                            {"int32", "must be fp32, fp16 or bf16"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Tensors, BadMerge,
    testing::Values(
        BadCall{"o_rank", [](Call& c) { c.t.o.rank = 3; }, "o", {"rank 3", "rank 4 (parts"}},
        BadCall{"no_parts", [](Call& c) { c.t.o.shape[0] = 0; }, "o", {"(0, 5, 2, 16)"}},
        BadCall{"o_null", [](Call& c) { c.t.o.data = nullptr; }, "o", {"null"}},
        BadCall{"o_strided", [](Call& c) { c.t.o.stride[3] = 2; }, "o", {"head_dim must be"}},
        BadCall{"o_misaligned", [](Call& c) { misplace(c.t.o, 2); }, "o", {"aligned to 4"}},
        BadCall{"out_rank", [](Call& c) { c.t.out.rank = 2; }, "out", {"rank 2", "rank 3"}},
        BadCall{"out_tokens",
                [](Call& c) { c.t.out.shape[0] = 4; },
                "out",
                {"tokens is 4, must equal o's 5"}},
        BadCall{"out_heads",
                [](Call& c) { c.t.out.shape[1] = 1; },
                "out",
                {"heads is 1, must equal o's 2"}},
        BadCall{"out_head_dim",
                [](Call& c) { c.t.out.shape[2] = 8; },
                "out",
                {"head_dim is 8, must equal o's 16"}},
        BadCall{"out_device", [](Call& c) { c.t.out.device = kGpu; }, "out", {"like o"}},
        BadCall{
            "out_overlap", [](Call& c) { c.t.out.stride[0] = 16; }, "out", {"must not overlap"}},
        BadCall{"row_max_parts",
                [](Call& c) { c.t.row_max->shape[0] = 2; },
                "row_max",
                {"parts is 2, must equal o's 3"}},
        BadCall{"row_sum_heads",
                [](Call& c) { c.t.row_sum->shape[1] = 1; },
                "row_sum",
                {"heads is 1, must equal o's 2"}},
        BadCall{"row_sum_dtype",
                [](Call& c) { c.t.row_sum->dtype = DType::bf16; },
                "row_sum",
                {"bf16", "must be fp32"}},
        BadCall{"lse_tokens",
                [](Call& c) {
                  c.normalize();
                  c.t.lse->shape[2] = 4;
                },
                "lse",
                {"tokens is 4, must equal o's 5"}},
        BadCall{"lse_misaligned",
                [](Call& c) {
                  c.normalize();
                  misplace(*c.t.lse, 2);
                },
                "lse",
                {"aligned to 4"}},
        BadCall{"lse_out_rank",
                [](Call& c) { c.t.lse_out->rank = 1; },
                "lse_out",
                {"rank 1", "rank 2 (heads, tokens)"}},
        BadCall{"row_max_out_overlap",
                [](Call& c) { c.t.row_max_out->stride[0] = 0; },
                "row_max_out",
                {"must not overlap"}},
        BadCall{"row_sum_out_tokens",
                [](Call& c) { c.t.row_sum_out->shape[1] = 3; },
                "row_sum_out",
                {"tokens is 3"}},
        BadCall{"sinks_heads",
                [](Call& c) { c.t.sinks->shape[0] = 1; },
                "sinks",
                {"heads is 1, must equal o's 2"}},
        BadCall{"sinks_dtype",
                [](Call& c) { c.t.sinks->dtype = DType::fp16; },
                "sinks",
                {"fp16", "must be fp32"}},
        BadCall{"kernel",
                [](Call& c) { c.options.kernel = "k1"; },
                "kernel",
                {"is 'k1'", "auto, cpu, hopper"}},
        BadCall{"a_gpu_kernel",
                [](Call& c) { c.options.kernel = "hopper"; },
                "o",
                {"is on cpu, kernel hopper takes tensors on cuda"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    SharedMemory, BadMerge,
    testing::Values(BadCall{"out_in_o",
                            [](Call& c) { c.t.out.data = c.o.data() + 64; },
                            "out",
                            {"shares memory with o"}},
                    BadCall{"out_in_row_sum",
                            [](Call& c) { c.t.row_sum->data = c.out.data(); },
                            "out",
                            {"shares memory with row_sum"}},
                    BadCall{"lse_out_in_out",
                            [](Call& c) { c.t.lse_out->data = c.out.data(); },
                            "out",
                            {"shares memory with lse_out"}},
                    BadCall{"row_max_out_in_row_max",
                            [](Call& c) { c.t.row_max_out->data = c.row_max.data(); },
                            "row_max_out",
                            {"shares memory with row_max"}},
                    BadCall{"row_sum_out_in_row_max_out",
                            [](Call& c) { c.t.row_sum_out->data = c.row_max_out.data(); },
                            "row_max_out",
                            {"shares memory with row_sum_out"}},
                    BadCall{"row_sum_out_in_sinks",
                            [](Call& c) { c.t.sinks->data = c.row_sum_out.data(); },
                            "row_sum_out",
                            {"shares memory with sinks"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
