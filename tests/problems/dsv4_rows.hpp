// Caches of DeepSeek-V4's rows with random values, for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/kv_rows.hpp"

namespace tilewright::test {

// What the values of rows are like.
struct RowValues {
  std::uint64_t seed = 1;
  double deviation = 1.0;
  bool odd_scales = false;  // some scales are such as normalised rows seldom or never have
};

// A cache of NaN, whose pages of E4M3 and BF16 are padded to multiples of 576 bytes. With gaps
// there are some bytes between rows, where the format allows it, and pages.
reference::HostTensor make_cache(KvRowFormat format, std::int64_t pages, std::int64_t page_size,
                                 bool has_gaps);

// Writes values into rows of a cache, which are different ones. All bytes that are no part of the
// values stay as they are, padding included.
void fill_rows(const TensorView& cache, const std::vector<std::int64_t>& slots,
               const RowValues& values);

}  // namespace tilewright::test
