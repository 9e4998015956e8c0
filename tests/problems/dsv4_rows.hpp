// Rows of KV caches with random values, for tests.
#pragma once

#include <cstdint>

#include "reference/host_tensor.hpp"
#include "tilewright/kv_rows.hpp"

namespace tilewright::test {

// What the values of rows are like.
struct RowValues {
  std::uint64_t seed = 1;
  double deviation = 1.0;
  bool tiny_scales = false;  // some groups have scales from the smallest on
};

// A cache of NaN, whose pages of E4M3 and BF16 are padded to multiples of 576 bytes. With gaps
// there are some bytes between rows, where the format allows it, and pages.
reference::HostTensor make_cache(KvRowFormat format, std::int64_t pages, std::int64_t page_size,
                                 bool has_gaps);

// Writes values into a row of a cache. All bytes that are no part of them stay as they are.
void fill_row(const TensorView& cache, std::int64_t slot, const RowValues& values);

}  // namespace tilewright::test
