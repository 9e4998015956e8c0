// The fixture of tests that run for every CUDA attention kernel of the table.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "problems/problem.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::test {

class KernelTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    if (const auto reason = can_run(kernel().info, device_info(kDevice))) {
      GTEST_SKIP() << reason->message;
    }
  }

  const Kernel<Attention>& kernel() const { return *find_kernel<Attention>(GetParam()); }

  bool takes(const Problem& problem) const {
    return !can_run(kernel(), constraints_of(problem), device_info(kDevice));
  }

 private:
  static constexpr Device kDevice{DeviceKind::cuda, 0};
};

// All of them, or those that have the feature.
inline std::vector<std::string> cuda_attention_kernels(
    std::optional<Feature> feature = std::nullopt) {
  std::vector<std::string> names;
  for (const Kernel<Attention>& kernel : kernels<Attention>()) {
    if (kernel.info.device == DeviceKind::cuda &&
        (!feature || std::ranges::count(kernel.facts.features, *feature) > 0)) {
      names.push_back(kernel.info.name);
    }
  }
  return names;
}

inline const auto kKernelName = [](const auto& parameter) { return parameter.param; };

}  // namespace tilewright::test
