// What a result of dsv4_attention() may not depend on: other work on the GPU, whether a graph is
// replayed.
#include "captured_graph.hpp"
#include "dsv4_device.hpp"
#include "dsv4_test.hpp"
#include "problems/dsv4_expectation.hpp"

namespace tilewright::test {
namespace {

// A few requests of unequal lengths, one of them long enough to be split.
Dsv4Problem problem_of(const Dsv4Choices& choices, int heads) {
  Dsv4Problem p{.heads = heads, .q_lens = {2, 2, 2}};
  p.window = {.keys = Dsv4Keys::range,
              .format = choices.window_formats.back(),
              .ends = {128, 1000, 3},
              .advance = 1,
              .most = 128,
              .has_table = true};
  p.compressed = {.keys = Dsv4Keys::list,
                  .format = choices.compressed_formats.back(),
                  .ends = {5, 3000, 0},
                  .pages = 100,
                  .entries = 3000,
                  .has_lengths = true};
  p.sinks = Dsv4Sinks::normal;
  return p;
}

TEST_F(Dsv4Gpu, AThousandRepeatsAreEqualBesideABusyStream) {
  constexpr int kRepeats = 1000;
  for_each_problem(
      kernels_and_variants(),
      [](const Dsv4Choices& choices) {
        return std::vector{problem_of(choices, choices.heads.front()),
                           problem_of(choices, choices.heads.back())};
      },
      [&](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        const Dsv4AttentionOptions options = options_of(problem, kernel.info.name);
        Dsv4DeviceProblem busy(make_tensors(problem));
        Dsv4DeviceProblem device(make_tensors(problem));
        const Dsv4DeviceCall busy_call(busy.views(), options);
        const Dsv4DeviceCall call(device.views(), options);
        const DeviceStream busy_stream;
        const DeviceStream stream;
        call.launch(stream.get());
        stream.wait();
        Dsv4HostTensors first = device.results();
        expect_right(problem, first);
        for (int i = 0; i < kRepeats && !HasFailure(); ++i) {
          device.reset_outputs();
          for (int launch = 0; launch < 20 && busy_stream.is_idle(); ++launch) {
            busy_call.launch(busy_stream.get());
          }
          call.launch(stream.get());
          stream.wait();
          Dsv4HostTensors repeated = device.results();
          expect_same_bits(first, repeated);
        }
      });
}

// ---- Graphs

// The problem with other lengths, in caches and tables that stay as large as they are.
Dsv4Problem with_lengths(Dsv4Problem p, const std::vector<int>& window_ends,
                         const std::vector<int>& compressed_ends, std::uint64_t seed) {
  constexpr int kPages = 60;
  const auto set = [&](Dsv4ScopeCase& scope, const std::vector<int>& ends) {
    scope.ends = ends;
    if (scope.is_list()) {
      return;
    }
    scope.capacity = 1024;
    scope.pages = kPages;
    for (const int end : ends) {
      const std::int64_t last = std::max(0, end + scope.advance * (p.q_lens.front() - 1));
      scope.pages -= (last + scope.page_size - 1) / scope.page_size;
    }
  };
  set(p.window, window_ends);
  set(p.compressed, compressed_ends);
  p.seed = seed;
  return p;
}

// Captures a call with the first problem's tensors, and replays it with those of each: right, and
// bit-equal to a call without a graph. All are of the same sizes.
void check_replays(const std::vector<Dsv4Problem>& problems, const Dsv4Kernel& kernel) {
  Dsv4DeviceProblem device(make_tensors(problems.front()));
  const Dsv4DeviceCall call(device.views(), options_of(problems.front(), kernel.info.name));
  const CapturedGraph captured([&](Stream stream) { call.launch(stream); });
  for (const Dsv4Problem& p : problems) {
    SCOPED_TRACE(testing::Message() << "replayed with " << p);
    device.upload(make_tensors(p));
    captured.replay();
    Dsv4HostTensors replayed = device.results();
    expect_right(p, replayed);
    device.reset_outputs();
    call.launch(nullptr);
    cuda_ok(cudaDeviceSynchronize());
    Dsv4HostTensors launched = device.results();
    expect_same_bits(replayed, launched);
  }
}

TEST_F(Dsv4Gpu, AGraphIsReplayedWithOtherLengths) {
  struct Lengths {
    std::vector<int> window, compressed;
  };
  const std::vector<Lengths> lengths = {{{1000, 1000, 1000}, {1000, 1000, 1000}},
                                        {{1000, 3, 517}, {1, 1000, 0}},
                                        {{0, 0, 1}, {0, 0, 0}},
                                        {{128, 999, 64}, {512, 511, 513}}};
  for_each_problem(
      kernels_and_variants(),
      [](const Dsv4Choices& choices) {
        std::vector<Dsv4Problem> problems;
        for (const int heads : choices.heads) {
          problems.push_back(problem_of(choices, heads));
          problems.back().compressed.entries = 1000;
          problems.push_back(problem_of(choices, heads));
          problems.back().compressed = problems.back().window;
          problems.back().compressed.format = choices.compressed_formats.front();
          problems.back().compressed.most = 0;
        }
        return problems;
      },
      [&](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        std::vector<Dsv4Problem> replays;
        for (const auto& [window, compressed] : lengths) {
          replays.push_back(with_lengths(problem, window, compressed, replays.size() + 1));
        }
        check_replays(replays, kernel);
      });
}

}  // namespace
}  // namespace tilewright::test
