#include "problems/batch_invariance.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace tilewright::test {
namespace {

using reference::HostTensor;

// Where the sequence stands in a batch.
struct Place {
  std::int64_t query;  // its first row, in rows of all batch entries
  std::int64_t key;
};

// `count` sequences, of which number `position` is the one of `alone`.
Problem batch_around(const Problem& alone, std::int64_t count, std::int64_t position) {
  Problem batch = alone;
  batch.batch = count;
  const auto surround = [&](std::vector<int>& lengths, std::int64_t& rows, int step) {
    if (!lengths.empty()) {
      const int length = lengths.front();
      lengths.resize(static_cast<std::size_t>(count));
      for (std::int64_t b = 0; b < count; ++b) {
        lengths[static_cast<std::size_t>(b)] =
            b == position ? length : static_cast<int>(b * step % 150);
      }
      rows = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
    }
  };
  surround(batch.q_lens, batch.q_len, 37);
  surround(batch.kv_lens, batch.kv_len, 59);
  return batch;
}

Place place_of(const Problem& batch, std::int64_t position) {
  const auto rows_before = [&](const std::vector<int>& lengths, std::int64_t length) {
    return lengths.empty()
               ? position * length
               : std::accumulate(lengths.begin(), lengths.begin() + position, std::int64_t{0});
  };
  return {.query = rows_before(batch.q_lens, batch.q_len),
          .key = rows_before(batch.kv_lens, batch.kv_len)};
}

// Row `row` on of a dense ([B,] N, H, D) tensor.
std::byte* row_data(HostTensor& tensor, std::int64_t row) {
  const TensorView t = tensor.view();
  return tensor.data() +
         row * t.stride[t.rank - 3] * static_cast<std::int64_t>(size_bytes(t.dtype));
}

void put_rows(HostTensor& into, std::int64_t row, const HostTensor& from) {
  std::memcpy(row_data(into, row), from.data(), from.bytes());
}

bool same_rows(HostTensor& batch, std::int64_t row, const HostTensor& alone) {
  return std::memcmp(row_data(batch, row), alone.data(), alone.bytes()) == 0;
}

// Of a dense ([B,] H, N) tensor, where a head's rows are contiguous.
bool same_statistics(const HostTensor& batch, std::int64_t row, const HostTensor& alone) {
  const ConstTensorView b = batch.view();
  const ConstTensorView a = alone.view();
  const std::int64_t heads = a.shape[a.rank - 2];
  const std::int64_t length = a.shape[a.rank - 1];
  const std::int64_t batch_length = b.shape[b.rank - 1];
  const std::int64_t first = row / batch_length * heads * batch_length + row % batch_length;
  for (std::int64_t h = 0; h < heads; ++h) {
    const auto* const in_batch = static_cast<const float*>(b.data) + first + h * batch_length;
    const auto* const by_itself = static_cast<const float*>(a.data) + h * length;
    if (std::memcmp(in_batch, by_itself, static_cast<std::size_t>(length) * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

void expect_same_in_batch(const Problem& alone, const HostTensors& expected, std::int64_t count,
                          std::int64_t position, const Run& run) {
  const Problem batch = batch_around(alone, count, position);
  SCOPED_TRACE(testing::Message() << "at " << position << " of " << batch);
  const Place place = place_of(batch, position);
  HostTensors tensors = make_tensors(batch);
  put_rows(tensors.q, place.query, expected.q);
  put_rows(tensors.k, place.key, expected.k);
  put_rows(tensors.v, place.key, expected.v);
  run(batch, tensors);
  EXPECT_TRUE(same_rows(tensors.o, place.query, expected.o));
  EXPECT_TRUE(same_statistics(tensors.lse, place.query, expected.lse));
}

}  // namespace

void expect_batch_invariant(const Problem& alone, const Run& run) {
  HostTensors expected = make_tensors(alone);
  run(alone, expected);
  for (const std::int64_t count : {2, 7, 40}) {
    for (const std::int64_t position : {std::int64_t{0}, count / 2, count - 1}) {
      expect_same_in_batch(alone, expected, count, position, run);
    }
  }
}

}  // namespace tilewright::test
