// What is checked of a product once a GPU kernel is chosen. Nothing is written when a call is
// refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "gemm_test.hpp"
#include "hopper_test.hpp"
#include "problems/problem.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

struct BadCall {
  const char* argument;
  const char* part;  // of the message
  std::function<void(GemmNvfp4Tensors&, Workspace&)> spoil;
  ErrorCode code = ErrorCode::invalid_argument;
};

constexpr GemmCase kCase{
    .m = 20, .n = 64, .k = 16384, .l = 2, .a_dtype = DType::e2m1x2, .bias = true, .residual = true};

std::vector<BadCall> bad_calls() {
  return {
      {"a", "8 bytes past a 16-byte", [](auto& t, auto&) { misplace(t.a, 8); }},
      {"b", "4 bytes past a 16-byte", [](auto& t, auto&) { misplace(t.b, 4); }},
      {"c", "2 bytes past a 16-byte", [](auto& t, auto&) { misplace(t.c, 2); }},
      {"residual", "8 bytes past a 16-byte", [](auto& t, auto&) { misplace(*t.residual, 8); }},
      {"a", "stride 8200 in dimension 1", [](auto& t, auto&) { t.a.stride[1] = 8200; }},
      {"b", "stride -8192 in dimension 1", [](auto& t, auto&) { t.b.stride[1] = -8192; }},
      {"c", "multiple of 8 elements", [](auto& t, auto&) { t.c.stride[0] = 20 * 64 + 4; }},
      {"residual", "multiple of 8 elements", [](auto& t, auto&) { t.residual->stride[1] = 68; }},
      {"b", "N",
       [](auto& t, auto&) {
         t.b.shape[1] = t.sfb->shape[1] = t.c.shape[2] = t.residual->shape[2] = 24;
         t.bias->shape[0] = 24;
       },
       ErrorCode::unsupported},
      {"workspace", "has 0 bytes", [](auto&, Workspace& workspace) { workspace.data = nullptr; },
       ErrorCode::workspace_too_small},
      {"workspace", "needs", [](auto&, Workspace& workspace) { --workspace.bytes; },
       ErrorCode::workspace_too_small},
      {"workspace", "aligned to 256 bytes",
       [](auto&, Workspace& workspace) { misplace(workspace, 128); }},
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
    GemmNvfp4Tensors tensors = device.views(kCase);
    Workspace workspace{memory.data(), bytes};
    bad.spoil(tensors, workspace);
    try {
      gemm_nvfp4(tensors, options, workspace);
      ADD_FAILURE() << "no exception: " << bad.argument << ", " << bad.part;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), bad.code) << error.what();
      EXPECT_EQ(error.argument(), bad.argument) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(bad.part));
    }
  }
  cuda_ok(cudaDeviceSynchronize());
  HostTensor after = host.c;
  device.c.download(after);
  EXPECT_TRUE(reference::same_bytes(after, host.c));
}

}  // namespace
}  // namespace tilewright::test
