// What a result may not depend on: other work on the GPU, the rest of the batch.
#include "device_problem.hpp"
#include "kernel_test.hpp"
#include "problems/batch_invariance.hpp"
#include "problems/expectation.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

class DeterminismGpu : public KernelTest {
 protected:
  AttentionOptions options(const Problem& problem) const { return options_of(problem, GetParam()); }
};

// One problem fills the GPU only in part; one has fewer queries than a tile, and may be split; in
// one, blocks take several tiles.
std::vector<Problem> problems() {
  return {{.batch = 2, .q_len = 300, .kv_len = 700, .heads = 4, .head_dim = 128, .causal = true},
          {.batch = 2, .q_len = 3, .kv_len = 3000, .heads = 4, .kv_heads = 2, .head_dim = 128},
          {.batch = 3, .q_len = 300, .kv_len = 260, .heads = 40, .head_dim = 64, .causal = true}};
}

TEST_P(DeterminismGpu, AThousandRepeatsAreEqualBesideABusyStream) {
  constexpr int kRepeats = 1000;
  const Problem load{.batch = 2, .q_len = 1024, .kv_len = 1024, .heads = 8, .head_dim = 128};
  DeviceProblem busy(load);
  const DeviceCall busy_call(busy.views(), options(load));
  const auto keep_busy = [&](Stream other) {
    for (int launch = 0; launch < 4; ++launch) {
      busy_call.launch(other);
    }
  };
  const DeviceStream busy_stream;
  const DeviceStream stream;
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(testing::Message() << problem);
    DeviceProblem device(problem);
    DeviceCall call(device.views(), options(problem));
    call.launch(stream.get());
    stream.wait();
    HostTensors first = device.results();
    expect_right(problem, first);
    HostTensors repeated = first;
    for (int i = 0; i < kRepeats && !HasFailure(); ++i) {
      device.reset_outputs();
      if (busy_stream.is_idle()) {
        keep_busy(busy_stream.get());
      }
      call.launch(stream.get());
      stream.wait();
      device.download_outputs(repeated);
      expect_same_bits(first, repeated);
    }
  }
}

TEST_P(DeterminismGpu, ConcurrentCallsWithTheirOwnWorkspacesDoNotDisturbEachOther) {
  constexpr int kRounds = 50;
  const std::vector<Problem> both = problems();
  DeviceProblem device_a(both[0]);
  DeviceProblem device_b(both[1]);
  const DeviceCall call_a(device_a.views(), options(both[0]));
  const DeviceCall call_b(device_b.views(), options(both[1]));
  const DeviceStream stream_a;
  const DeviceStream stream_b;
  for (int round = 0; round < kRounds; ++round) {
    call_a.launch(stream_a.get());
    call_b.launch(stream_b.get());
  }
  stream_a.wait();
  stream_b.wait();
  expect_right(both[0], device_a.results());
  expect_right(both[1], device_b.results());
}

TEST_P(DeterminismGpu, BatchInvariantRowsDoNotDependOnTheBatch) {
  const auto run_on_gpu = [&](const Problem& problem, HostTensors& tensors) {
    DeviceProblem device(tensors);
    run(device.views(), options(problem));
    tensors = device.results();
  };
  std::vector<Problem> alone = {
      // The second problem is split.
      {.q_len = 1, .kv_len = 2000, .heads = 2, .kv_heads = 1, .head_dim = 128},
      {.q_len = 1, .kv_len = 5000, .heads = 2, .kv_heads = 1, .head_dim = 128}};
  for (const int head_dim : {64, 96, 128, 192, 256}) {
    alone.push_back(
        {.q_len = 150, .kv_len = 333, .heads = 2, .head_dim = head_dim, .causal = true});
    // Whether a warp of flash has a score beyond 0.35 of this cap depends on all of its rows.
    Problem capped = alone.back();
    capped.softcap = 9.0f;
    alone.push_back(capped);
  }
  Ran ran;
  for (Problem problem : alone) {
    problem.batch_invariant = true;
    if (!takes(problem)) {
      continue;
    }
    ++ran;
    expect_batch_invariant(problem, run_on_gpu);
    problem.q_lens = {static_cast<int>(problem.q_len)};
    problem.kv_lens = {static_cast<int>(problem.kv_len)};
    if (takes(problem)) {
      expect_batch_invariant(problem, run_on_gpu);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, DeterminismGpu, testing::ValuesIn(cuda_attention_kernels()),
                         kKernelName);

}  // namespace
}  // namespace tilewright::test
