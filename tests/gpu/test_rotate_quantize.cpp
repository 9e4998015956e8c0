// Rotating and quantising on the GPU: the oracle's bytes, and those of the CPU.
#include <algorithm>
#include <cstdint>

#include "bad_call.hpp"
#include "device_problem.hpp"
#include "hopper_test.hpp"
#include "problems/rotate_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

class RotateQuantizeGpu : public HopperTest {};

// A problem on the device, its outputs poisoned.
class DeviceRotate {
 public:
  explicit DeviceRotate(RotateHostSet host)
      : host_(std::move(host)),
        device_{.x = DeviceTensor(host_.x),
                .out = copy(host_.out),
                .out_transposed = copy(host_.out_transposed),
                .descale = copy(host_.descale),
                .fixed_descale = copy(host_.fixed_descale),
                .cu_seqlens = copy(host_.cu_seqlens),
                .rotary_cos = copy(host_.rotary_cos),
                .rotary_sin = copy(host_.rotary_sin),
                .positions = copy(host_.positions)} {}

  void launch(const RotateQuantizeOptions& options, Stream stream) {
    rotate_quantize(device_.views(), options, stream);
  }

  void reset_outputs() {
    const auto from = host_.outputs();
    const auto to = device_.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i]->upload(*from[i]);
    }
  }

  RotateHostSet run(const RotateQuantizeOptions& options) {
    launch(options, nullptr);
    cuda_ok(cudaDeviceSynchronize());
    return result();
  }

  RotateHostSet result() {
    RotateHostSet result = host_;
    const auto from = device_.outputs();
    const auto to = result.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      from[i]->download(*to[i]);
    }
    return result;
  }

  bool guards_untouched() {
    const auto outputs = device_.outputs();
    return std::ranges::all_of(outputs,
                               [](const auto* tensor) { return tensor->guards_untouched(); });
  }

 private:
  static std::optional<DeviceTensor> copy(const std::optional<HostTensor>& tensor) {
    return tensor ? std::optional<DeviceTensor>(std::in_place, *tensor) : std::nullopt;
  }

  RotateHostSet host_;
  RotateSet<DeviceTensor> device_;
};

void expect_same_bits(RotateHostSet a, RotateHostSet b) {
  const auto ours = a.outputs();
  const auto theirs = b.outputs();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(same_bytes(*ours[i], *theirs[i])) << "output " << i;
  }
}

TEST_F(RotateQuantizeGpu, SmallProblems) {
  Ran ran;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const RotateProblem& problem : rotate_problems(dtype)) {
      ++ran;
      SCOPED_TRACE(testing::Message() << problem);
      DeviceRotate device(make_tensors(problem));
      RotateQuantizeOptions options = options_of(problem);
      options.check_values = problem.data_seed % 2 == 0;
      RotateHostSet result = device.run(options);
      expect_right(problem, result);
      EXPECT_TRUE(device.guards_untouched());
    }
  }
}

TEST_F(RotateQuantizeGpu, LargeProblemsEqualTheCpu) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const bool is_transposed : {false, true}) {
      RotateProblem problem{.batch = 3, .len = 3001, .heads = 16, .head_dim = 128};
      problem.is_transposed = is_transposed;
      problem.rotary_dims = is_transposed ? 0 : 128;
      problem.has_positions = !is_transposed;
      problem.has_specials = true;
      problem.dtype = dtype;
      SCOPED_TRACE(testing::Message() << problem);
      RotateHostSet host = make_tensors(problem);
      DeviceRotate device(host);
      rotate_quantize(host.views(), options_of(problem));
      expect_same_bits(device.run(options_of(problem)), host);
    }
  }
}

// Every bit pattern of x, with a rotation and without.
TEST_F(RotateQuantizeGpu, EveryBitPatternEqualsTheCpu) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const bool is_rotated : {false, true}) {
      RotateProblem problem{.batch = 1, .len = 1024, .heads = 1, .dtype = dtype};
      problem.seed = is_rotated ? problem.seed : std::nullopt;
      RotateHostSet host = make_tensors(problem);
      auto* const patterns = reinterpret_cast<std::uint16_t*>(host.x.data());
      for (std::uint32_t i = 0; i < 65536; ++i) {
        patterns[i] = static_cast<std::uint16_t>(i * 40503u);
      }
      DeviceRotate device(host);
      rotate_quantize(host.views(), options_of(problem));
      expect_same_bits(device.run(options_of(problem)), host);
    }
  }
}

TEST_F(RotateQuantizeGpu, RunsInACapturedGraph) {
  const RotateProblem problem{.lengths = {70, 0, 130}, .rotary_dims = 64};
  DeviceRotate device(make_tensors(problem));
  const DeviceStream stream;
  cudaGraph_t graph = nullptr;
  cuda_ok(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
  device.launch(options_of(problem), stream.get());
  cuda_ok(cudaStreamEndCapture(stream.get(), &graph));
  cudaGraphExec_t executable = nullptr;
  cuda_ok(cudaGraphInstantiate(&executable, graph, 0));
  for (int replay = 0; replay < 2; ++replay) {
    device.reset_outputs();
    cuda_ok(cudaGraphLaunch(executable, stream.get()));
    stream.wait();
    RotateHostSet result = device.result();
    expect_right(problem, result);
  }
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
}

// A row of no position counts as zeros where values are not checked, and is found where they are.
TEST_F(RotateQuantizeGpu, PositionsBeyondTheTablesGiveZeros) {
  const RotateProblem problem{.rotary_dims = 64, .has_positions = true};
  RotateHostSet host = make_tensors(problem);
  RotateHostSet zeroed = host;
  for (const std::int64_t row : {3, 100}) {  // of 2 sequences of 70
    reference::store(host.positions->view(), row, row == 3 ? 300.0 : -1.0);
    for (std::int64_t i = 0; i < problem.heads * problem.head_dim; ++i) {
      reference::store(zeroed.x.view(), row * problem.heads * problem.head_dim + i, 0.0);
    }
  }
  rotate_quantize(zeroed.views(), options_of(problem));
  DeviceRotate device(host);
  RotateQuantizeOptions options = options_of(problem);
  options.check_values = true;
  EXPECT_THROW(device.launch(options, nullptr), Error);
  expect_same_bits(device.run(options_of(problem)), zeroed);
}

}  // namespace
}  // namespace tilewright::test
