// What is checked once a GPU kernel is chosen: alignment, strides, the workspace. Nothing is
// written when a call is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "device_problem.hpp"
#include "kernel_test.hpp"
#include "problems/expectation.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::test {
namespace {

struct BadCall {
  const char* description;
  const char* kernel;
  std::function<void(AttentionTensors&)> spoil;
  Workspace workspace;
  ErrorCode code;
  const char* argument;
  std::vector<const char*> parts;  // of the message
};

std::ostream& operator<<(std::ostream& out, const BadCall& bad) { return out << bad.description; }

class BadGpuArgument : public testing::TestWithParam<BadCall> {};

TEST_P(BadGpuArgument, IsRefusedAndNothingIsWritten) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  const BadCall& bad = GetParam();
  if (const auto reason =
          can_run(find_kernel<Attention>(bad.kernel)->info, device_info({DeviceKind::cuda, 0}))) {
    GTEST_SKIP() << reason->message;
  }
  const Problem problem{.batch = 2, .q_len = 20, .kv_len = 30, .heads = 2, .head_dim = 64};
  DeviceProblem device(problem);
  HostTensors before = device.results();
  AttentionTensors tensors = device.views();
  bad.spoil(tensors);
  try {
    attention(tensors, options_of(problem, bad.kernel), bad.workspace);
    ADD_FAILURE() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), bad.code) << error.what();
    EXPECT_EQ(error.argument(), bad.argument) << error.what();
    for (const char* part : bad.parts) {
      EXPECT_THAT(error.what(), testing::HasSubstr(part));
    }
  }
  cuda_ok(cudaDeviceSynchronize());
  HostTensors after = device.results();
  expect_same_bits(before, after);
}

void nothing(AttentionTensors&) {}

// Not memory that anything reads: the check looks at the address and the size alone.
void* address(std::uintptr_t value) { return reinterpret_cast<void*>(value); }

constexpr std::size_t kScores_bytes = 4 * 2 * 2 * 20 * 30;

INSTANTIATE_TEST_SUITE_P(
    Cases, BadGpuArgument,
    testing::Values(BadCall{"misaligned_q",
                            "k4",
                            [](AttentionTensors& tensors) {
                              tensors.q.data = static_cast<const char*>(tensors.q.data) + 8;
                            },
                            {},
                            ErrorCode::invalid_argument,
                            "q",
                            {"8 bytes past", "16 bytes"}},
                    BadCall{"misaligned_o",
                            "k2",
                            [](AttentionTensors& tensors) {
                              tensors.o.data = static_cast<char*>(tensors.o.data) + 2;
                            },
                            {},
                            ErrorCode::invalid_argument,
                            "o",
                            {"2 bytes past", "16 bytes"}},
                    BadCall{"odd_stride",
                            "k3_1",
                            [](AttentionTensors& tensors) { tensors.k.stride[1] = 132; },
                            {},
                            ErrorCode::invalid_argument,
                            "k",
                            {"132", "multiple of 8"}},
                    BadCall{"negative_stride",
                            "k4",
                            [](AttentionTensors& tensors) { tensors.v.stride[0] = -128; },
                            {},
                            ErrorCode::invalid_argument,
                            "v",
                            {"-128", "non-negative"}},
                    BadCall{"fp16",
                            "k4",
                            [](AttentionTensors& tensors) {
                              tensors.q.dtype = tensors.k.dtype = tensors.v.dtype =
                                  tensors.o.dtype = DType::fp16;
                            },
                            {},
                            ErrorCode::unsupported,
                            "q",
                            {"fp16", "bf16"}},
                    BadCall{"no_workspace",
                            "k1",
                            nothing,
                            {},
                            ErrorCode::workspace_too_small,
                            "workspace",
                            {"0 bytes", "9600"}},
                    BadCall{"small_workspace",
                            "k1",
                            nothing,
                            {address(1 << 20), kScores_bytes - 1},
                            ErrorCode::workspace_too_small,
                            "workspace",
                            {"9599", "9600"}},
                    BadCall{"misaligned_workspace",
                            "k1",
                            nothing,
                            {address((1 << 20) + 64), kScores_bytes},
                            ErrorCode::invalid_argument,
                            "workspace",
                            {"256 bytes"}}),
    [](const auto& parameter) { return parameter.param.description; });

class BadLengthsGpu : public KernelTest {};

TEST_P(BadLengthsGpu, AreFoundWhereCheckingIsAskedFor) {
  Problem problem{.batch = 2, .q_len = 50, .kv_len = 50, .head_dim = 128};
  problem.q_lens = {20, 30};
  problem.kv_lens = {25, 25};
  if (!takes(problem)) {
    GTEST_SKIP() << "takes no packed sequences";
  }
  AttentionOptions options = options_of(problem, GetParam());
  options.check_lengths = true;
  DeviceProblem right(problem);
  EXPECT_NO_THROW(run(right.views(), options));

  HostTensors spoilt = make_tensors(problem);
  reference::store(spoilt.cu_seqlens_k->view(), 2, 51);
  DeviceProblem wrong(spoilt);
  try {
    run(wrong.views(), options);
    ADD_FAILURE() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.argument(), "cu_seqlens_k");
    EXPECT_THAT(error.what(), testing::HasSubstr("ends with 51, must be at most 50"));
  }
  HostTensors after = wrong.results();
  expect_same_bits(spoilt, after);
}

INSTANTIATE_TEST_SUITE_P(Kernels, BadLengthsGpu, testing::ValuesIn(cuda_attention_kernels()),
                         kKernelName);

}  // namespace
}  // namespace tilewright::test
