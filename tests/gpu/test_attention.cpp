// Every CUDA attention kernel against the float64 oracle.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "device_problem.hpp"
#include "kernel_test.hpp"
#include "problems/expectation.hpp"
#include "problems/problem_sets.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

// Runs twice: right, bit-equal, and nothing written outside the outputs.
void check_problem(const Problem& problem, const std::string& kernel) {
  SCOPED_TRACE(testing::Message() << kernel << ": " << problem);
  DeviceProblem device(problem);
  const AttentionOptions options = options_of(problem, kernel);
  run(device.views(), options);
  HostTensors first = device.results();
  expect_right(problem, first);
  EXPECT_TRUE(device.guards_untouched());

  device.reset_outputs();
  run(device.views(), options);
  HostTensors second = device.results();
  expect_same_bits(first, second);
}

class AttentionGpu : public KernelTest {
 protected:
  // Those that the kernel takes.
  void check_all(const std::vector<Problem>& problems, int least = 1) const {
    Ran ran("cases", least);
    for (const Problem& problem : problems) {
      if (takes(problem)) {
        ++ran;
        check_problem(problem, GetParam());
      }
    }
  }
};

TEST_P(AttentionGpu, SmallProblems) { check_all(small_problems()); }

TEST_P(AttentionGpu, SmallProblemsWithFeatures) { check_all(small_feature_problems()); }

TEST_P(AttentionGpu, RandomProblems) { check_all(random_problems()); }

TEST_P(AttentionGpu, FeatureProblems) {
  constexpr int kAllButAFew = 2000;
  check_all(feature_problems(), GetParam() == "flash" ? kAllButAFew : 1);
}

TEST_P(AttentionGpu, NaNsAndInfinities) { check_all(special_problems()); }

TEST_P(AttentionGpu, LseIsOptional) {
  Ran ran;
  for (const int head_dim : {64, 96, 128, 192, 256}) {
    const Problem problem{.q_len = 70, .kv_len = 90, .head_dim = head_dim};
    if (!takes(problem)) {
      continue;
    }
    ++ran;
    DeviceProblem device(problem);
    const AttentionOptions options = options_of(problem, GetParam());
    run(device.views(), options);
    const HostTensors with_lse = device.results();

    device.reset_outputs();
    AttentionTensors tensors = device.views();
    tensors.lse.reset();
    run(tensors, options);
    const HostTensors without = device.results();
    EXPECT_TRUE(same_bytes(without.o, with_lse.o));
  }
}

