// attention_with_kvcache() begins while the launch ahead of it may still run, and looks at lengths
// before that has ended. What that launch writes there counts.
#include <cstring>
#include <optional>
#include <vector>

#include "captured_graph.hpp"
#include "kvcache_device.hpp"
#include "kvcache_test.hpp"
#include "problems/kvcache_expectation.hpp"

namespace tilewright::test {
namespace {

constexpr std::size_t kWords = 32;  // that 64 values of 16 bits take

// Attention over one key, whose values are the words.
KvCacheHostTensors tensors_with_values(const std::vector<int>& words) {
  KvCacheProblem problem{.head_dim = 64, .q_lens = {1}, .cached = {1}};
  problem.capacity = 1;
  KvCacheHostTensors host = make_tensors(problem);
  std::memcpy(host.cache(host.v_layout).data, words.data(), words.size() * sizeof(int));
  return host;
}

// Words in memory that a launch writes which lets the next one start. As values of BF16 they are to
// be numbers.
class LateWords {
 public:
  explicit LateWords(const std::vector<int>& words)
      : device_(tensors_with_values(words)), call_(device_.views(), {}) {}

  void* data() { return device_.views().o.data; }
  void launch(Stream stream) const { call_.launch(stream); }

  // Makes them what they were before.
  void set(int old) {
    const std::vector<int> words(kWords, old);
    copy_bytes(data(), words.data(), kWords * sizeof(int));
  }

 private:
  KvCacheDeviceProblem device_;
  KvCacheDeviceCall call_;
};

LateWords late(const reference::HostTensor& ints) {
  std::vector<int> words(ints.bytes() / sizeof(int));
  std::memcpy(words.data(), ints.data(), ints.bytes());
  return LateWords(words);
}

// Four sequences of one, five or 70 new tokens each, in pages or in rows of their own, of the first
// of the head dims.
std::vector<KvCacheProblem> problems_of(const KvCacheChoices& choices) {
  std::vector<KvCacheProblem> problems;
  for (const int tokens : {1, 5, 70}) {
    for (const std::int64_t page_size : {0, 16}) {
      KvCacheProblem problem{.heads = 8, .kv_heads = 2, .causal = true};
      problem.head_dim = choices.head_dims.front().qk;
      problem.value_dim = choices.head_dims.front().v;
      problem.q_lens.assign(4, tokens);
      problem.cached = {1000, 130, 0, 517};
      problem.capacity = 1008;
      problem.page_size = page_size;
      problem.cache_batch_idx = page_size == 0;
      problems.push_back(problem);
    }
  }
  return problems;
}

TEST_F(KvCacheGpu, WhatTheLaunchAheadWritesCounts) {
  for_each_problem(kernels_and_variants(), problems_of,
                   [](const KvCacheProblem& problem, const KvCacheKernel& kernel) {
                     SCOPED_TRACE(testing::Message() << kernel.info.name << ": " << problem);
                     const KvCacheHostTensors host = make_tensors(problem);
                     KvCacheDeviceProblem device(host);
                     AttentionWithKvCacheTensors views = device.views();
                     LateWords lengths = late(host.cache_seqlens);
                     views.cache_seqlens.data = lengths.data();
                     std::optional<LateWords> rows;
                     if (host.cache_batch_idx) {
                       rows.emplace(late(*host.cache_batch_idx));
                       views.cache_batch_idx->data = rows->data();
                     }
                     const KvCacheDeviceCall call(views, options_of(problem, kernel.info.name));
                     const CapturedGraph captured([&](Stream stream) {
                       lengths.launch(stream);
                       if (rows) {
                         rows->launch(stream);
                       }
                       call.launch(stream);
                     });
                     for (const int old : {0, 1, 1008, -1, 1 << 30}) {
                       SCOPED_TRACE(testing::Message() << "lengths and rows were " << old);
                       device.reset_outputs();
                       lengths.set(old);
                       if (rows) {
                         rows->set(old);
                       }
                       captured.replay();
                       KvCacheHostTensors results = device.results();
                       expect_right(problem, results);
                       EXPECT_TRUE(device.guards_untouched());
                     }
                   });
}

}  // namespace
}  // namespace tilewright::test
