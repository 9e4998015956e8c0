// Every CUDA kernel of attention_with_kvcache() and each of its variants against the float64
// oracle.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "captured_graph.hpp"
#include "device_problem.hpp"
#include "kvcache_device.hpp"
#include "problems/kvcache_expectation.hpp"
#include "problems/kvcache_forms.hpp"
#include "problems/kvcache_problem_sets.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using KvCacheKernel = Kernel<AttentionWithKvCache>;

constexpr Device kDevice{DeviceKind::cuda, 0};

// Runs twice: right, bit-equal, and nothing written outside the outputs.
void check_problem(const KvCacheProblem& problem, const std::string& kernel) {
  SCOPED_TRACE(testing::Message() << kernel << ": " << problem);
  KvCacheDeviceProblem device(make_tensors(problem));
  AttentionWithKvCacheOptions options = options_of(problem, kernel);
  run(device.views(), options);
  KvCacheHostTensors first = device.results();
  expect_right(problem, first);
  EXPECT_TRUE(device.guards_untouched());

  device.reset_outputs();
  options.check_values = true;  // which changes nothing
  run(device.views(), options);
  KvCacheHostTensors second = device.results();
  expect_same_bits(first, second);
}

// The problem, and the same with more new tokens of each sequence.
std::vector<KvCacheProblem> with_a_chunk(const KvCacheProblem& problem) {
  KvCacheProblem chunk = problem;
  chunk.q_lens.assign(problem.batch(), 70);
  return {problem, chunk};
}

