// The fixture of tests that run for every CUDA kernel of attention_with_kvcache() and its variants.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "problems/kvcache_problem_sets.hpp"
#include "ran.hpp"

namespace tilewright::test {

using KvCacheKernel = Kernel<AttentionWithKvCache>;

class KvCacheGpu : public testing::Test {
 protected:
  static constexpr Device kDevice{DeviceKind::cuda, 0};

  void SetUp() override {
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    if (usable_kernels().empty()) {
      GTEST_SKIP() << "no kernel of attention_with_kvcache() runs on " << device_info(kDevice).name;
    }
  }

  // CUDA kernels that run on this device.
  static std::vector<const KvCacheKernel*> usable_kernels() {
    std::vector<const KvCacheKernel*> usable;
    for (const KvCacheKernel& kernel : kernels<AttentionWithKvCache>()) {
      if (!can_run(kernel.info, device_info(kDevice))) {
        usable.push_back(&kernel);
      }
    }
    return usable;
  }

  // The same with all their variants.
  static std::vector<const KvCacheKernel*> kernels_and_variants() {
    std::vector<const KvCacheKernel*> all = usable_kernels();
    for (const KvCacheKernel* const kernel : usable_kernels()) {
      for (const KvCacheKernel& variant : kernel->variants) {
        all.push_back(&variant);
      }
    }
    return all;
  }

  // Those that have a feature.
  static std::vector<const KvCacheKernel*> with_feature(std::vector<const KvCacheKernel*> kernels,
                                                        KvCacheFeature feature) {
    std::erase_if(kernels, [&](const KvCacheKernel* kernel) {
      return std::ranges::count(kernel->facts.features, feature) == 0;
    });
    return kernels;
  }

  // Those that take queries of a dtype.
  static std::vector<const KvCacheKernel*> with_dtype(std::vector<const KvCacheKernel*> kernels,
                                                      DType dtype) {
    std::erase_if(kernels, [&](const KvCacheKernel* kernel) {
      return std::ranges::count(kernel->info.dtypes, dtype) == 0;
    });
    return kernels;
  }

  static bool takes(const KvCacheKernel& kernel, const KvCacheProblem& problem) {
    return !can_run(kernel, constraints_of(problem), device_info(kDevice));
  }

  // Calls with each problem that a kernel takes; at least one of each kernel's.
  static void for_each_problem(
      const std::vector<const KvCacheKernel*>& kernels,
      const std::function<std::vector<KvCacheProblem>(const KvCacheChoices&)>& problems,
      const std::function<void(const KvCacheProblem&, const KvCacheKernel&)>& check) {
    for (const KvCacheKernel* const kernel : kernels) {
      Ran ran(kernel->info.name);
      for (const KvCacheProblem& problem : problems(choices_of(*kernel))) {
        if (takes(*kernel, problem)) {
          ++ran;
          check(problem, *kernel);
        }
      }
    }
  }
};

}  // namespace tilewright::test
