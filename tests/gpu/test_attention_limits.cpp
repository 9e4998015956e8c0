// Attention at the largest sizes that it takes, after an error of another call, as the first call
// of a process, and in clusters that take several tiles.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "device_problem.hpp"
#include "hopper_test.hpp"
#include "problems/expectation.hpp"

namespace tilewright::test {
namespace {

class AttentionLimitsGpu : public HopperTest {};

// All keys and all values are the same: so are all scores, and o is the value.
TEST_F(AttentionLimitsGpu, TakesAsManyKeysAsATensorMayHave) {
  constexpr std::int64_t kKeys = (std::int64_t{1} << 30) - 1;
  for (const auto& [causal, softcap] :
       {std::pair{false, 0.0f}, {true, 0.0f}, {false, 30.0f}, {true, 30.0f}}) {
    const Problem one_key{.head_dim = 64, .causal = causal, .softcap = softcap};
    SCOPED_TRACE(testing::Message() << one_key);
    DeviceProblem device(one_key);
    HostTensors expected = device.results();
    attention(expected.views(), options_of(one_key, "cpu"));

    AttentionTensors tensors = device.views();
    for (ConstTensorView* const view : {&tensors.k, &tensors.v}) {
      view->shape[1] = kKeys;
      view->stride[1] = 0;
    }
    run(tensors, options_of(one_key, "flash"));
    const HostTensors result = device.results();
    // Tensor cores cut off what does not fit a sum: of that many, up to a quarter.
    for (std::int64_t d = 0; d < one_key.head_dim; ++d) {
      const double value = reference::load(expected.o.view(), d);
      EXPECT_NEAR(reference::load(result.o.view(), d), value, 0.35 * std::abs(value));
    }
    EXPECT_NEAR(reference::load(result.lse.view(), 0),
                reference::load(expected.lse.view(), 0) + std::log(double{kKeys}), 1e-4);
  }
}

// Sequences times heads are more than 31 bits count; nearly all sequences are empty.
TEST_F(AttentionLimitsGpu, TakesAsManyPackedSequencesAsThereAre) {
  constexpr std::size_t kBatch = (std::size_t{1} << 25) + 1;
  constexpr std::size_t kSequence = kBatch - 2;
  Problem problem{.q_len = 200, .kv_len = 200, .heads = 64, .head_dim = 64};
  DeviceProblem device(problem);
  run(device.views(), options_of(problem, "flash"));
  const HostTensors alone = device.results();

  std::vector<int> starts(kBatch + 1, 0);
  std::fill(starts.begin() + kSequence + 1, starts.end(), static_cast<int>(problem.q_len));
  const DeviceBuffer lengths(starts.size() * sizeof(int));
  copy_bytes(lengths.data(), starts.data(), starts.size() * sizeof(int));
  AttentionTensors packed = device.views();
  const auto without_batch = [](auto& view) {
    view.rank -= 1;
    std::shift_left(view.shape.begin(), view.shape.end(), 1);
    std::shift_left(view.stride.begin(), view.stride.end(), 1);
  };
  without_batch(packed.q);
  without_batch(packed.k);
  without_batch(packed.v);
  without_batch(packed.o);
  without_batch(*packed.lse);
  packed.cu_seqlens_q = packed.cu_seqlens_k =
      contiguous(const_cast<const int*>(reinterpret_cast<int*>(lengths.data())), DType::int32,
                 std::array{static_cast<std::int64_t>(starts.size())}, {DeviceKind::cuda, 0});
  device.reset_outputs();
  run(packed, options_of(problem, "flash"));
  EXPECT_TRUE(same_bytes(device.results().o, alone.o));
}

// Every launch checks its own status alone; so does the merge, the second launch of split keys.
TEST_F(AttentionLimitsGpu, SomebodyElsesErrorFailsNoCall) {
  for (const char* const kernel : {"k1", "flash"}) {
    const Problem problem{.q_len = 1, .kv_len = 8192, .heads = 2, .head_dim = 128};
    DeviceProblem device(problem);
    const DeviceCall call(device.views(), options_of(problem, kernel));
    void* too_much = nullptr;
    ASSERT_EQ(cudaMalloc(&too_much, std::size_t{1} << 60), cudaErrorMemoryAllocation);
    EXPECT_NO_THROW(call.launch(nullptr)) << kernel;
    cuda_ok(cudaDeviceSynchronize());
    expect_right(problem, device.results());
  }
}

// No call comes before it: the kernel is loaded, and its limits are set, during the capture.
TEST_F(AttentionLimitsGpu, AProcessMayCaptureItsFirstCall) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own
  const auto captures_and_replays = [] {
    bool all = true;
    for (const Problem& problem :
         {Problem{.q_len = 1, .kv_len = 8192, .heads = 2, .head_dim = 128, .softcap = 20.0f},
          Problem{.q_len = 500, .kv_len = 500, .heads = 4, .head_dim = 256, .causal = true}}) {
      DeviceProblem device(problem);
      const DeviceCall call(device.views(), options_of(problem, "flash"));
      const DeviceStream stream;
      cudaGraph_t graph = nullptr;
      cudaGraphExec_t executable = nullptr;
      cuda_ok(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
      call.launch(stream.get());
      cuda_ok(cudaStreamEndCapture(stream.get(), &graph));
      cuda_ok(cudaGraphInstantiate(&executable, graph, 0));
      cuda_ok(cudaGraphLaunch(executable, stream.get()));
      stream.wait();
      const HostTensors replayed = device.results();
      device.reset_outputs();
      call.launch(stream.get());
      stream.wait();
      all = all && same_bytes(replayed.o, device.results().o) && !HasFailure();
    }
    std::_Exit(all ? EXIT_SUCCESS : EXIT_FAILURE);
  };
  EXPECT_EXIT(captures_and_replays(), testing::ExitedWithCode(EXIT_SUCCESS), "");
}

// More tiles than clusters run at a time, compared with the same tiles in blocks without clusters.
TEST_F(AttentionLimitsGpu, ClustersTakeTileAfterTile) {
  constexpr int kRepeats = 50;
  Problem problem{
      .batch = 4, .q_len = 2048, .kv_len = 2048, .heads = 16, .kv_heads = 16, .head_dim = 128};
  problem.sinks = true;
  DeviceProblem device(problem);
  run(device.views(), options_of(problem, "flash/5"));
  const HostTensors expected = device.results();
  const auto values_of = [](const reference::HostTensor& tensor) {
    std::vector<double> values(tensor.bytes() / size_bytes(tensor.view().dtype));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = reference::load(tensor.view(), static_cast<std::int64_t>(i));
    }
    return values;
  };
  for (const char* const row : {"flash/6", "flash/7"}) {
    const DeviceCall call(device.views(), options_of(problem, row));
    device.reset_outputs();
    call.launch(nullptr);
    HostTensors first = device.results();
    const auto o = reference::compare(first.o.view(), values_of(expected.o));
    const auto lse = reference::compare(first.lse.view(), values_of(expected.lse));
    EXPECT_TRUE(o.same_specials && lse.same_specials) << row;
    EXPECT_LE(o.rel_fro, 3e-3) << row;
    EXPECT_LE(o.max_abs, 2e-2) << row;
    EXPECT_LE(lse.max_abs, 1e-5) << row;
    for (int i = 0; i < kRepeats && !HasFailure(); ++i) {
      device.reset_outputs();
      call.launch(nullptr);
      HostTensors repeated = device.results();
      expect_same_bits(first, repeated);
    }
  }
}

}  // namespace
}  // namespace tilewright::test
