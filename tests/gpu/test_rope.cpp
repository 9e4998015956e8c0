// RoPE on the GPU: the oracle's bytes, and nothing where positions are wrong.
#include <array>
#include <functional>

#include "bad_call.hpp"
#include "captured_graph.hpp"
#include "device_problem.hpp"
#include "hopper_test.hpp"
#include "problems/rope_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

class RopeGpu : public HopperTest {};

// A problem's tensors on the device.
class DeviceRotation {
 public:
  DeviceRotation(const RotationProblem& problem, RotationHostSet host)
      : problem_(problem),
        host_(std::move(host)),
        device_{DeviceTensor(host_.x), DeviceTensor(host_.out), DeviceTensor(host_.rotary_cos),
                DeviceTensor(host_.rotary_sin), DeviceTensor(host_.positions)} {}

  RopeTensors views() { return device_.views(problem_); }

  RotationHostSet result() {
    cuda_ok(cudaDeviceSynchronize());
    RotationHostSet result = host_;
    device_.out.download(result.out);
    return result;
  }

  void reset() { device_.out.upload(host_.out); }

  bool guards_untouched() const { return device_.out.guards_untouched(); }

 private:
  RotationProblem problem_;
  RotationHostSet host_;
  RotationSet<DeviceTensor> device_;
};

TEST_F(RopeGpu, SmallProblems) {
  Ran ran;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const RotationProblem& problem : rotation_problems(dtype)) {
      ++ran;
      SCOPED_TRACE(testing::Message() << problem);
      DeviceRotation device(problem, make_tensors(problem));
      RopeOptions options = options_of(problem);
      options.check_values = problem.seed % 2 == 0;
      rope(device.views(), options);
      expect_right(problem, device.result());
      EXPECT_TRUE(device.guards_untouched());
    }
  }
}

TEST_F(RopeGpu, LargeProblemsEqualTheCpu) {
  for (const bool is_in_place : {false, true}) {
    for (const bool interleaved : {false, true}) {
      const RotationProblem problem{.rows = 1000,
                                    .heads = 64,
                                    .interleaved = interleaved,
                                    .is_in_place = is_in_place,
                                    .has_specials = true,
                                    .seed = 5};
      SCOPED_TRACE(testing::Message() << problem);
      RotationHostSet host = make_tensors(problem);
      DeviceRotation device(problem, host);
      rope(device.views(), options_of(problem));
      rope(host.views(problem), options_of(problem));
      EXPECT_TRUE(same_bytes(device.result().out, host.out));
    }
  }
}

TEST_F(RopeGpu, RunsInACapturedGraph) {
  const RotationProblem problem{.is_in_place = true};
  DeviceRotation device(problem, make_tensors(problem));
  const CapturedGraph graph(
      [&](Stream stream) { rope(device.views(), options_of(problem), stream); });
  for (int replay = 0; replay < 2; ++replay) {
    device.reset();
    graph.replay();
    expect_right(problem, device.result());
  }
}

// A check names wrong positions; without it their rows are left out.
TEST_F(RopeGpu, WrongPositionsAreFoundOrLeftOut) {
  const RotationProblem problem;
  RotationHostSet host = make_tensors(problem);
  constexpr std::array kWrong = {40.0, -1.0, 1e15, -1e18};  // of 40
  for (std::int64_t row = 0; row < problem.rows; ++row) {
    reference::store(host.positions.view(), row, kWrong[static_cast<std::size_t>(row) % 4]);
  }
  DeviceRotation device(problem, host);
  RopeOptions options = options_of(problem);
  options.check_values = true;
  const BadCallOf<RopeTensors> bad{"positions", {}, "positions", {"is 40 for row 0, must be from"}};
  expect_throws(bad, [&] { rope(device.views(), options); });
  EXPECT_TRUE(same_bytes(device.result().out, host.out));
  rope(device.views(), options_of(problem));
  EXPECT_TRUE(same_bytes(device.result().out, host.out));
  EXPECT_TRUE(device.guards_untouched());
}

TEST_F(RopeGpu, WrongArgumentsAreRefusedAndNothingIsWritten) {
  const std::vector<BadCallOf<RopeTensors>> cases = {
      {"misaligned_x", [](auto& t) { misplace(t.x, 8); }, "x", {"8 bytes past a 16-byte"}},
      {"out_stride", [](auto& t) { t.out.stride[0] += 4; }, "out", {"multiple of 8 elements"}},
      {"fp32",
       [](auto& t) {  // of rows that their memory holds
         t.x.dtype = t.out.dtype = DType::fp32;
         t.x.shape[0] = t.out.shape[0] = t.positions.shape[0] = 3;
       },
       "x",
       {"dtype fp32", "fp16, bf16"},
       ErrorCode::unsupported},
      {"rotary_dims",
       [](auto& t) { t.rotary_cos.shape[1] = t.rotary_sin.shape[1] = 12; },
       "rotary_cos",
       {"has rotary_dims 24", "multiples of 16"},
       ErrorCode::unsupported},
      {"positions_on_the_host",
       [](auto& t) { t.positions.device = {}; },
       "positions",
       {"must be on cuda:0 like x"}},
  };
  const RotationProblem problem;
  const RotationHostSet host = make_tensors(problem);
  DeviceRotation device(problem, host);
  for (const auto& bad : cases) {
    RopeTensors tensors = device.views();
    bad.spoil(tensors);
    expect_throws(bad, [&] { rope(tensors); });
  }
  EXPECT_TRUE(same_bytes(device.result().out, host.out));
}

}  // namespace
}  // namespace tilewright::test
