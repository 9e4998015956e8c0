// That a sequence's bits depend on nothing but itself where attention_with_kvcache() is asked for
// it.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/block_scale.hpp"
#include "cuda/attention/prefill/plan.hpp"
#include "device_problem.hpp"
#include "kvcache_device.hpp"
#include "kvcache_test.hpp"
#include "ops/plan.hpp"
#include "problems/kvcache_expectation.hpp"
#include "problems/kvcache_forms.hpp"
#include "problems/views.hpp"

namespace tilewright::test {
namespace {

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

// Calls with `count` of them for each kernel, and with a fifth as many for each variant.
class BatchInvariantGpu : public KvCacheGpu {
 protected:
  static void for_each_invariant_problem(
      int count, std::uint64_t seed,
      const std::function<void(const KvCacheProblem&, const KvCacheKernel&)>& check) {
    const auto problems_of = [seed](int number) {
      return [=](const KvCacheChoices& choices) {
        return batch_invariant_problems(choices, number, seed);
      };
    };
    for (const KvCacheKernel* const kernel : usable_kernels()) {
      for_each_problem({kernel}, problems_of(count), check);
      for (const KvCacheKernel& variant : kernel->variants) {
        for_each_problem({&variant}, problems_of(count / 5), check);
      }
    }
  }
};

// Where nothing but the place of keys differs, and the same variant runs. So it must of decode,
// too, where prefill leaves sequences of few tokens to it.
TEST_F(BatchInvariantGpu, PagesChangeNoBit) {
  constexpr int kCount = 200;
  for_each_invariant_problem(
      kCount, 2, [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
        if (problem.page_size == 0) {
          return;
        }
        SCOPED_TRACE(testing::Message() << kernel.info.name << ": " << problem);
        KvCacheHostTensors paged = make_tensors(problem);
        const KvCacheForm whole = without_pages(problem, paged);
        const int few = cuda::most_decode_tokens(constraints_of(problem));
        const bool leaves_some =
            kernel.info.name == "prefill" &&
            std::ranges::any_of(problem.q_lens, [few](int len) { return len <= few; });
        const KvCacheKernel& other =
            leaves_some ? *find_kernel<AttentionWithKvCache>("decode") : kernel;
        const auto variants = [&](const KvCacheProblem& of) {
          const DeviceInfo device = device_info(kDevice);
          return std::pair(variant_of(kernel, constraints_of(of), device),
                           variant_of(other, constraints_of(of), device));
        };
        if (variants(whole.problem) != variants(problem)) {
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
void expect_same_bits_alone(const KvCacheProblem& problem, const std::string& kernel) {
  SCOPED_TRACE(testing::Message() << kernel << ": " << problem);
  const AttentionWithKvCacheOptions options = options_of(problem, kernel);
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
}

TEST_F(BatchInvariantGpu, RowsDoNotDependOnTheirNeighbours) {
  constexpr int kCount = 100;
  for_each_invariant_problem(kCount, 3,
                             [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
                               expect_same_bits_alone(problem, kernel.info.name);
                             });
}

// So many sequences, one token each, whose KV head has 32 query heads.
KvCacheProblem decoding_sequences(DType dtype, int batch) {
  KvCacheProblem problem{.heads = 32, .kv_heads = 1};
  problem.dtype = problem.cache_dtype = dtype;
  problem.head_dim = problem.value_dim = 128;
  problem.capacity = 1500;
  problem.batch_invariant = true;
  for (int b = 0; b < batch; ++b) {
    problem.q_lens.push_back(1);
    problem.cached.push_back(1500 - 15 * b);
  }
  return problem;
}

// Of one sequence decode takes tiles of eight rows, of many tiles of 32.
TEST_F(BatchInvariantGpu, ARowTilesRowsChangeNoBit) {
  const DeviceInfo device = device_info(kDevice);
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    const auto variant = [&](int batch) {
      return variant_of(*find_kernel<AttentionWithKvCache>("decode"),
                        constraints_of(decoding_sequences(dtype, batch)), device);
    };
    constexpr int kMany = 80;
    ASSERT_NE(variant(1), variant(kMany));
    expect_same_bits_alone(decoding_sequences(dtype, kMany), "decode");
  }
}

// ---- E4M3 caches

// The tensors over a cache of q's dtype that holds the same values.
KvCacheHostTensors over_wide_cache(const KvCacheHostTensors& coded) {
  KvCacheHostTensors wide = coded;
  const std::int64_t elements = coded.caches.view().shape[0];
  wide.caches = reference::HostTensor(coded.q.view().dtype, {elements});
  for (std::int64_t i = 0; i < elements; ++i) {
    const double code = reference::load(coded.caches.view(), i);
    reference::store(wide.caches.view(), i, e4m3_to_float(static_cast<std::uint32_t>(code)));
  }
  return wide;
}

// Chunks over caches without descales, where key tiles of both dtypes have as many keys.
TEST_F(KvCacheGpu, AChunkOverAnE4m3CacheHasTheBitsOfItsValues) {
  const KvCacheKernel& prefill = *find_kernel<AttentionWithKvCache>("prefill");
  for (int i = 0; i < cuda::kPrefillConfigCount; ++i) {
    if (cuda::kPrefillE4m3Configs[i].bc != cuda::kPrefillConfigs[i].bc) {
      continue;
    }
    const KvCacheKernel& variant = prefill.variants[static_cast<std::size_t>(i)];
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      KvCacheProblem problem{.dtype = dtype, .cache_dtype = DType::e4m3, .heads = 4, .kv_heads = 2};
      problem.head_dim = variant.facts.head_dims.front().qk;
      problem.value_dim = variant.facts.head_dims.front().v;
      problem.q_lens = {70, 70, 70};
      problem.cached = {300, 70, 431};
      problem.page_size = 16;
      problem.capacity = 448;
      problem.causal = true;
      SCOPED_TRACE(testing::Message() << variant.info.name << ": " << problem);
      const KvCacheHostTensors coded = make_tensors(problem);
      KvCacheDeviceProblem narrow(coded);
      KvCacheDeviceProblem wide(over_wide_cache(coded));
      run(narrow.views(), options_of(problem, variant.info.name));
      run(wide.views(), options_of(problem, variant.info.name));
      KvCacheHostTensors results = narrow.results();
      KvCacheHostTensors expected = wide.results();
      EXPECT_TRUE(reference::same_bytes(results.o, expected.o));
      EXPECT_TRUE(reference::same_bytes(results.lse, expected.lse));
    }
  }
}

reference::HostTensor int_vector(const std::vector<int>& values) {
  reference::HostTensor tensor(DType::int32, {static_cast<std::int64_t>(values.size())});
  std::ranges::copy(values, reinterpret_cast<int*>(tensor.data()));
  return tensor;
}

// ---- A packed sequence by itself

// A chunk of 100 tokens behind `before` rows of no sequence, over a cache so large that keys are
// split.
KvCacheProblem packed_chunk(const KvCacheKernel& variant, int before, int keys) {
  KvCacheProblem problem{.heads = 4, .kv_heads = 2, .packed = true, .causal = true};
  problem.head_dim = variant.facts.head_dims.front().qk;
  problem.value_dim = variant.facts.head_dims.front().v;
  problem.q_lens = {before + 100};
  problem.cached = {keys};
  problem.page_size = 64;
  problem.capacity = 5056;
  return problem;
}

// The call whose q, o and LSE begin `rows` rows later.
AttentionWithKvCacheTensors behind_rows(AttentionWithKvCacheTensors t, std::int64_t rows) {
  t.q = narrowed(t.q, 0, rows, t.q.shape[0] - rows);
  t.o = narrowed(t.o, 0, rows, t.o.shape[0] - rows);
  t.lse = narrowed(*t.lse, 1, rows, t.lse->shape[1] - rows);
  return t;
}

TEST_F(KvCacheGpu, APackedChunkByItselfHasTheBitsOfOneThatIsNotPacked) {
  constexpr int kBefore = 3;
  const KvCacheKernel& prefill = *find_kernel<AttentionWithKvCache>("prefill");
  const auto expect_same_bits_packed = [&](const KvCacheKernel& kernel,
                                           const KvCacheProblem& problem) {
    SCOPED_TRACE(testing::Message() << kernel.info.name << ": " << problem);
    ASSERT_GT(kernel.plan(constraints_of(problem), device_info(kDevice)).splits, 1);
    KvCacheDeviceProblem together(make_tensors(problem));
    KvCacheDeviceProblem apart(make_tensors(problem));
    const DeviceTensor starts(int_vector({kBefore, kBefore + 100}));
    AttentionWithKvCacheTensors packed = together.views();
    packed.cu_seqlens_q = starts.view();
    KvCacheProblem chunk = problem;
    chunk.q_lens = {100};
    const AttentionWithKvCacheOptions options = options_of(problem, kernel.info.name);
    run(packed, options);
    run(alone(chunk, behind_rows(apart.views(), kBefore), 0), options);
    KvCacheHostTensors expected = apart.results();
    KvCacheHostTensors results = together.results();
    expect_same_bits(expected, results);
  };
  for (const KvCacheKernel& variant : prefill.variants) {
    for (const DType cache_dtype : {DType::bf16, DType::e4m3}) {
      for (const int keys : {5000, 1100, 40}) {
        KvCacheProblem problem = packed_chunk(variant, kBefore, keys);
        problem.cache_dtype = cache_dtype;
        problem.sinks = true;
        expect_same_bits_packed(variant, problem);
        expect_same_bits_packed(prefill, problem);
      }
    }
  }
}

// ---- vLLM#51902: a neighbour's prefill grew from 9 to 10 tokens, and a decode row's bits changed

// A prompt of as many tokens as any here, and a sequence behind it that decodes.
KvCacheProblem prompt_beside_decode(const KvCacheChoices& choices, int prompt) {
  KvCacheProblem problem{.heads = 8, .kv_heads = 2, .causal = true};
  problem.head_dim = choices.head_dims.front().qk;
  problem.value_dim = choices.head_dims.front().v;
  problem.packed = true;
  problem.q_lens = {prompt, 1};
  problem.cached = {prompt, 1500};
  problem.page_size = 16;
  problem.capacity = 1504;
  problem.batch_invariant = true;
  return problem;
}

// The call with a shorter prompt: its last `tokens` tokens, and the same row that decodes.
AttentionWithKvCacheTensors with_prompt_of(int tokens, const KvCacheProblem& problem,
                                           AttentionWithKvCacheTensors t,
                                           const DeviceTensor& starts, const DeviceTensor& cached) {
  const std::int64_t cut = problem.q_lens.front() - tokens;
  const auto behind = [&](auto& view, int dim) {
    view = narrowed(view, dim, cut, view.shape[dim] - cut);
  };
  behind(t.q, 0);
  behind(t.o, 0);
  behind(*t.lse, 1);
  t.cu_seqlens_q = starts.view();
  t.cache_seqlens = cached.view();
  return t;
}

// The bits of o and LSE in the row that decodes.
std::vector<std::uint64_t> decoded_bits(const KvCacheProblem& problem, KvCacheHostTensors results) {
  const std::int64_t row = problem.q_lens.front();
  const ConstTensorView o = results.o.view();
  const ConstTensorView lse = results.lse.view();
  std::vector<std::uint64_t> bits;
  const auto add = [&](const ConstTensorView& t, std::int64_t offset) {
    bits.push_back(std::bit_cast<std::uint64_t>(reference::load(t, offset)));
  };
  for (std::int64_t h = 0; h < o.shape[1]; ++h) {
    add(lse, h * lse.stride[0] + row * lse.stride[1]);
    for (std::int64_t d = 0; d < o.shape[2]; ++d) {
      add(o, row * o.stride[0] + h * o.stride[1] + d);
    }
  }
  return bits;
}

TEST_F(KvCacheGpu, ANeighboursPrefillThatGrowsFrom9To10TokensChangesNoBit) {
  constexpr int kMostTokens = 300;
  for_each_problem(
      usable_kernels(),
      [](const KvCacheChoices& choices) {
        return std::vector{prompt_beside_decode(choices, kMostTokens)};
      },
      [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
        KvCacheDeviceProblem device(make_tensors(problem));
        for (const std::string& name : {std::string(kernel.info.name), std::string("auto")}) {
          const AttentionWithKvCacheOptions options = options_of(problem, name);
          device.reset_outputs();
          run(alone(problem, device.views(), 1), options);
          const std::vector<std::uint64_t> expected = decoded_bits(problem, device.results());
          for (const int tokens : {9, 10, 1, 64, 65, kMostTokens}) {
            SCOPED_TRACE(testing::Message() << name << ", a prompt of " << tokens << " tokens");
            const DeviceTensor starts(int_vector({0, tokens, tokens + 1}));
            const DeviceTensor cached(int_vector({tokens, problem.cached.back()}));
            device.reset_outputs();
            run(with_prompt_of(tokens, problem, device.views(), starts, cached), options);
            EXPECT_EQ(decoded_bits(problem, device.results()), expected);
          }
        }
      });
}

}  // namespace
}  // namespace tilewright::test
