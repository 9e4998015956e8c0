// GEMMs whose workers wait for each other (stream-K), beside others like them and on few SMs: no
// block may wait for one that has not started.
#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <thread>
#include <vector>

#include "device_problem.hpp"
#include "gemm_test.hpp"
#include "hopper_test.hpp"

namespace tilewright::test {
namespace {

using namespace std::chrono_literals;

class GemmContentionGpu : public HopperTest {};

// Nearly all tiles are under stream-K, some in many parts.
constexpr std::array kStreamKCases = {
    GemmCase{.m = 64, .n = 1024, .k = 16384, .b_is_packed = true},
    GemmCase{.m = 1, .n = 1024, .k = 16384, .b_is_packed = true},
    GemmCase{.m = 300, .n = 2048, .k = 8192, .b_is_packed = true}};  // in clusters

int stream_k_tiles(const GemmCase& c) {
  return cuda::plan_nvfp4(constraints_of(c), device_info(kDevice).multiprocessors).stream_k_tiles;
}

// A GEMM with tensors, a stream and a workspace of its own.
class OwnGemm {
 public:
  explicit OwnGemm(const GemmCase& c)
      : host_(make_tensors(c)),
        device_(to_device(host_)),
        call_(device_.views(c), options_of(c, "nvfp4")) {}

  void launch() const { call_.launch(stream_.get()); }
  bool is_done() const { return stream_.is_idle(); }

  reference::HostTensor result() const {
    reference::HostTensor c = host_.c;
    device_.c.download(c);
    return c;
  }

 private:
  GemmHostSet host_;
  GemmSet<DeviceTensor> device_;
  GemmCall call_;
  DeviceStream stream_;
};

// If a block waits for ever, this ends the process.
void wait_or_exit(const auto& is_done) {
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  while (!is_done()) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::cerr << "blocks wait for blocks that do not start\n";
      std::_Exit(EXIT_FAILURE);
    }
    std::this_thread::yield();
  }
}

TEST_F(GemmContentionGpu, ThreeStreamsContend) {
  constexpr int kRounds = 2000;
  constexpr int kQueuedRounds = 100;  // a full queue would block the host, which watches the time
  for (const GemmCase& c : kStreamKCases) {
    SCOPED_TRACE(testing::Message() << c);
    ASSERT_GT(stream_k_tiles(c), 0);
    std::deque<OwnGemm> gemms;
    for (int i = 0; i < 3; ++i) {
      gemms.emplace_back(c);
    }
    const auto wait = [&] {
      wait_or_exit([&] { return std::ranges::all_of(gemms, &OwnGemm::is_done); });
    };
    gemms.front().launch();
    wait();
    const reference::HostTensor alone = gemms.front().result();
    for (int round = 0; round < kRounds; ++round) {
      for (const OwnGemm& gemm : gemms) {
        gemm.launch();
      }
      if (round % kQueuedRounds == kQueuedRounds - 1) {
        wait();
      }
    }
    for (const OwnGemm& gemm : gemms) {
      EXPECT_TRUE(same_bytes(gemm.result(), alone));
    }
  }
}

// Attention occupies most of the SMs, for longer than the GEMMs take on the others.
TEST_F(GemmContentionGpu, AFewSmsAreEnough) {
  constexpr int kLaunches = 20;
  constexpr int kLeftSms = 8;
  const int sms = device_info(kDevice).multiprocessors;
  const Problem one_key{.heads = sms - kLeftSms, .head_dim = 128};
  DeviceProblem load(one_key);
  AttentionTensors tensors = load.views();
  for (ConstTensorView* const view : {&tensors.k, &tensors.v}) {
    view->shape[1] = std::int64_t{1} << 27;
    view->stride[1] = 0;
  }
  const DeviceCall long_call(tensors, options_of(one_key, "flash"));
  for (const GemmCase& c : kStreamKCases) {
    SCOPED_TRACE(testing::Message() << c);
    const OwnGemm gemm(c);
    gemm.launch();
    wait_or_exit([&] { return gemm.is_done(); });
    const reference::HostTensor alone = gemm.result();

    const DeviceStream loaded;
    long_call.launch(loaded.get());
    std::this_thread::sleep_for(20ms);  // it has started
    for (int launch = 0; launch < kLaunches; ++launch) {
      gemm.launch();
    }
    wait_or_exit([&] { return gemm.is_done(); });
    EXPECT_FALSE(loaded.is_idle()) << "the GEMMs had all SMs in the end";
    loaded.wait();
    EXPECT_TRUE(same_bytes(gemm.result(), alone));
  }
}

}  // namespace
}  // namespace tilewright::test
