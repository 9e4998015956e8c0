// The fixture of tests that need a GPU for which the kernels are built.
#pragma once

#include <gtest/gtest.h>

#include "tilewright/registry.hpp"

namespace tilewright::test {

class HopperTest : public testing::Test {
 protected:
  void SetUp() override {
    constexpr int kHopper = 90;
    if (cuda_device_count() == 0) {
      GTEST_SKIP() << "no CUDA device";
    }
    const DeviceInfo& info = device_info({DeviceKind::cuda, 0});
    if (info.compute_capability != kHopper) {
      GTEST_SKIP() << info.name << " is no Hopper GPU";
    }
  }
};

}  // namespace tilewright::test
