// The fixture of tests that run for every CUDA kernel of dsv4_attention() and its variants.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "problems/dsv4_problem_sets.hpp"
#include "ran.hpp"

namespace tilewright::test {

using Dsv4Kernel = Kernel<Dsv4Attention>;

class Dsv4Gpu : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    if (usable_kernels().empty()) {
      GTEST_SKIP() << "no kernel of dsv4_attention() runs on " << device_info(kDevice).name;
    }
  }

  // CUDA kernels that run on this device.
  static std::vector<const Dsv4Kernel*> usable_kernels() {
    std::vector<const Dsv4Kernel*> usable;
    for (const Dsv4Kernel& kernel : kernels<Dsv4Attention>()) {
      if (!can_run(kernel.info, device_info(kDevice))) {
        usable.push_back(&kernel);
      }
    }
    return usable;
  }

  // The same with all their variants.
  static std::vector<const Dsv4Kernel*> kernels_and_variants() {
    std::vector<const Dsv4Kernel*> all = usable_kernels();
    for (const Dsv4Kernel* const kernel : usable_kernels()) {
      for (const Dsv4Kernel& variant : kernel->variants) {
        all.push_back(&variant);
      }
    }
    return all;
  }

  // Calls with each problem that a kernel takes; at least one of each kernel's.
  static void for_each_problem(
      const std::vector<const Dsv4Kernel*>& kernels,
      const std::function<std::vector<Dsv4Problem>(const Dsv4Choices&)>& problems,
      const std::function<void(const Dsv4Problem&, const Dsv4Kernel&)>& check) {
    for (const Dsv4Kernel* const kernel : kernels) {
      Ran ran(kernel->info.name);
      for (const Dsv4Problem& problem : problems(choices_of(*kernel))) {
        if (!can_run(*kernel, constraints_of(problem), device_info(kDevice))) {
          ++ran;
          SCOPED_TRACE(testing::Message() << kernel->info.name << ": " << problem);
          check(problem, *kernel);
        }
      }
    }
  }

 private:
  static constexpr Device kDevice{DeviceKind::cuda, 0};
};

}  // namespace tilewright::test
