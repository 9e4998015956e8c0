// A problem of attention over KV caches as a case of the runner.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cli/attention_features.hpp"
#include "cli/case.hpp"

namespace tilewright::cli {

struct DecodeProblem {
  DType dtype = DType::bf16;        // of q; o is the same, but bf16 where q is e4m3
  DType cache_dtype = DType::bf16;  // or e4m3
  std::int64_t batch = 1;
  // Of each sequence, or one for all: new tokens, which are packed where they differ; and keys,
  // those of the new tokens included.
  std::vector<std::int64_t> q_lens;
  std::vector<std::int64_t> kv_lens;
  std::int64_t heads = 32;
  std::int64_t kv_heads = 8;
  std::int64_t head_dim = 128;
  std::int64_t value_dim = 128;
  std::int64_t page_size = 0;  // 0: contiguous caches
  bool batch_invariant = false;
  AttentionFeatures features{};
  std::uint64_t seed = 0;
};

// The inputs are normally distributed, pages lie in random order, and both depend on the problem's
// sizes and seed alone. An E4M3 cache has one descale for all keys, and one for all values;
// E4M3 queries have one.
std::unique_ptr<Case> make_decode_case(const DecodeProblem& problem);

}  // namespace tilewright::cli