class KvCacheGpu : public testing::Test {
 protected:
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

TEST_F(KvCacheGpu, SmallProblems) {
  for_each_problem(kernels_and_variants(), small_kvcache_problems,
                   [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
                     check_problem(problem, kernel.info.name);
                   });
}

TEST_F(KvCacheGpu, RandomProblems) {
  constexpr int kCount = 1000;
  for_each_problem(
      usable_kernels(),
      [](const KvCacheChoices& choices) { return random_kvcache_problems(choices, kCount); },
      [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
        check_problem(problem, kernel.info.name);
      });
}

TEST_F(KvCacheGpu, RandomProblemsOfVariants) {
  constexpr int kCount = 200;
  for (const KvCacheKernel* const kernel : usable_kernels()) {
    for (const KvCacheKernel& variant : kernel->variants) {
      for_each_problem(
          {&variant},
          [](const KvCacheChoices& choices) { return random_kvcache_problems(choices, kCount, 7); },
          [](const KvCacheProblem& problem, const KvCacheKernel& its_variant) {
            check_problem(problem, its_variant.info.name);
          });
    }
  }
}

// Random problems that are batch-invariant. None shares a prefix, which a row then depends on.
std::vector<KvCacheProblem> batch_invariant_problems(KvCacheChoices choices, int count,
                                                     std::uint64_t seed) {
  std::erase(choices.features, KvCacheFeature::shared_prefix);
  std::vector<KvCacheProblem> problems = random_kvcache_problems(choices, count, seed);
  for (KvCacheProblem& problem : problems) {
    problem.batch_invariant = true;
  }
  return problems;
}

// Where nothing but the place of keys differs, and the same variant runs.
TEST_F(KvCacheGpu, PagesChangeNoBit) {
  constexpr int kCount = 200;
  for_each_problem(
      usable_kernels(),
      [](const KvCacheChoices& choices) { return batch_invariant_problems(choices, kCount, 2); },
      [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
        if (problem.page_size == 0) {
          return;
        }
        SCOPED_TRACE(testing::Message() << kernel.info.name << ": " << problem);
        KvCacheHostTensors paged = make_tensors(problem);
        const KvCacheForm whole = without_pages(problem, paged);
        if (variant_of(kernel, constraints_of(whole.problem), device_info(kDevice)) !=
            variant_of(kernel, constraints_of(problem), device_info(kDevice))) {
          return;
        }
        KvCacheDeviceProblem of_pages(paged);
        KvCacheDeviceProblem without(whole.tensors);
        run(of_pages.views(), options_of(problem, kernel.info.name));
        run(without.views(), options_of(problem, kernel.info.name));
        KvCacheHostTensors a = of_pages.results();
        KvCacheHostTensors b = without.results();
        expect_same_bits(a, b, false);
      });
}

// Each sequence by itself writes the bits that it wrote in its batch.
TEST_F(KvCacheGpu, BatchInvariantRowsDoNotDependOnTheirNeighbours) {
  constexpr int kCount = 100;
  for_each_problem(
      usable_kernels(),
      [](const KvCacheChoices& choices) { return batch_invariant_problems(choices, kCount, 3); },
      [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
        SCOPED_TRACE(testing::Message() << kernel.info.name << ": " << problem);
        const AttentionWithKvCacheOptions options = options_of(problem, kernel.info.name);
        KvCacheDeviceProblem together(make_tensors(problem));
        KvCacheDeviceProblem apart(make_tensors(problem));
        run(together.views(), options);
        for (std::size_t b = 0; b < problem.batch(); ++b) {
          if (problem.q_lens[b] > 0) {
            run(alone(problem, apart.views(), b), options);
          }
        }
        KvCacheHostTensors expected = together.results();
        KvCacheHostTensors results = apart.results();
        expect_same_bits(expected, results);
      });
}

// Captures a call with the first problem's tensors, and replays it with those of each: right, and
// bit-equal to a call without a graph. All are of the same sizes.
void check_replays(const std::vector<KvCacheProblem>& problems, const std::string& kernel) {
  KvCacheDeviceProblem device(make_tensors(problems.front()));
  const KvCacheDeviceCall call(device.views(), options_of(problems.front(), kernel));
  const CapturedGraph captured([&](Stream stream) { call.launch(stream); });
  for (const KvCacheProblem& p : problems) {
    device.upload(make_tensors(p));
    SCOPED_TRACE(testing::Message() << kernel << ": " << p);
    captured.replay();
    KvCacheHostTensors replayed = device.results();
    expect_right(p, replayed);
    device.reset_outputs();
    call.launch(nullptr);
    cuda_ok(cudaDeviceSynchronize());
    KvCacheHostTensors launched = device.results();
    expect_same_bits(replayed, launched);
  }
}

// The problem with other lengths, in caches that stay as large as they are.
KvCacheProblem with_lengths(KvCacheProblem p, const std::vector<int>& cached, std::uint64_t seed) {
  constexpr int kPages = 260;
  p.cached = cached;
  p.seed = seed;
  p.spare = kPages;
  for (const int length : cached) {
    p.spare -= (length + 15) / 16;
  }
  return p;
}

// Of pages, with so many new tokens of each of four sequences; one of each head dim.
std::vector<KvCacheProblem> problems_of_replays(const KvCacheChoices& choices,
                                                const std::vector<int>& new_tokens) {
  KvCacheProblem problem{.heads = 8, .kv_heads = 2, .causal = true};
  problem.page_size = 16;
  problem.capacity = 1008;
  std::vector<KvCacheProblem> problems;
  for (const HeadDims dims : choices.head_dims) {
    for (const int tokens : new_tokens) {
      problem.head_dim = dims.qk;
      problem.value_dim = dims.v;
      problem.q_lens.assign(4, tokens);
      problems.push_back(with_lengths(problem, {1000, 1000, 1000, 1000}, 1));
    }
  }
  return problems;
}

TEST_F(KvCacheGpu, AGraphIsReplayedWithOtherLengthsAndTables) {
  const std::vector<std::vector<int>> lengths = {
      {1000, 3, 517, 64}, {1, 1000, 0, 517}, {999, 1000, 998, 997}, {0, 0, 0, 1}};
  for_each_problem(
      kernels_and_variants(),
      [](const KvCacheChoices& choices) {
        return problems_of_replays(choices, {1, 5, 70});
      },
      [&](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
        std::vector<KvCacheProblem> replays;
        for (const std::vector<int>& cached : lengths) {
          replays.push_back(with_lengths(problem, cached, replays.size() + 1));
        }
        check_replays(replays, kernel.info.name);
      });
}

TEST_F(KvCacheGpu, AGraphIsReplayedWithOtherPrefixes) {
  struct Prefixes {
    std::vector<int> cached, groups, seqlens;
  };
  const std::vector<Prefixes> prefixes = {{{1000, 900, 517, 64}, {0, 3, 4}, {512, 0}},
                                          {{1000, 900, 517, 64}, {0, 1, 4}, {996, 60}},
                                          {{700, 701, 702, 703}, {0, 4, 4}, {695, 9}},
                                          {{5, 0, 5, 6}, {0, 2, 4}, {0, 1}}};
  for_each_problem(
      with_feature(kernels_and_variants(), KvCacheFeature::shared_prefix),
      [](const KvCacheChoices& choices) {
        return problems_of_replays(choices, {1, 5});
      },
      [&](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
        std::vector<KvCacheProblem> replays;
        for (const auto& [cached, groups, seqlens] : prefixes) {
          replays.push_back(with_lengths(problem, cached, replays.size() + 1));
          replays.back().prefix_groups = groups;
          replays.back().prefix_seqlens = seqlens;
        }
        check_replays(replays, kernel.info.name);
      });
}

// A call with such values writes nothing beside its outputs, and is refused if it looks at them.
void expect_no_stray_access(const KvCacheHostTensors& host, AttentionWithKvCacheOptions options) {
  KvCacheDeviceProblem device(host);
  run(device.views(), options);
  EXPECT_TRUE(device.guards_untouched());
  options.check_values = true;
  EXPECT_THROW(run(device.views(), options), Error);
}

// Two new tokens of each of four sequences in pages, of the first of the head dims.
KvCacheProblem small_problem(const KvCacheChoices& choices, const std::vector<int>& cached) {
  KvCacheProblem problem{.heads = 4, .kv_heads = 2, .causal = true};
  problem.head_dim = choices.head_dims.front().qk;
  problem.value_dim = choices.head_dims.front().v;
  problem.q_lens.assign(4, 2);
  problem.cached = cached;
  problem.page_size = 16;
  problem.capacity = 64;
  return problem;
}

constexpr double kWildInts[] = {-1.0, 60.0, 1e9, -2147483648.0};

// Without check_values lengths, pages and paddings out of range are clamped: no access strays.
TEST_F(KvCacheGpu, ValuesOutOfRangeAreClamped) {
  for_each_problem(
      kernels_and_variants(),
      [](const KvCacheChoices& choices) {
        return with_a_chunk(small_problem(choices, {40, 64, 3, 20}));
      },
      [](const KvCacheProblem& p, const KvCacheKernel& kernel) {
        SCOPED_TRACE(kernel.info.name);
        for (const double wild : kWildInts) {
          KvCacheHostTensors host = make_tensors(p);
          reference::fill_constant(host.cache_seqlens.view(), wild);
          reference::fill_constant(host.block_table->view(), wild);
          expect_no_stray_access(host, options_of(p, kernel.info.name));
        }
      });
}

// The same of groups and prefixes.
TEST_F(KvCacheGpu, PrefixesOutOfRangeAreClamped) {
  for_each_problem(
      with_feature(kernels_and_variants(), KvCacheFeature::shared_prefix),
      [](const KvCacheChoices& choices) {
        KvCacheProblem problem = small_problem(choices, {40, 64, 30, 20});
        problem.prefix_groups = {0, 2, 4};
        problem.prefix_seqlens = {32, 16};
        return std::vector{problem};
      },
      [](const KvCacheProblem& p, const KvCacheKernel& kernel) {
        SCOPED_TRACE(kernel.info.name);
        for (const auto spoilt :
             {&KvCacheHostTensors::prefix_groups, &KvCacheHostTensors::prefix_seqlens,
              &KvCacheHostTensors::block_table}) {
          for (const double wild : kWildInts) {
            KvCacheHostTensors host = make_tensors(p);
            reference::fill_constant((host.*spoilt)->view(), wild);
            expect_no_stray_access(host, options_of(p, kernel.info.name));
          }
        }
      });
}

// The clamped lengths are what the header says: beyond the capacity counts as the capacity.
TEST_F(KvCacheGpu, ALengthBeyondTheCapacityCountsAsTheCapacity) {
  KvCacheProblem problem{.heads = 4, .kv_heads = 2, .causal = true};
  problem.q_lens.assign(2, 1);
  problem.cached = {64, 64};
  problem.capacity = 64;
  for_each_problem(
      kernels_and_variants(),
      [&](const KvCacheChoices& choices) {
        problem.head_dim = choices.head_dims.front().qk;
        problem.value_dim = choices.head_dims.front().v;
        return with_a_chunk(problem);
      },
      [](const KvCacheProblem& p, const KvCacheKernel& kernel) {
        KvCacheHostTensors host = make_tensors(p);
        reference::fill_constant(host.cache_seqlens.view(), 1 << 20);
        KvCacheDeviceProblem device(host);
        run(device.views(), options_of(p, kernel.info.name));
        expect_right(p, device.results());
      });
}

}  // namespace
}  // namespace tilewright::test