// The types of a graph's nodes.
std::vector<cudaGraphNodeType> node_types(cudaGraph_t graph) {
  std::size_t count = 0;
  cuda_ok(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  cuda_ok(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::vector<cudaGraphNodeType> types(count);
  for (std::size_t i = 0; i < count; ++i) {
    cuda_ok(cudaGraphNodeGetType(nodes[i], &types[i]));
  }
  return types;
}

// Captures a call, which must be so many launches and nothing else, and replays it.
void check_captured(const Problem& problem, const std::string& kernel, std::size_t launches) {
  SCOPED_TRACE(testing::Message() << kernel << ": " << problem);
  DeviceProblem device(problem);
  const DeviceCall call(device.views(), options_of(problem, kernel));
  const DeviceStream stream;
  cudaGraph_t graph = nullptr;
  cuda_ok(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
  call.launch(stream.get());
  cuda_ok(cudaStreamEndCapture(stream.get(), &graph));
  EXPECT_EQ(node_types(graph), std::vector<cudaGraphNodeType>(launches, cudaGraphNodeTypeKernel));
  cudaGraphExec_t executable = nullptr;
  cuda_ok(cudaGraphInstantiate(&executable, graph, 0));

  for (int replay = 0; replay < 2; ++replay) {
    device.reset_outputs();
    cuda_ok(cudaGraphLaunch(executable, stream.get()));
    stream.wait();
    expect_right(problem, device.results());
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

TEST_P(AttentionGpu, RunsInACapturedGraphOnAStream) {
  const Problem dense{.q_len = 200, .kv_len = 333, .heads = 2, .head_dim = 128, .causal = true};
  const std::size_t launches = GetParam() == "k1" ? 3 : 1;  // S, P and O
  check_captured(dense, GetParam(), launches);
  if (GetParam() == "flash") {
    check_captured({.q_len = 2, .kv_len = 5000, .heads = 2, .head_dim = 128}, "flash", 2);
    Ran ran;
    for (const Problem& problem : small_feature_problems()) {
      ++ran;
      check_captured(problem, "flash", 1);
    }
  }
}

// The driver takes calls from threads with a current context only. The runtime makes one current on
// a thread's first call that needs it.
TEST_P(AttentionGpu, IsTheFirstUseOfTheGpuInItsThread) {
  const Problem problem{.q_len = 200, .kv_len = 333, .heads = 2, .head_dim = 128};
  const AttentionOptions options = options_of(problem, GetParam());
  DeviceProblem device(problem);
  const AttentionTensors tensors = device.views();
  const DeviceWorkspace workspace(attention_workspace_bytes(tensors, options));
  std::thread([&] { EXPECT_NO_THROW(attention(tensors, options, workspace.view())); }).join();
  cuda_ok(cudaDeviceSynchronize());
  expect_right(problem, device.results());
}

// Batches more than 2^31 elements apart: offsets need 64 bits.
TEST_P(AttentionGpu, OffsetsBeyond32Bits) {
  const Problem problem{.batch = 2, .q_len = 70, .kv_len = 130, .head_dim = 128};
  HostTensors host = make_tensors(problem);
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
      copy_bytes(far_memory.data() + used + b * 2 * kFar, tensor.data() + b * rows_bytes,
                 static_cast<std::size_t>(rows_bytes));
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
    copy_bytes(host.o.data() + b * rows_bytes,
               static_cast<std::byte*>(tensors.o.data) + b * 2 * kFar,
               static_cast<std::size_t>(rows_bytes));
  }
  lse.download(host.lse);
  expect_right(problem, host);
}

INSTANTIATE_TEST_SUITE_P(Kernels, AttentionGpu, testing::ValuesIn(cuda_attention_kernels()),
                         kKernelName);

// Every config of flash, where it would take another one, too.
TEST(FlashVariantsGpu, TakeWhatTheyCan) {
  if (cuda_device_count() == 0) {
    GTEST_SKIP() << "no CUDA device";
  }
  const DeviceInfo& device = device_info({DeviceKind::cuda, 0});
  if (const auto reason = can_run(find_kernel<Attention>("flash")->info, device)) {
    GTEST_SKIP() << reason->message;
  }
  Ran variants("variants");
  for (const Kernel<Attention>& variant : find_kernel<Attention>("flash")->variants) {
    ++variants;
    Ran ran(variant.info.name, 2);
    const HeadDims dims = variant.facts.head_dims.front();
    std::vector<Problem> problems = small_feature_problems();
    std::ranges::copy(many_tile_problems(), std::back_inserter(problems));
    for (const std::int64_t kv_len : {130, 3000}) {
      problems.push_back(
          {.q_len = 250, .kv_len = kv_len, .heads = 2, .head_dim = dims.qk, .value_dim = dims.v});
    }
    // Without a mask, which clusters take, too.
    Problem grouped{.batch = 3, .q_len = 500, .kv_len = 2200, .heads = 4, .kv_heads = 2};
    grouped.head_dim = dims.qk;
    grouped.value_dim = dims.v;
    grouped.order = MemoryOrder::padded_rows;
    grouped.sinks = true;
    problems.push_back(grouped);
    grouped.softcap = 20.0f;
    grouped.dtype = DType::fp16;
    problems.push_back(grouped);
    grouped.unnormalized = true;
    problems.push_back(grouped);
    for (const Problem& problem : problems) {
      if (!can_run(variant, constraints_of(problem), device)) {
        ++ran;
        check_problem(problem, variant.info.name);
      }
    }
  }
}

}  // namespace
}  // namespace tilewright::test
