// A GEMM's result may not depend on other work on the GPU.
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "device_problem.hpp"
#include "gemm_test.hpp"
#include "problems/problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

// A case with its tensors on the device, and a call on them.
class DeviceGemm {
 public:
  DeviceGemm(const GemmCase& c, std::string kernel)
      : case_(c),
        kernel_(std::move(kernel)),
        host_(make_tensors(c)),
        device_(to_device(host_)),
        call_(device_.views(c), options_of(c, kernel_)) {}

  void reset_output() { device_.c.upload(host_.c); }
  void launch(Stream stream) const { call_.launch(stream); }

  HostTensor result() {
    HostTensor result = host_.c;
    device_.c.download(result);
    return result;
  }

  void expect_right() { test::expect_right(case_, host_, result()); }

 private:
  GemmCase case_;
  std::string kernel_;  // the call's options point to it
  GemmHostSet host_;
  GemmSet<DeviceTensor> device_;
  GemmCall call_;
};

class GemmDeterminismGpu : public GemmNvfp4Test {
 protected:
  // Cases with stream-K tiles, and one after a launch that makes its activations. C is in FP32 if
  // the kernel takes it, which would show any other order of sums.
  std::vector<GemmCase> cases() const {
    std::vector<GemmCase> cases{{.m = 7, .n = 336, .k = 16384},
                                {.m = 40, .n = 336, .k = 4096, .a_dtype = DType::e2m1x2},
                                {.m = 200, .n = 336, .k = 4096}};
    for (GemmCase& c : cases) {
      c.b_is_packed = takes_packed_weights();
      c.c_dtype = DType::fp32;
      if (!takes(c)) {
        c.c_dtype = DType::bf16;
      }
    }
    return cases;
  }
};

TEST_P(GemmDeterminismGpu, RepeatsAreEqualBesideABusyStream) {
  constexpr int kRepeats = 300;
  constexpr int kLaunchesOfLoad = 4;
  const DeviceGemm busy({.m = 1024, .n = 1024, .k = 1024, .b_is_packed = true}, "nvfp4");
  const DeviceStream busy_stream;
  const DeviceStream stream;
  bool has_stream_k = false;
  Ran ran;
  for (const GemmCase& c : cases()) {
    if (!takes(c)) {
      continue;
    }
    ++ran;
    SCOPED_TRACE(testing::Message() << GetParam() << ": " << c);
    has_stream_k |= stream_k_tiles(c) > 0;
    DeviceGemm gemm(c, GetParam());
    gemm.launch(stream.get());
    stream.wait();
    gemm.expect_right();
    const HostTensor first = gemm.result();
    for (int i = 0; i < kRepeats && !HasFailure(); ++i) {
      gemm.reset_output();
      for (int launch = 0; launch < kLaunchesOfLoad && busy_stream.is_idle(); ++launch) {
        busy.launch(busy_stream.get());
      }
      gemm.launch(stream.get());
      stream.wait();
      const HostTensor repeated = gemm.result();
      EXPECT_TRUE(std::equal(first.data(), first.data() + first.bytes(), repeated.data())) << i;
    }
  }
  EXPECT_TRUE(has_stream_k || !takes_packed_weights());
}

TEST_P(GemmDeterminismGpu, ConcurrentCallsWithTheirOwnWorkspacesDoNotDisturbEachOther) {
  constexpr int kRounds = 50;
  const std::vector<GemmCase> all = cases();
  Ran ran;
  for (const auto& [one, other] : {std::pair{all[0], all[2]}, std::pair{all[2], all[2]}}) {
    if (!takes(one) || !takes(other)) {
      continue;
    }
    ++ran;
    DeviceGemm gemm_a(one, GetParam());
    DeviceGemm gemm_b(other, GetParam());
    const DeviceStream stream_a;
    const DeviceStream stream_b;
    for (int round = 0; round < kRounds; ++round) {
      gemm_a.launch(stream_a.get());
      gemm_b.launch(stream_b.get());
    }
    stream_a.wait();
    stream_b.wait();
    gemm_a.expect_right();
    gemm_b.expect_right();
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmDeterminismGpu, testing::ValuesIn(cuda_kernels<GemmNvfp4>()),
                         test_name);

}  // namespace
}  // namespace tilewright::test
