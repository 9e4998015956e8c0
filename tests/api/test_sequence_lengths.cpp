// A sequence's lengths, as kernels over KV caches take them from a call's arrays.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cuda/attention/blocks/sequence_lengths.hpp"

namespace tilewright::cuda {
namespace {

TEST(SequenceLengths, AreClampedToTheCapacity) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const std::vector<int> cached = {5, -3, 100, kMost, 60};
  const std::vector<int> leftpad = {7, 0, -1, kMost, 3};
  AttentionWithKvCacheParams p;
  p.batch = 5;
  p.q_len = 8;
  p.rows = {.cache_seqlens = cached.data(), .capacity = 64, .leftpad = leftpad.data()};
  const auto lengths = [&](int b) { return lengths_of(p, b); };
  EXPECT_EQ(lengths(0).kv_len, 5);
  EXPECT_EQ(lengths(0).leftpad, 5);
  EXPECT_EQ(lengths(1).kv_len, 0);
  EXPECT_EQ(lengths(2).kv_len, 64);
  EXPECT_EQ(lengths(2).leftpad, 0);
  EXPECT_EQ(lengths(3).kv_len, 64);
  EXPECT_EQ(lengths(3).leftpad, 64);
  EXPECT_EQ(lengths(4).q_start, 0);
  EXPECT_EQ(lengths(4).q_len, 8);

  p.added = {.k = cached.data(), .v = cached.data(), .len = 2, .k_stride = {}, .v_stride = {}};
  EXPECT_EQ(lengths(0).kv_len, 7);
  EXPECT_EQ(lengths(1).kv_len, 2);
  EXPECT_EQ(lengths(4).kv_len, 62);
  p.added.len = 8;
  EXPECT_EQ(lengths(4).kv_len, 64);
}

TEST(SequenceLengths, OfPackedSequencesAreTheirOwn) {
  const std::vector<int> cached = {5, 9};
  const std::vector<int> starts = {0, 3, 13};
  const std::vector<int> rows = {6, 2};
  AttentionWithKvCacheParams p;
  p.batch = 2;
  p.q_len = 13;
  p.rows = {.cache_seqlens = cached.data(), .capacity = 64, .cache_batch_idx = rows.data()};
  p.packed_q = {.cu_seqlens = starts.data()};
  EXPECT_EQ(lengths_of(p, 1).q_start, 3);
  EXPECT_EQ(lengths_of(p, 1).q_len, 10);
  EXPECT_EQ(lengths_of(p, 1).kv_len, 9);
  p.added = {.k = cached.data(), .v = cached.data(), .len = 13, .k_stride = {}, .v_stride = {}};
  EXPECT_EQ(lengths_of(p, 0).kv_len, 8);
  EXPECT_EQ(lengths_of(p, 1).kv_len, 19);
  EXPECT_EQ(cache_row_of(p, 0), 6);
  p.rows.cache_batch_idx = nullptr;
  EXPECT_EQ(cache_row_of(p, 1), 1);
}

TEST(SequenceLengths, OfPackedSequencesOutOfRangeBecomeTheNearestInRange) {
  const std::vector<int> cached = {5, 9};
  const std::vector<int> starts = {7, 3, 100};
  AttentionWithKvCacheParams p;
  p.batch = 2;
  p.q_len = 13;
  p.rows = {.cache_seqlens = cached.data(), .capacity = 64};
  p.packed_q = {.cu_seqlens = starts.data()};
  EXPECT_EQ(lengths_of(p, 0).q_len, 0);
  EXPECT_EQ(lengths_of(p, 1).q_len, 13);
}

}  // namespace
}  // namespace tilewright::cuda
