// Fixtures of tests that run for the GEMMs' CUDA kernels.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cuda/gemm/nvfp4/plan.hpp"
#include "device_tensor.hpp"
#include "ops/plan.hpp"
#include "problems/gemm_problem.hpp"
#include "tilewright/gemm_bf16_kernels.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"

namespace tilewright::test {

inline constexpr Device kDevice{DeviceKind::cuda, 0};

// The names of gemm_nvfp4's CUDA kernels and their variants.
template <class Op>
std::vector<std::string> cuda_kernels() {
  std::vector<std::string> names;
  for (const Kernel<Op>& kernel : kernels<Op>()) {
    if (kernel.info.device == DeviceKind::cuda) {
      names.push_back(kernel.info.name);
    }
    for (const Kernel<Op>& variant : kernel.variants) {
      names.push_back(variant.info.name);
    }
  }
  return names;
}

// The kernels of gemm_nvfp4 that take the dtypes.
inline std::vector<std::string> nvfp4_kernels(DType a_dtype = DType::bf16,
                                              DType c_dtype = DType::bf16) {
  std::vector<std::string> names = cuda_kernels<GemmNvfp4>();
  std::erase_if(names, [&](const std::string& name) {
    const Kernel<GemmNvfp4>& kernel = *find_kernel<GemmNvfp4>(name);
    return std::ranges::count(kernel.info.dtypes, a_dtype) == 0 ||
           std::ranges::count(kernel.facts.out_dtypes, c_dtype) == 0;
  });
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

// Tests run for every kernel of nvfp4_kernels().
class GemmNvfp4Test : public GemmTest {
 protected:
  static const Kernel<GemmNvfp4>& kernel() { return *find_kernel<GemmNvfp4>(GetParam()); }

  bool takes(const GemmCase& c) const {
    return !can_run(kernel(), constraints_of(c), device_info(kDevice));
  }

  bool takes_packed_weights() const {
    return std::ranges::count(kernel().facts.weight_forms, WeightForm::packed) > 0;
  }

  // How many tiles are under stream-K, which only nvfp4 and its variants have.
  int stream_k_tiles(const GemmCase& c) const {
    if (kernel().plan == nullptr) {
      return 0;
    }
    const Plan plan = kernel().plan(constraints_of(c), device_info(kDevice));
    return plan.details<cuda::Nvfp4Details>().plan.stream_k_tiles;
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

// A call and its own workspace.
class GemmCall {
 public:
  GemmCall(const GemmNvfp4Tensors& tensors, const GemmNvfp4Options& options)
      : tensors_(tensors),
        options_(options),
        workspace_(gemm_nvfp4_workspace_bytes(tensors, options)) {}

  void launch(Stream stream) const { gemm_nvfp4(tensors_, options_, workspace_.view(), stream); }

 private:
  GemmNvfp4Tensors tensors_;
  GemmNvfp4Options options_;
  DeviceWorkspace workspace_;
};

}  // namespace tilewright::test
