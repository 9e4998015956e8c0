// Every CUDA kernel of attention_with_kvcache() and each of its variants against the float64
// oracle.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "captured_graph.hpp"
#include "device_problem.hpp"
#include "kvcache_device.hpp"
#include "kvcache_test.hpp"
#include "ops/plan.hpp"
#include "problems/kvcache_expectation.hpp"
#include "problems/kvcache_forms.hpp"
#include "problems/views.hpp"

namespace tilewright::test {
namespace {

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

TEST_F(KvCacheGpu, SmallProblems) {
  for_each_problem(kernels_and_variants(), small_kvcache_problems,
                   [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
                     check_problem(problem, kernel.info.name);
                   });
}

// 2,000 problems, in parts that processes may share.
class RandomKvCacheGpu : public KvCacheGpu, public testing::WithParamInterface<int> {};
constexpr int kParts = 20;
INSTANTIATE_TEST_SUITE_P(Part, RandomKvCacheGpu, testing::Range(0, kParts));

TEST_P(RandomKvCacheGpu, IsRight) {
  constexpr int kCount = 2000 / kParts;
  constexpr std::uint64_t kFirstSeed = 100;
  for_each_problem(
      usable_kernels(),
      [](const KvCacheChoices& choices) {
        return random_kvcache_problems(choices, kCount,
                                       kFirstSeed + static_cast<std::uint64_t>(GetParam()));
      },
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

// Rows of such pages are copied one by one.
TEST_F(KvCacheGpu, ChunksOverSmallPages) {
  for (const KvCacheKernel& variant : find_kernel<AttentionWithKvCache>("prefill")->variants) {
    for (const int page_size : {1, 2, 3, 10}) {
      KvCacheProblem problem{.heads = 4, .kv_heads = 2, .causal = true};
      problem.dtype = problem.cache_dtype = page_size == 2 ? DType::fp16 : DType::bf16;
      problem.head_dim = variant.facts.head_dims.front().qk;
      problem.value_dim = variant.facts.head_dims.front().v;
      problem.q_lens = {150, 150};
      problem.cached = {433, 150};
      problem.leftpad = {7, 0};
      problem.page_size = page_size;
      problem.capacity = 450;
      check_problem(problem, variant.info.name);
    }
  }
}

// Chunks, one with two row tiles, between sequences of few and no tokens.
TEST_F(KvCacheGpu, SeveralPackedChunksAreSplit) {
  const KvCacheKernel& prefill = *find_kernel<AttentionWithKvCache>("prefill");
  for (const KvCacheKernel& variant : prefill.variants) {
    KvCacheProblem problem{.heads = 2, .kv_heads = 1, .packed = true, .causal = true};
    problem.head_dim = variant.facts.head_dims.front().qk;
    problem.value_dim = variant.facts.head_dims.front().v;
    problem.q_lens = {7, 140, 1, 0, 40, 16, 0};
    problem.cached = {900, 5000, 3000, 70, 1100, 16, 0};
    problem.page_size = 64;
    problem.capacity = 5056;
    problem.sinks = true;
    for (const DType cache_dtype : {DType::bf16, DType::e4m3}) {
      problem.cache_dtype = cache_dtype;
      for (const KvCacheKernel* const kernel : {&prefill, &variant}) {
        SCOPED_TRACE(testing::Message() << kernel->info.name << ": " << problem);
        ASSERT_GT(kernel->plan(constraints_of(problem), device_info(kDevice)).splits, 1);
        check_problem(problem, kernel->info.name);
      }
    }
  }
}

// ---- Graphs

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

// Where all lengths are equal, workers that are done take items from others.
TEST_F(KvCacheGpu, AGraphOfManyEqualItemsIsReplayed) {
  constexpr std::size_t kBatch = 70;
  for_each_problem(
      usable_kernels(),
      [](const KvCacheChoices&) {
        KvCacheProblem problem{.heads = 8, .kv_heads = 4};
        problem.capacity = 640;
        problem.q_lens.assign(kBatch, 1);
        problem.cached.assign(kBatch, 600);
        return std::vector{problem};
      },
      [](const KvCacheProblem& equal, const KvCacheKernel& kernel) {
        KvCacheProblem unequal = equal;
        unequal.seed = 2;
        std::iota(unequal.cached.begin(), unequal.cached.end(), 400);
        KvCacheProblem shorter = equal;
        shorter.seed = 3;
        shorter.cached.assign(kBatch, 500);
        check_replays({equal, unequal, shorter, equal}, kernel.info.name);
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

// ---- NaN in E4M3 queries

// Two new tokens of each of four sequences, in E4M3, of each head dim.
std::vector<KvCacheProblem> problems_of_e4m3_queries(const KvCacheChoices& choices) {
  std::vector<KvCacheProblem> problems;
  for (const HeadDims dims : choices.head_dims) {
    problems.push_back(small_problem(choices, {40, 64, 30, 20}));
    problems.back().head_dim = dims.qk;
    problems.back().value_dim = dims.v;
    problems.back().dtype = problems.back().cache_dtype = DType::e4m3;
  }
  return problems;
}

// Every other row of q, of all tokens and heads, gets a NaN of either sign, each in another column.
void spoil_odd_rows(const TensorView& q) {
  const std::int64_t head_dim = q.shape[3];
  for (std::int64_t row = 1; row < q.shape[0] * q.shape[1] * q.shape[2]; row += 2) {
    reference::store(q, row * head_dim + 5 * row % head_dim, row % 4 == 1 ? 0x7f : 0xff);
  }
}

TEST_F(KvCacheGpu, ANaNInAnE4m3QueryIsSeenInItsRowAlone) {
  for_each_problem(with_dtype(kernels_and_variants(), DType::e4m3), problems_of_e4m3_queries,
                   [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
                     SCOPED_TRACE(testing::Message() << kernel.info.name << ": " << problem);
                     const AttentionWithKvCacheOptions options =
                         options_of(problem, kernel.info.name);
                     KvCacheHostTensors host = make_tensors(problem);
                     KvCacheDeviceProblem whole(host);
                     spoil_odd_rows(host.q.view());
                     KvCacheDeviceProblem spoilt(host);
                     run(whole.views(), options);
                     run(spoilt.views(), options);
                     KvCacheHostTensors expected = whole.results();
                     KvCacheHostTensors results = spoilt.results();
                     const TensorView o = results.o.view();
                     for (std::int64_t row = 0; row < o.shape[0] * o.shape[1] * o.shape[2]; ++row) {
                       for (std::int64_t i = row * o.shape[3]; i < (row + 1) * o.shape[3]; ++i) {
                         const double value = reference::load(o, i);
                         EXPECT_TRUE(row % 2 == 1 ? std::isnan(value)
                                                  : value == reference::load(expected.o.view(), i))
                             << "row " << row << ", element " << i << " of o is " << value;
                       }
                     }
                   });
}

}  // namespace
}  // namespace tilewright::test
