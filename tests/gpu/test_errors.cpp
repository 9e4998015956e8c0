// What is checked once a GPU kernel is chosen: alignment, strides, the workspace. Nothing is
// written when a call is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "device_tensor.hpp"
#include "problems.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

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
          can_run(*find_kernel(bad.kernel), {}, device_info({DeviceKind::cuda, 0}))) {
    GTEST_SKIP() << reason->message;
  }
  const Problem problem{.batch = 2, .q_len = 20, .kv_len = 30, .heads = 2, .head_dim = 64};
  ProblemTensors host(problem);
  const DeviceTensor q(host.q), k(host.k), v(host.v), o(host.o), lse(host.lse);
  AttentionTensors tensors{
      .q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = lse.view()};
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
  HostTensor after = host.o;
  o.download(after);
  EXPECT_EQ(std::memcmp(after.data(), host.o.data(), after.bytes()), 0);
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

}  // namespace
}  // namespace tilewright::test
