// What is checked of a GEMM once a GPU kernel is selected. A refused call writes
// nothing.
#include <vector>

#include "bad_call.hpp"
#include "gemm_test.hpp"
#include "hopper_test.hpp"
#include "problems/problem.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

struct Call {
  GemmNvfp4Tensors tensors;
  Workspace workspace;
};

using BadCall = BadCallOf<Call>;

constexpr GemmCase kCase{
    .m = 20, .n = 64, .k = 16384, .l = 2, .a_dtype = DType::e2m1x2, .bias = true, .residual = true};

std::vector<BadCall> bad_calls() {
  const auto misaligned = [](auto member, int bytes) {
    return [member, bytes](Call& c) { misplace(c.tensors.*member, bytes); };
  };
  using T = GemmNvfp4Tensors;
  return {
      {"misaligned_a", misaligned(&T::a, 8), "a", {"8 bytes past a 16-byte"}},
      {"misaligned_b", misaligned(&T::b, 4), "b", {"4 bytes past a 16-byte"}},
      {"misaligned_c", misaligned(&T::c, 2), "c", {"2 bytes past a 16-byte"}},
      {"misaligned_residual",
       [](Call& c) { misplace(*c.tensors.residual, 8); },
       "residual",
       {"8 bytes past a 16-byte"}},
      {"a_stride",
       [](Call& c) { c.tensors.a.stride[1] = 8200; },
       "a",
       {"stride 8200 in dimension 1"}},
      {"b_stride",
       [](Call& c) { c.tensors.b.stride[1] = -8192; },
       "b",
       {"stride -8192 in dimension 1"}},
      {"c_stride",
       [](Call& c) { c.tensors.c.stride[0] = 20 * 64 + 4; },
       "c",
       {"multiple of 8 elements"}},
      {"residual_stride",
       [](Call& c) { c.tensors.residual->stride[1] = 68; },
       "residual",
       {"multiple of 8 elements"}},
      {"n",
       [](Call& c) {
         c.tensors.b.shape[1] = c.tensors.sfb->shape[1] = c.tensors.c.shape[2] =
             c.tensors.residual->shape[2] = c.tensors.bias->shape[0] = 24;
       },
       "b",
       {"N"},
       ErrorCode::unsupported},
      {"no_workspace",
       [](Call& c) { c.workspace.data = nullptr; },
       "workspace",
       {"has 0 bytes"},
       ErrorCode::workspace_too_small},
      {"small_workspace",
       [](Call& c) { --c.workspace.bytes; },
       "workspace",
       {"needs"},
       ErrorCode::workspace_too_small},
      {"misaligned_workspace",
       [](Call& c) { misplace(c.workspace, 128); },
       "workspace",
       {"aligned to 256 bytes"}},
  };
}

class BadGemmGpu : public HopperTest {};

TEST_F(BadGemmGpu, IsRefusedAndNothingIsWritten) {
  const GemmHostSet host = make_tensors(kCase);
  GemmSet<DeviceTensor> device = to_device(host);
  const GemmNvfp4Options options = options_of(kCase, "nvfp4");
  const std::size_t bytes = gemm_nvfp4_workspace_bytes(device.views(kCase), options);
  const DeviceBuffer memory(bytes + 256);
  for (const BadCall& bad : bad_calls()) {
    Call call{device.views(kCase), {memory.data(), bytes}};
    bad.spoil(call);
    expect_throws(bad, [&] { gemm_nvfp4(call.tensors, options, call.workspace); });
  }
  cuda_ok(cudaDeviceSynchronize());
  HostTensor after = host.c;
  device.c.download(after);
  EXPECT_TRUE(reference::same_bytes(after, host.c));
}

}  // namespace
}  // namespace tilewright::test
