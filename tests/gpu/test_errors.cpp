// What is checked once a GPU kernel is selected: alignment, strides, the workspace. A refused call
// writes nothing.
#include "bad_call.hpp"
#include "device_problem.hpp"
#include "kernel_test.hpp"
#include "problems/expectation.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::test {
namespace {

struct Call {
  AttentionTensors tensors;
  Workspace workspace;
  const char* kernel = "k4";
};

using BadCall = BadCallOf<Call>;

class BadGpuArgument : public testing::TestWithParam<BadCall> {};

TEST_P(BadGpuArgument, IsRefusedAndNothingIsWritten) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  const BadCall& bad = GetParam();
  const Problem problem{.batch = 2, .q_len = 20, .kv_len = 30, .heads = 2, .head_dim = 64};
  DeviceProblem device(problem);
  HostTensors before = device.results();
  Call call{.tensors = device.views(), .workspace = {}};
  bad.spoil(call);
  if (const auto reason =
          can_run(find_kernel<Attention>(call.kernel)->info, device_info({DeviceKind::cuda, 0}))) {
    GTEST_SKIP() << reason->message;
  }
  expect_throws(bad,
                [&] { attention(call.tensors, options_of(problem, call.kernel), call.workspace); });
  cuda_ok(cudaDeviceSynchronize());
  HostTensors after = device.results();
  expect_same_bits(before, after);
}

// No call reads this memory: the check looks at its address and size alone.
void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

constexpr std::size_t kScores_bytes = 4 * 2 * 2 * 20 * 30;

void use_k1(Call& call, Workspace workspace) {
  call.kernel = "k1";
  call.workspace = workspace;
}

INSTANTIATE_TEST_SUITE_P(Cases, BadGpuArgument,
                         testing::Values(BadCall{"misaligned_q",
                                                 [](Call& c) { misplace(c.tensors.q, 8); },
                                                 "q",
                                                 {"8 bytes past", "16 bytes"}},
                                         BadCall{"misaligned_o",
                                                 [](Call& c) {
                                                   c.kernel = "k2";
                                                   misplace(c.tensors.o, 2);
                                                 },
                                                 "o",
                                                 {"2 bytes past", "16 bytes"}},
                                         BadCall{"odd_stride",
                                                 [](Call& c) {
                                                   c.kernel = "k3_1";
                                                   c.tensors.k.stride[1] = 132;
                                                 },
                                                 "k",
                                                 {"132", "multiple of 8"}},
                                         BadCall{"negative_stride",
                                                 [](Call& c) { c.tensors.v.stride[0] = -128; },
                                                 "v",
                                                 {"-128", "non-negative"}},
                                         BadCall{"fp16",
                                                 [](Call& c) {
                                                   c.tensors.q.dtype = c.tensors.k.dtype =
                                                       c.tensors.v.dtype = c.tensors.o.dtype =
                                                           DType::fp16;
                                                 },
                                                 "q",
                                                 {"fp16", "bf16"},
                                                 ErrorCode::unsupported},
                                         BadCall{"no_workspace",
                                                 [](Call& c) { use_k1(c, {}); },
                                                 "workspace",
                                                 {"0 bytes", "9600"},
                                                 ErrorCode::workspace_too_small},
                                         BadCall{"small_workspace",
                                                 [](Call& c) {
                                                   use_k1(c, {address(1 << 20), kScores_bytes - 1});
                                                 },
                                                 "workspace",
                                                 {"9599", "9600"},
                                                 ErrorCode::workspace_too_small},
                                         BadCall{
                                             "misaligned_workspace",
                                             [](Call& c) {
                                               use_k1(c, {address((1 << 20) + 64), kScores_bytes});
                                             },
                                             "workspace",
                                             {"256 bytes"}}),
                         kCaseName);

class BadLengthsGpu : public KernelTest {};

TEST_P(BadLengthsGpu, AreFoundWhereCheckingIsAskedFor) {
  Problem problem{.batch = 2, .q_len = 50, .kv_len = 50, .head_dim = 128};
  problem.q_lens = {20, 30};
  problem.kv_lens = {25, 25};
  AttentionOptions options = options_of(problem, GetParam());
  options.check_lengths = true;
  DeviceProblem right(problem);
  EXPECT_NO_THROW(run(right.views(), options));

  const BadCallOf<HostTensors> bad{
      "cu_seqlens_k_end",
      [](HostTensors& tensors) { reference::store(tensors.cu_seqlens_k->view(), 2, 51); },
      "cu_seqlens_k",
      {"ends with 51, must be at most 50"}};
  HostTensors spoilt = make_tensors(problem);
  bad.spoil(spoilt);
  DeviceProblem wrong(spoilt);
  expect_throws(bad, [&] { run(wrong.views(), options); });
  HostTensors after = wrong.results();
  expect_same_bits(spoilt, after);
}

INSTANTIATE_TEST_SUITE_P(Kernels, BadLengthsGpu,
                         testing::ValuesIn(cuda_attention_kernels(Feature::packed)), kKernelName);

}  // namespace
}  // namespace tilewright::test
