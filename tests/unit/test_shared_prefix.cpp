// The passes of a call with shared prefixes: what each reads, and that they make up the call. The
// CPU's kernel runs them here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/cpu_attention.hpp"
#include "cuda/attention/shared_prefix/passes.hpp"
#include "problems/kvcache_expectation.hpp"
#include "problems/kvcache_problem_sets.hpp"
#include "problems/random.hpp"
#include "reference/attention_with_kvcache.hpp"

namespace tilewright {

// As in call.cpp.
AttentionWithKvCacheProblem problem_of(const AttentionWithKvCacheTensors& tensors,
                                       const AttentionWithKvCacheOptions& options);
AttentionWithKvCacheParams params_of(const AttentionWithKvCacheTensors& tensors,
                                     const AttentionWithKvCacheOptions& options,
                                     const AttentionWithKvCacheProblem& problem);

namespace test {
namespace {

using Params = AttentionWithKvCacheParams;

// ---- Groups

SharedPrefixes prefixes_of(const std::vector<int>& groups) {
  return {
      .groups = groups.data(), .seqlens = nullptr, .count = static_cast<int>(groups.size()) - 1};
}

TEST(SharedPrefix, AGroupIsFoundAmongEmptyOnes) {
  const std::vector<int> groups = {0, 0, 2, 2, 2, 5, 5};
  constexpr int kIndices[] = {1, 1, 4, 4, 4};
  for (int sequence = 0; sequence < 5; ++sequence) {
    const cuda::PrefixGroup group = cuda::group_of(prefixes_of(groups), 5, sequence);
    EXPECT_EQ(group.index, kIndices[sequence]);
    EXPECT_EQ(group.first, groups[static_cast<std::size_t>(group.index)]);
    EXPECT_EQ(group.end, groups[static_cast<std::size_t>(group.index) + 1]);
  }
}

// Whatever the boundaries are, each sequence is in one group, whose sequences agree about it.
TEST(SharedPrefix, AnyBoundariesShareOutTheSequences) {
  constexpr int kSequences = 20;
  Random pick(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<int> groups(static_cast<std::size_t>(pick(2, 8)));
    std::ranges::generate(groups, [&] {
      return pick.one_in(5) ? std::numeric_limits<int>::min() : static_cast<int>(pick(-3, 30));
    });
    int next = 0;
    while (next < kSequences) {
      const cuda::PrefixGroup group = cuda::group_of(prefixes_of(groups), kSequences, next);
      ASSERT_EQ(group.first, next);
      ASSERT_GT(group.end, next);
      ASSERT_LE(group.end, kSequences);
      for (; next < group.end; ++next) {
        const cuda::PrefixGroup its = cuda::group_of(prefixes_of(groups), kSequences, next);
        ASSERT_EQ(its.index, group.index);
        ASSERT_EQ(its.first, group.first);
        ASSERT_EQ(its.end, group.end);
      }
    }
  }
}

// ---- Passes

// What the kernel split_keys does.
void split_keys(const Params& p, const cuda::SharedPrefixCalls& calls) {
  for (int sequence = 0; sequence <= p.batch; ++sequence) {
    cuda::split(p, calls.lengths, sequence);
  }
  const Divisor group(p.heads / p.kv_heads);
  const auto element = static_cast<std::int64_t>(size_bytes(p.dtype));
  const auto* const source = static_cast<const std::byte*>(p.q);
  for (int token = 0; token < cuda::all_tokens(p); ++token) {
    const int batch = cuda::is_packed(p) ? 0 : token / p.q_len;
    for (int head = 0; head < p.heads; ++head) {
      const cuda::PrefixRow its = cuda::prefix_row(token, head, group);
      std::copy_n(source + p.q_stride.offset(batch, token - batch * p.q_len, head) * element,
                  p.head_dim * element,
                  static_cast<std::byte*>(calls.prefix_q) +
                      calls.prefix.q_stride.offset(0, its.row, its.kv_head) * element);
    }
  }
}

// What a pass has of a row.
struct Part {
  double max;
  double sum;
  const float* o;
};

Part part_of(const Params& pass, int batch, int row, int head) {
  const RowStatistics& its = pass.statistics;
  return {.max = its.max[its.max_stride.offset(batch, row, head)],
          .sum = its.sum[its.sum_stride.offset(batch, row, head)],
          .o = static_cast<const float*>(pass.o) + pass.o_stride.offset(batch, row, head)};
}

// Merges a row, as the kernel does, into the problem's tensors.
void merge_row(const cuda::SharedPrefixCalls& calls, int batch, int row, int head,
               const AttentionWithKvCacheTensors& t) {
  const Params& merged = calls.merged;
  const cuda::PrefixRow its_prefix =
      cuda::prefix_row(batch * merged.q_len + row, head, Divisor(merged.heads / merged.kv_heads));
  const Part parts[] = {part_of(calls.prefix, 0, its_prefix.row, its_prefix.kv_head),
                        part_of(calls.suffix, batch, row, head)};
  double m = merged.sinks.logits != nullptr ? merged.sinks.logits[head * merged.sinks.stride]
                                            : -std::numeric_limits<double>::infinity();
  const double sink = m;
  for (const Part& part : parts) {
    m = std::max(m, part.max);
  }
  const auto weight = [&](double of) { return std::isinf(of) ? 0.0 : std::exp(of - m); };
  double l = weight(sink);
  for (const Part& part : parts) {
    l += weight(part.max) * part.sum;
  }
  for (int d = 0; d < merged.value_dim; ++d) {
    double o = 0;
    for (const Part& part : parts) {
      o += weight(part.max) * part.o[d];
    }
    const double divisor = t.row_max || l == 0 ? 1 : l;
    reference::store(t.o, merged.o_stride.offset(batch, row, head) + d, o / divisor);
  }
  reference::store(*t.lse, merged.lse_stride.offset(batch, row, head), m + std::log(l));
  if (t.row_max) {
    const RowStatistics& its = merged.statistics;
    reference::store(*t.row_max, its.max_stride.offset(batch, row, head), m);
    reference::store(*t.row_sum, its.sum_stride.offset(batch, row, head), l);
  }
}

// Makes all entries of the table pages that there are. The CPU's kernel looks up unseen keys of a
// tile, too.
void make_pages_exist(KvCacheHostTensors& tensors) {
  if (tensors.block_table) {
    const auto pages = static_cast<int>(tensors.k_layout.shape[0]);
    auto* const entries = reinterpret_cast<int*>(tensors.block_table->data());
    std::transform(entries, entries + tensors.block_table->bytes() / sizeof(int), entries,
                   [&](int page) { return std::clamp(page, 0, pages - 1); });
  }
}

// Runs the calls that a call is made of. The CPU's kernel splits no keys.
void run_passes(const KvCacheProblem& problem, KvCacheHostTensors& tensors) {
  constexpr int kSms = 132;
  make_pages_exist(tensors);
  const AttentionWithKvCacheTensors t = tensors.views();
  const AttentionWithKvCacheOptions options = options_of(problem, "auto");
  reference::append_new_rows(t);
  const AttentionWithKvCacheProblem constraints = problem_of(t, options);
  Params p = params_of(t, options, constraints);
  const auto& [details, bytes] =
      cuda::plan_shared_prefix(constraints, kSms, cuda::best_pass_configs(constraints, kSms));
  std::vector<float> workspace(bytes / sizeof(float), std::numeric_limits<float>::quiet_NaN());
  p.workspace = workspace.data();
  const cuda::SharedPrefixCalls calls = cuda::calls_of(p, details.at, 1);
  split_keys(p, calls);
  cpu::attention_with_kvcache(calls.prefix, nullptr);
  cpu::attention_with_kvcache(calls.suffix, nullptr);
  const int rows = calls.rows_end != nullptr ? *calls.rows_end : calls.merged.q_len;
  for (int batch = 0; batch < calls.merged.batch; ++batch) {
    for (int row = 0; row < rows; ++row) {
      for (int head = 0; head < p.heads; ++head) {
        merge_row(calls, batch, row, head, t);
      }
    }
  }
}

// Of the GPU's head dims and dtypes, and with the features that its kernel has. It takes no E4M3
// queries with shared prefixes.
KvCacheChoices choices() {
  KvCacheChoices choices = choices_of(*find_kernel<AttentionWithKvCache>("decode"));
  std::erase(choices.dtypes, DType::e4m3);
  choices.features.push_back(KvCacheFeature::tree_mask);
  choices.features.push_back(KvCacheFeature::e4m3_cache);
  choices.features.push_back(KvCacheFeature::row_descales);
  return choices;
}

int count_right(const std::vector<KvCacheProblem>& problems) {
  int count = 0;
  for (const KvCacheProblem& problem : problems) {
    if (problem.prefix_groups.empty()) {
      continue;
    }
    ++count;
    SCOPED_TRACE(testing::Message() << problem);
    KvCacheHostTensors tensors = make_tensors(problem);
    run_passes(problem, tensors);
    expect_right(problem, tensors);
  }
  return count;
}

TEST(SharedPrefix, PassesMakeUpTheCallOfSmallProblems) {
  EXPECT_GE(count_right(small_kvcache_problems(choices())), 10);
}

TEST(SharedPrefix, PassesMakeUpTheCallOfRandomProblems) {
  EXPECT_GE(count_right(random_kvcache_problems(choices(), 400, 5)), 40);
}

}  // namespace
}  // namespace test
}  // namespace tilewright
