// Every CUDA attention kernel against the float64 oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "device_tensor.hpp"
#include "problems.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr double kMaxRelFro = 3e-3;
constexpr double kMaxLseError = 1e-3;

std::vector<std::string> cuda_attention_kernels() {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : kernels()) {
    if (kernel.device == DeviceKind::cuda && kernel.operation == "attention") {
      names.emplace_back(kernel.name);
    }
  }
  return names;
}

// A problem on the device, with outputs full of NaN, ready to run.
struct DeviceProblem {
  explicit DeviceProblem(const Problem& problem)
      : host(problem), q(host.q), k(host.k), v(host.v), o(host.o), lse(host.lse) {}

  AttentionTensors views() const {
    return {.q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = lse.view()};
  }

  ProblemTensors host;
  DeviceTensor q, k, v, o, lse;
};

void run(const AttentionTensors& tensors, const AttentionOptions& options,
         Stream stream = nullptr) {
  const std::size_t bytes = attention_workspace_bytes(tensors, options);
  const DeviceBuffer workspace(bytes);
  attention(tensors, options, {workspace.data(), bytes}, stream);
  cuda_ok(cudaStreamSynchronize(stream));
}

void expect_right(const Problem& problem, const HostTensor& o, const HostTensor& lse) {
  const Expected& expected = expected_of(problem);
  const reference::ErrorNorms norms = reference::compare(o.view(), expected.exact.o);
  EXPECT_TRUE(norms.same_specials);
  EXPECT_LE(norms.rel_fro, kMaxRelFro);
  EXPECT_LE(norms.max_abs, 2 * expected.rounded_max_abs);
  const reference::ErrorNorms lse_norms = reference::compare(lse.view(), expected.exact.lse);
  EXPECT_TRUE(lse_norms.same_specials);
  EXPECT_LE(lse_norms.max_abs, kMaxLseError);
}

bool takes(const std::string& kernel, const Problem& problem) {
  const KernelInfo& info = *find_kernel(kernel);
  return std::ranges::count(info.head_dims, problem.head_dim) != 0;
}

// Runs twice: right, bit-equal, and nothing written outside the outputs.
void check_problem(const Problem& problem, const std::string& kernel) {
  SCOPED_TRACE(testing::Message() << kernel << ": " << problem);
  DeviceProblem device(problem);
  const AttentionOptions options = options_of(problem, kernel);
  run(device.views(), options);
  HostTensor o = device.host.o;
  HostTensor lse = device.host.lse;
  device.o.download(o);
  device.lse.download(lse);
  expect_right(problem, o, lse);
  EXPECT_TRUE(reference::gaps_hold(o, std::byte{0xFF}));
  EXPECT_TRUE(device.o.guards_untouched() && device.lse.guards_untouched());

  device.o.upload(device.host.o);
  device.lse.upload(device.host.lse);
  run(device.views(), options);
  HostTensor o_again = device.host.o;
  HostTensor lse_again = device.host.lse;
  device.o.download(o_again);
  device.lse.download(lse_again);
  EXPECT_EQ(std::memcmp(o.data(), o_again.data(), o.bytes()), 0) << "two runs differ";
  EXPECT_EQ(std::memcmp(lse.data(), lse_again.data(), lse.bytes()), 0) << "two runs differ";
}

class AttentionGpu : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    const auto reason = can_run(*find_kernel(GetParam()), {}, device_info({DeviceKind::cuda, 0}));
    if (reason) {
      GTEST_SKIP() << reason->message;
    }
  }
};

TEST_P(AttentionGpu, SmallProblems) {
  for (const Problem& problem : small_problems()) {
    if (takes(GetParam(), problem)) {
      check_problem(problem, GetParam());
    }
  }
}

TEST_P(AttentionGpu, RandomProblems) {
  for (const Problem& problem : random_problems()) {
    if (takes(GetParam(), problem)) {
      check_problem(problem, GetParam());
    }
  }
}

TEST_P(AttentionGpu, LseIsOptional) {
  const Problem problem{.q_len = 70, .kv_len = 90, .head_dim = 64};
  DeviceProblem device(problem);
  AttentionTensors tensors = device.views();
  tensors.lse.reset();
  run(tensors, options_of(problem, GetParam()));
  HostTensor o = device.host.o;
  device.o.download(o);
  EXPECT_LE(reference::compare(o.view(), expected_of(problem).exact.o).rel_fro, kMaxRelFro);
}

TEST_P(AttentionGpu, RunsInACapturedGraphOnAStream) {
  const Problem problem{.q_len = 200, .kv_len = 333, .heads = 2, .head_dim = 128, .causal = true};
  DeviceProblem device(problem);
  const AttentionOptions options = options_of(problem, GetParam());
  const std::size_t bytes = attention_workspace_bytes(device.views(), options);
  const DeviceBuffer workspace(bytes);

  cudaStream_t stream = nullptr;
  cuda_ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  attention(device.views(), options, {workspace.data(), bytes}, stream);
  cuda_ok(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  cuda_ok(cudaGraphInstantiate(&executable, graph, 0));

  for (int replay = 0; replay < 2; ++replay) {
    device.o.upload(device.host.o);
    device.lse.upload(device.host.lse);
    cuda_ok(cudaGraphLaunch(executable, stream));
    cuda_ok(cudaStreamSynchronize(stream));
    HostTensor o = device.host.o;
    HostTensor lse = device.host.lse;
    device.o.download(o);
    device.lse.download(lse);
    expect_right(problem, o, lse);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

// Batches more than 2^31 elements apart: offsets need 64 bits.
TEST_P(AttentionGpu, OffsetsBeyond32Bits) {
  const Problem problem{.batch = 2, .q_len = 70, .kv_len = 130, .head_dim = 128};
  ProblemTensors host(problem);
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 1024;  // elements
  const DeviceBuffer far_memory(2 * (kFar + 8 * 130 * 128));
  std::int64_t used = 0;
  // All tensors share the two regions: batch 0 at the start, batch 1 behind element 2^31.
  const auto place = [&](HostTensor& tensor) {
    TensorView view = tensor.view();
    const std::int64_t rows_bytes = 2 * view.shape[1] * view.shape[3];
    view.data = far_memory.data() + used;
    view.device = {DeviceKind::cuda, 0};
    view.stride[0] = kFar;
    for (int b = 0; b < 2; ++b) {
      cuda_ok(cudaMemcpy(far_memory.data() + used + b * 2 * kFar, tensor.data() + b * rows_bytes,
                         rows_bytes, cudaMemcpyDefault));
    }
    used += (rows_bytes + 255) / 256 * 256;
    return view;
  };
  const DeviceTensor lse(host.lse);
  const AttentionTensors tensors{.q = place(host.q),
                                 .k = place(host.k),
                                 .v = place(host.v),
                                 .o = place(host.o),
                                 .lse = lse.view()};
  run(tensors, options_of(problem, GetParam()));
  const std::int64_t rows_bytes = 2 * tensors.o.shape[1] * tensors.o.shape[3];
  for (int b = 0; b < 2; ++b) {
    cuda_ok(cudaMemcpy(host.o.data() + b * rows_bytes,
                       static_cast<std::byte*>(tensors.o.data) + b * 2 * kFar, rows_bytes,
                       cudaMemcpyDefault));
  }
  lse.download(host.lse);
  expect_right(problem, host.o, host.lse);
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionGpu, testing::ValuesIn(cuda_attention_kernels()),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace tilewright::test
