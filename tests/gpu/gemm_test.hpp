// Fixtures of tests that run for matrix products' CUDA kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/gemm/nvfp4/plan.hpp"
#include "device_tensor.hpp"
#include "problems/gemm_problem.hpp"
#include "tilewright/gemm.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::test {

inline constexpr Device kDevice{DeviceKind::cuda, 0};

inline std::vector<std::string> cuda_kernels(std::string_view operation) {
  std::vector<std::string> names;
  for (const KernelInfo& kernel : kernels(operation)) {
    if (kernel.device == DeviceKind::cuda) {
      names.emplace_back(kernel.name);
    }
  }
  return names;
}

// And each row of nvfp4's table.
inline std::vector<std::string> nvfp4_kernels() {
  std::vector<std::string> names = cuda_kernels("gemm_nvfp4");
  for (const KernelInfo& row : nvfp4_rows()) {
    names.emplace_back(row.name);
  }
  return names;
}

inline std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '/', '_');
  return name;
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

// For every kernel of nvfp4_kernels().
class GemmNvfp4Test : public GemmTest {
 protected:
  bool takes(const GemmCase& c) const {
    return !can_run(*find_kernel("gemm_nvfp4", GetParam()), constraints_of(c),
                    device_info(kDevice));
  }

  // How many tiles blocks share, of nvfp4 or a row of its table.
  int shared_tiles(const GemmCase& c) const {
    return cuda::plan_nvfp4(constraints_of(c), device_info(kDevice).multiprocessors,
                            cuda::nvfp4_row_named(GetParam()))
        .shared_tiles;
  }
};

inline GemmSet<DeviceTensor> to_device(const GemmHostSet& host) {
  return {.a = DeviceTensor(host.a),
          .b = DeviceTensor(host.b),
          .packed_b = DeviceTensor(host.packed_b),
          .sfa = DeviceTensor(host.sfa),
          .sfb = DeviceTensor(host.sfb),
          .global_scale_a = DeviceTensor(host.global_scale_a),
          .global_scale_b = DeviceTensor(host.global_scale_b),
          .bias = DeviceTensor(host.bias),
          .residual = DeviceTensor(host.residual),
          .c = DeviceTensor(host.c)};
}

// A call with a workspace of its own.
class GemmCall {
 public:
  GemmCall(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options)
      : tensors_(tensors),
        options_(options),
        workspace_bytes_(gemm_nvfp4_workspace_bytes(tensors, options)),
        workspace_(workspace_bytes_) {}

  void launch(Stream stream) const {
    gemm_nvfp4(tensors_, options_, {workspace_.data(), workspace_bytes_}, stream);
  }

 private:
  GemmNvfp4Tensors tensors_;
  GemmNvfp4Options options_;
  std::size_t workspace_bytes_;
  DeviceBuffer workspace_;
};

}  // namespace tilewright::test
