// attention_with_kvcache() on a cache of four million keys, of which the last lie beyond 2^31
// elements.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kvcache_device.hpp"
#include "kvcache_test.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr std::int64_t kKeys = std::int64_t{1} << 22;
constexpr std::int64_t kDim = 64;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kRow = 1024;     // elements from a key to the next: K, V, and a gap
constexpr std::int64_t kSpecials = 64;  // keys that are not 0: half are the first, half the last
constexpr std::int64_t kPageSize = 64;
constexpr std::int64_t kElement_bytes = 2;
constexpr std::int64_t kCache_bytes = kKeys * kRow * kElement_bytes;
constexpr double kQuery = 0.125;  // all elements of q

std::int64_t position_of_special(std::int64_t i) {
  return i < kSpecials / 2 ? i : kKeys - kSpecials + i;
}

// K and V of the keys that are not 0.
HostTensor make_specials() {
  HostTensor specials(DType::bf16, {kSpecials, 2, kDim});
  reference::fill_normal(specials.view(), 1);
  for (std::int64_t i = 0; i < kSpecials * 2 * kDim; ++i) {
    reference::store(specials.view(), i, reference::load(specials.view(), i) + 1.5);
  }
  return specials;
}

// A cache of zeros and these keys; a table with its pages in their order.
struct Cache {
  explicit Cache(const HostTensor& specials) : memory(kCache_bytes) {
    cuda_ok(cudaMemset(memory.data(), 0, kCache_bytes));
    constexpr std::int64_t kBytes = 2 * kDim * kElement_bytes;
    for (std::int64_t i = 0; i < kSpecials; ++i) {
      copy_bytes(memory.data() + position_of_special(i) * kRow * kElement_bytes,
                 specials.data() + i * kBytes, kBytes);
    }
  }

  TensorView view(std::int64_t page_size, bool is_value) const {
    return {memory.data() + (is_value ? kDim * kElement_bytes : 0),
            DType::bf16,
            {DeviceKind::cuda, 0},
            4,
            {kKeys / page_size, page_size, 1, kDim},
            {page_size * kRow, kRow, kDim, 1}};
  }

  DeviceBuffer memory;
};

// The result of a query that sees the first `visible` keys; scores are q . k.
struct ExpectedRow {
  ExpectedRow(const ConstTensorView& specials, std::int64_t visible) {
    double sum = static_cast<double>(visible);
    for (std::int64_t i = 0; i < kSpecials && position_of_special(i) < visible; ++i) {
      double score = 0;
      for (std::int64_t d = 0; d < kDim; ++d) {
        score += kQuery * reference::load(specials, 2 * i * kDim + d);
      }
      sum += std::exp(score) - 1;  // where there would be a 0
      for (std::int64_t d = 0; d < kDim; ++d) {
        o[static_cast<std::size_t>(d)] +=
            std::exp(score) * reference::load(specials, (2 * i + 1) * kDim + d);
      }
    }
    std::ranges::for_each(o, [&](double& value) { value /= sum; });
    lse = std::log(sum);
  }

  std::vector<double> o = std::vector<double>(kDim, 0.0);
  double lse = 0;
};

void expect_right(const HostTensor& specials, const HostTensor& o, const HostTensor& lse) {
  const std::int64_t q_len = o.view().shape[1];
  for (std::int64_t i = 0; i < q_len; ++i) {
    const ExpectedRow expected(specials.view(), kKeys - (q_len - 1 - i));
    for (std::int64_t h = 0; h < kHeads; ++h) {
      EXPECT_NEAR(reference::load(lse.view(), h * q_len + i), expected.lse, 1e-3);
      for (std::int64_t d = 0; d < kDim; ++d) {
        EXPECT_NEAR(reference::load(o.view(), (i * kHeads + h) * kDim + d),
                    expected.o[static_cast<std::size_t>(d)], 0.02);
      }
    }
  }
}

HostTensor ints(const std::vector<int>& values, const std::vector<std::int64_t>& shape) {
  HostTensor tensor(DType::int32, shape);
  std::ranges::copy(values, reinterpret_cast<int*>(tensor.data()));
  return tensor;
}

HostTensor pages_in_order() {
  std::vector<int> pages(kKeys / kPageSize);
  std::iota(pages.begin(), pages.end(), 0);
  return ints(pages, {1, kKeys / kPageSize});
}

// Runs the problem on the cache, whose keys are all of the one sequence's.
void check(const KvCacheProblem& problem, const KvCacheKernel& kernel, const Cache& cache,
           const HostTensor& specials) {
  const std::int64_t q_len = problem.q_lens.front();
  HostTensor q(DType::bf16, {1, q_len, kHeads, kDim});
  HostTensor lse(DType::fp32, {1, kHeads, q_len});
  reference::fill_constant(q.view(), kQuery);
  HostTensor o = q;
  const DeviceTensor on_device[] = {DeviceTensor(q), DeviceTensor(o), DeviceTensor(lse),
                                    DeviceTensor(ints({static_cast<int>(kKeys)}, {1})),
                                    DeviceTensor(pages_in_order())};
  const std::int64_t rows = problem.page_size > 0 ? problem.page_size : kKeys;
  AttentionWithKvCacheTensors tensors{.q = on_device[0].view(),
                                      .k_cache = cache.view(rows, false),
                                      .v_cache = cache.view(rows, true),
                                      .o = on_device[1].view(),
                                      .cache_seqlens = on_device[3].view(),
                                      .lse = on_device[2].view()};
  if (problem.page_size > 0) {
    tensors.block_table = on_device[4].view();
  }
  run(tensors, {.causal = true, .scale = 1.0f, .kernel = kernel.info.name});
  on_device[1].download(o);
  on_device[2].download(lse);
  expect_right(specials, o, lse);
}

TEST_F(KvCacheGpu, FourMillionKeysLieBeyond32BitOffsets) {
  constexpr std::size_t kLeast_bytes = 3 * std::size_t{kCache_bytes};
  const std::size_t memory_bytes = device_info(kDevice).memory_bytes;
  if (memory_bytes < kLeast_bytes) {
    GTEST_SKIP() << "needs " << kLeast_bytes << " bytes of GPU memory, there are " << memory_bytes;
  }
  const HostTensor specials = make_specials();
  const Cache cache(specials);
  for_each_problem(
      usable_kernels(),
      [](const KvCacheChoices&) {
        std::vector<KvCacheProblem> problems;
        for (const std::int64_t page_size : {std::int64_t{0}, kPageSize}) {
          for (const int tokens : {1, 3, 70}) {
            problems.push_back({.heads = kHeads,
                                .kv_heads = 1,
                                .head_dim = kDim,
                                .q_lens = {tokens},
                                .cached = {static_cast<int>(kKeys)},
                                .page_size = page_size,
                                .capacity = kKeys,
                                .causal = true});
          }
        }
        return problems;
      },
      [&](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
        SCOPED_TRACE(testing::Message() << kernel.info.name << ": " << problem);
        check(problem, kernel, cache, specials);
      });
}

}  // namespace
}  // namespace tilewright::test
