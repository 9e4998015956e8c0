// Packing NVFP4 weights on the GPU: the bytes of the CPU backend.
#include <vector>

#include "bad_call.hpp"
#include "captured_graph.hpp"
#include "device_problem.hpp"
#include "hopper_test.hpp"
#include "problems/weight_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

class Nvfp4WeightGpu : public HopperTest {};

WeightSet<DeviceTensor> to_device(const WeightHostSet& host) {
  return {.codes = DeviceTensor(host.codes),
          .scales = DeviceTensor(host.scales),
          .packed = DeviceTensor(host.packed)};
}

WeightHostSet download(const WeightSet<DeviceTensor>& device, WeightHostSet host) {
  device.codes.download(host.codes);
  device.scales.download(host.scales);
  device.packed.download(host.packed);
  return host;
}

bool guards_untouched(const WeightSet<DeviceTensor>& device) {
  return device.codes.guards_untouched() && device.scales.guards_untouched() &&
         device.packed.guards_untouched();
}

void expect_same_bytes(const WeightHostSet& a, const WeightHostSet& b) {
  EXPECT_TRUE(same_bytes(a.codes, b.codes));
  EXPECT_TRUE(same_bytes(a.scales, b.scales));
  EXPECT_TRUE(same_bytes(a.packed, b.packed));
}

WeightHostSet packed_on_the_cpu(const WeightProblem& problem, WeightHostSet tensors) {
  prepack_nvfp4_weight(tensors.prepack_views(), problem.layout);
  return tensors;
}

// `packed` is poisoned before, codes and scales are what they were after.
void expect_packed_as_on_the_cpu(const WeightProblem& problem, const WeightHostSet& host) {
  const WeightHostSet expected = packed_on_the_cpu(problem, host);
  WeightSet<DeviceTensor> device = to_device(host);
  for (int repeat = 0; repeat < 2; ++repeat) {
    device.packed.upload(host.packed);
    prepack_nvfp4_weight(device.prepack_views(), problem.layout);
    cuda_ok(cudaDeviceSynchronize());
    expect_same_bytes(download(device, host), expected);
  }
  EXPECT_TRUE(guards_untouched(device));
}

// Likewise, codes and scales being what is poisoned; gaps between their rows stay so.
void expect_unpacked_as_on_the_cpu(const WeightProblem& problem, const WeightHostSet& host) {
  const WeightHostSet poisoned = without_weight(packed_on_the_cpu(problem, host));
  WeightHostSet expected = poisoned;
  unpack_nvfp4_weight(expected.unpack_views(), problem.layout);
  WeightSet<DeviceTensor> device = to_device(poisoned);
  for (int repeat = 0; repeat < 2; ++repeat) {
    device.codes.upload(poisoned.codes);
    device.scales.upload(poisoned.scales);
    unpack_nvfp4_weight(device.unpack_views(), problem.layout);
    cuda_ok(cudaDeviceSynchronize());
    expect_same_bytes(download(device, poisoned), expected);
  }
  EXPECT_TRUE(guards_untouched(device));
}

TEST_F(Nvfp4WeightGpu, SmallProblems) {
  Ran ran;
  for (const WeightProblem& problem : weight_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    const WeightHostSet host = make_tensors(problem);
    expect_packed_as_on_the_cpu(problem, host);
    expect_unpacked_as_on_the_cpu(problem, host);
  }
}

TEST_F(Nvfp4WeightGpu, LargeProblems) {
  for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::swizzled}) {
    for (const WeightProblem& problem :
         {WeightProblem{.n = 4100, .k = 8208, .layout = layout, .seed = 1},
          WeightProblem{.n = 300, .k = 1040, .l = 9, .layout = layout, .seed = 2},
          WeightProblem{.n = 1, .k = 16, .l = 33000, .layout = layout, .seed = 3}}) {
      SCOPED_TRACE(testing::Message() << problem);
      const WeightHostSet host = make_tensors(problem);
      expect_packed_as_on_the_cpu(problem, host);
      expect_unpacked_as_on_the_cpu(problem, host);
    }
  }
}

TEST_F(Nvfp4WeightGpu, RunsInACapturedGraph) {
  const WeightProblem problem{.n = 300, .k = 1024, .layout = ScaleLayout::swizzled};
  const WeightHostSet host = make_tensors(problem);
  const WeightHostSet expected = packed_on_the_cpu(problem, host);
  WeightSet<DeviceTensor> device = to_device(host);
  const CapturedGraph graph(
      [&](Stream stream) { prepack_nvfp4_weight(device.prepack_views(), problem.layout, stream); });
  for (int replay = 0; replay < 2; ++replay) {
    device.packed.upload(host.packed);
    graph.replay();
    expect_same_bytes(download(device, host), expected);
  }
}

TEST_F(Nvfp4WeightGpu, WrongArgumentsAreRefusedAndNothingIsWritten) {
  using BadPacked = BadCallOf<TensorView>;
  const std::vector<BadPacked> cases = {
      {"misaligned",
       [](TensorView& packed) { misplace(packed, 8); },
       "packed",
       {"8 bytes past a 16-byte"}},
      {"stride",
       [](TensorView& packed) { packed.stride[0] += 8; },
       "packed",
       {"multiple of 16 elements"}},
      {"device",
       [](TensorView& packed) { packed.device = {}; },
       "packed",
       {"must be on cuda:0 like codes"}},
  };
  const WeightHostSet host = make_tensors({.n = 70, .k = 80, .l = 2});
  WeightSet<DeviceTensor> device = to_device(host);
  for (const BadPacked& bad : cases) {
    PrepackNvfp4WeightTensors pack = device.prepack_views();
    bad.spoil(pack.packed);
    UnpackNvfp4WeightTensors unpack = device.unpack_views();
    unpack.packed = pack.packed;
    expect_throws(bad, [&] { prepack_nvfp4_weight(pack); });
    expect_throws(bad, [&] { unpack_nvfp4_weight(unpack); });
  }
  cuda_ok(cudaDeviceSynchronize());
  expect_same_bytes(download(device, host), host);
}

}  // namespace
}  // namespace tilewright::test
