// Merging attention results on the GPU: against the float64 model.
#include "bad_call.hpp"
#include "captured_graph.hpp"
#include "device_problem.hpp"
#include "hopper_test.hpp"
#include "problems/merge_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

class MergeStatesGpu : public HopperTest {};

// A problem on the device, its outputs poisoned.
class DeviceMerge {
 public:
  explicit DeviceMerge(const MergeProblem& problem)
      : host_(make_tensors(problem)),
        device_{.o = DeviceTensor(host_.o),
                .out = DeviceTensor(host_.out),
                .m = DeviceTensor(host_.m),
                .l = copy(host_.l),
                .sinks = copy(host_.sinks),
                .lse_out = copy(host_.lse_out),
                .row_max_out = copy(host_.row_max_out),
                .row_sum_out = copy(host_.row_sum_out)} {}

  MergeStatesTensors views() { return device_.views(); }

  void launch(Stream stream) { merge_states(device_.views(), {}, stream); }

  void reset_outputs() {
    const auto from = host_.outputs();
    const auto to = device_.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i]->upload(*from[i]);
    }
  }

  MergeHostSet run() {
    launch(nullptr);
    cuda_ok(cudaDeviceSynchronize());
    return result();
  }

  MergeHostSet result() {
    MergeHostSet result = host_;
    const auto from = device_.outputs();
    const auto to = result.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      from[i]->download(*to[i]);
    }
    return result;
  }

  bool guards_untouched() {
    const auto outputs = device_.outputs();
    return std::ranges::all_of(outputs,
                               [](const auto* tensor) { return tensor->guards_untouched(); });
  }

 private:
  static std::optional<DeviceTensor> copy(const std::optional<reference::HostTensor>& tensor) {
    return tensor ? std::optional<DeviceTensor>(std::in_place, *tensor) : std::nullopt;
  }

  MergeHostSet host_;
  MergeSet<DeviceTensor> device_;
};

void expect_same_bits(MergeHostSet a, MergeHostSet b) {
  const auto ours = a.outputs();
  const auto theirs = b.outputs();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(same_bytes(*ours[i], *theirs[i])) << "output " << i;
  }
}

TEST_F(MergeStatesGpu, SmallProblems) {
  Ran ran;
  for (const MergeProblem& problem : merge_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    DeviceMerge device(problem);
    MergeHostSet first = device.run();
    expect_right(problem, first);
    EXPECT_TRUE(device.guards_untouched());
    device.reset_outputs();
    expect_same_bits(first, device.run());
  }
}

TEST_F(MergeStatesGpu, ManyRowsAndManyParts) {
  for (MergeProblem problem :
       {MergeProblem{.parts = 3, .tokens = 5000, .heads = 16, .head_dim = 128},
        MergeProblem{.parts = 300, .tokens = 2, .heads = 5, .head_dim = 512},
        MergeProblem{.parts = 2, .tokens = 1, .heads = 1, .head_dim = 8 * 12345}}) {
    for (const bool has_specials : {false, true}) {
      problem.has_specials = has_specials;
      SCOPED_TRACE(testing::Message() << problem);
      DeviceMerge device(problem);
      MergeHostSet result = device.run();
      expect_right(problem, result);
    }
  }
}

TEST_F(MergeStatesGpu, RunsInACapturedGraph) {
  const MergeProblem problem{.parts = 4, .tokens = 65, .heads = 8, .has_sinks = true};
  DeviceMerge device(problem);
  const CapturedGraph graph([&](Stream stream) { device.launch(stream); });
  for (int replay = 0; replay < 2; ++replay) {
    device.reset_outputs();
    graph.replay();
    MergeHostSet result = device.result();
    expect_right(problem, result);
  }
}

TEST_F(MergeStatesGpu, WrongArgumentsAreRefusedAndNothingIsWritten) {
  const std::vector<BadCallOf<MergeStatesTensors>> cases = {
      {"misaligned_o", [](auto& t) { misplace(t.o, 8); }, "o", {"8 bytes past a 16-byte"}},
      {"o_stride", [](auto& t) { t.o.stride[1] = 268; }, "o", {"multiple of 8 elements"}},
      {"misaligned_out", [](auto& t) { misplace(t.out, 8); }, "out", {"8 bytes past a 16-byte"}},
      {"negative_stride", [](auto& t) { t.out.stride[0] = -256; }, "out", {"-256", "non-negative"}},
      {"head_dim",
       [](auto& t) { t.o.shape[3] = t.out.shape[2] = 60; },
       "o",
       {"head_dim 60", "multiples of 8"},
       ErrorCode::unsupported},
      {"lse_on_the_host", [](auto& t) { t.lse->device = {}; }, "lse", {"must be on cuda:0 like o"}},
  };
  const MergeProblem problem{.parts = 2, .tokens = 9, .heads = 4};
  MergeHostSet before = make_tensors(problem);
  DeviceMerge device(problem);
  for (const auto& bad : cases) {
    MergeStatesTensors tensors = device.views();
    bad.spoil(tensors);
    expect_throws(bad, [&] { merge_states(tensors); });
  }
  cuda_ok(cudaDeviceSynchronize());
  expect_same_bits(before, device.result());
}

}  // namespace
}  // namespace tilewright::test
