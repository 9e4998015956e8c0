// Matrix products on the GPU, against the oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "device_tensor.hpp"
#include "problems/gemm_problem.hpp"
#include "problems/problem.hpp"
#include "reference/gemm.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr Device kDevice{DeviceKind::cuda, 0};

std::vector<std::string> cuda_kernels(std::string_view operation) {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : kernels(operation)) {
    if (kernel.device == DeviceKind::cuda) {
      names.emplace_back(kernel.name);
    }
  }
  return names;
}

class GemmTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    const DeviceInfo& info = device_info(kDevice);
    if (info.compute_capability != 90) {
      GTEST_SKIP() << info.name << " is no Hopper GPU";
    }
  }
};

class GemmNvfp4Gpu : public GemmTest {
 protected:
  bool takes(const GemmCase& c) const {
    return !can_run(*find_kernel("gemm_nvfp4", GetParam()), constraints_of(c),
                    device_info(kDevice));
  }

  // Runs it twice: the second result must be the first's, bit for bit.
  void expect_right(const GemmCase& c) const {
    SCOPED_TRACE(testing::Message() << GetParam() << ": " << c);
    const GemmHostSet host = make_tensors(c);
    GemmSet<DeviceTensor> device{.a = DeviceTensor(host.a),
                                 .b = DeviceTensor(host.b),
                                 .packed_b = DeviceTensor(host.packed_b),
                                 .sfa = DeviceTensor(host.sfa),
                                 .sfb = DeviceTensor(host.sfb),
                                 .global_scale_a = DeviceTensor(host.global_scale_a),
                                 .global_scale_b = DeviceTensor(host.global_scale_b),
                                 .bias = DeviceTensor(host.bias),
                                 .residual = DeviceTensor(host.residual),
                                 .c = DeviceTensor(host.c)};
    const HostTensor first = run(c, host, device);
    test::expect_right(c, host, first);
    const HostTensor second = run(c, host, device);
    EXPECT_TRUE(std::equal(first.data(), first.data() + first.bytes(), second.data()));
    EXPECT_TRUE(device.c.guards_untouched());
  }

 private:
  HostTensor run(const GemmCase& c, const GemmHostSet& host, GemmSet<DeviceTensor>& device) const {
    device.c.upload(host.c);
    const GemmNvfp4Tensors tensors = device.views(c);
    const GemmNvfp4Options options = options_of(c, GetParam());
    const std::size_t bytes = gemm_nvfp4_workspace_bytes(tensors, options);
    const DeviceBuffer workspace(bytes);
    gemm_nvfp4(tensors, options, {workspace.data(), bytes});
    HostTensor result = host.c;
    device.c.download(result);
    return result;
  }
};

TEST_P(GemmNvfp4Gpu, IsRight) {
  for (GemmCase c : gemm_cases()) {
    for (const bool is_packed : {false, true}) {
      c.b_is_packed = is_packed;
      if (takes(c)) {
        expect_right(c);
      }
    }
  }
}

TEST_P(GemmNvfp4Gpu, TakesEveryM) {
  for (std::int64_t m = 1; m <= 300; ++m) {
    for (const DType a : {DType::bf16, DType::fp16, DType::e2m1x2}) {
      for (const bool is_packed : {false, true}) {
        const GemmCase c{.m = m,
                         .n = 48,
                         .k = 128,
                         .a_dtype = a,
                         .b_is_packed = is_packed,
                         .seed = static_cast<std::uint64_t>(m)};
        if (takes(c)) {
          expect_right(c);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmNvfp4Gpu, testing::ValuesIn(cuda_kernels("gemm_nvfp4")),
                         [](const auto& parameter) { return parameter.param; });

// In float64, of rows that lie `padding` further apart than they are long.
class GemmBf16Gpu : public GemmTest {};

TEST_P(GemmBf16Gpu, IsRight) {
  for (const auto& [m, n, k] :
       {std::array{1, 16, 64}, std::array{65, 80, 192}, std::array{128, 128, 1024}}) {
    for (const std::int64_t padding : {0, 8}) {
      SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k << " + " << padding);
      HostTensor a(DType::bf16, {m, k}, {k + padding, 1});
      HostTensor b(DType::bf16, {n, k}, {k + padding, 1});
      HostTensor c(DType::bf16, {m, n}, {n + padding, 1});
      reference::fill_normal(a.view(), 1);
      reference::fill_normal(b.view(), 2);
      std::fill_n(c.data(), c.bytes(), kUnwritten);
      const DeviceTensor device_a(a);
      const DeviceTensor device_b(b);
      const DeviceTensor device_c(c);
      gemm_bf16({.a = device_a.view(), .b = device_b.view(), .c = device_c.view()}, GetParam());
      device_c.download(c);
      constexpr double kRounding = 0x1p-9;
      const std::vector<double> expected = reference::gemm(a.view(), b.view());
      EXPECT_LE(reference::compare(c.view(), expected).rel_fro, kRounding);
      EXPECT_TRUE(reference::gaps_hold(c, kUnwritten));
      EXPECT_TRUE(device_c.guards_untouched());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmBf16Gpu, testing::ValuesIn(cuda_kernels("gemm_bf16")),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace tilewright::test
