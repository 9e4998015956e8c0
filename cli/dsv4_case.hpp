// A problem of DeepSeek-V4's attention as a case of the runner.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cli/case.hpp"
#include "tilewright/kv_rows.hpp"

namespace tilewright::cli {

// A scope of the problem. Its rows lie in pages in random order.
struct Dsv4ScopeSizes {
  std::int64_t keys = 0;  // of the first token; 0: there is no such scope
  KvRowFormat format = KvRowFormat::e4m3_bf16;
  std::int64_t page_size = 64;
};

struct Dsv4Problem {
  DType dtype = DType::bf16;
  std::int64_t batch = 1;
  std::int64_t q_len = 1;
  std::int64_t heads = 64;
  Dsv4ScopeSizes window{.keys = 128};      // a range, whose ends advance by one with each token
  Dsv4ScopeSizes compressed{.keys = 512};  // a list of rows of a request, or its first ones
  bool has_list = true;
  std::int64_t context = 4096;  // rows of a request that its list chooses from
  bool sinks = false;
  bool inverse_rope = false;
  std::optional<float> scale = std::nullopt;
  std::uint64_t seed = 0;
};

// The inputs are normally distributed, and depend on the problem's sizes and seed alone.
std::unique_ptr<Case> make_dsv4_case(const Dsv4Problem& problem);

}  // namespace tilewright::cli
