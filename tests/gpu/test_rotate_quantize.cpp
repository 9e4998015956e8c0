// Rotating and quantising on the GPU: the oracle's bytes, and those of the CPU.
#include <cstdint>

#include "device_set.hpp"
#include "hopper_test.hpp"
#include "problems/rotate_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

class RotateQuantizeGpu : public HopperTest {};

// A problem on the device, its outputs poisoned.
DeviceSet<RotateSet> on_the_device(const RotateHostSet& host) {
  return {host,
          {.x = DeviceTensor(host.x),
           .out = device_copy(host.out),
           .out_transposed = device_copy(host.out_transposed),
           .descale = device_copy(host.descale),
           .fixed_descale = device_copy(host.fixed_descale),
           .cu_seqlens = device_copy(host.cu_seqlens),
           .rotary_cos = device_copy(host.rotary_cos),
           .rotary_sin = device_copy(host.rotary_sin),
           .positions = device_copy(host.positions)}};
}

RotateHostSet run(DeviceSet<RotateSet>& device, const RotateQuantizeOptions& options) {
  rotate_quantize(device.views(), options);
  return device.results();
}

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
      DeviceSet<RotateSet> device = on_the_device(make_tensors(problem));
      RotateQuantizeOptions options = options_of(problem);
      options.check_values = problem.data_seed % 2 == 0;
      RotateHostSet result = run(device, options);
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
      DeviceSet<RotateSet> device = on_the_device(host);
      rotate_quantize(host.views(), options_of(problem));
      expect_same_bits(run(device, options_of(problem)), host);
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
      DeviceSet<RotateSet> device = on_the_device(host);
      rotate_quantize(host.views(), options_of(problem));
      expect_same_bits(run(device, options_of(problem)), host);
    }
  }
}

TEST_F(RotateQuantizeGpu, RunsInACapturedGraph) {
  const RotateProblem problem{.lengths = {70, 0, 130}, .rotary_dims = 64};
  DeviceSet<RotateSet> device = on_the_device(make_tensors(problem));
  replay([&](Stream stream) { rotate_quantize(device.views(), options_of(problem), stream); },
         [&] { device.reset_outputs(); },
         [&] {
           RotateHostSet result = device.results();
           expect_right(problem, result);
         });
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
  DeviceSet<RotateSet> device = on_the_device(host);
  RotateQuantizeOptions options = options_of(problem);
  options.check_values = true;
  EXPECT_THROW(rotate_quantize(device.views(), options), Error);
  expect_same_bits(run(device, options_of(problem)), zeroed);
}

}  // namespace
}  // namespace tilewright::test
