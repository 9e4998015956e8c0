// The operation attention_with_kvcache(), as the registry describes it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tilewright/attention_kernels.hpp"
#include "tilewright/attention_with_kvcache.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Features beyond a causal mask, which a kernel may or may not have.
enum class KvCacheFeature : std::uint8_t {
  window,
  softcap,
  sinks,
  packed,  // cu_seqlens_q
  unnormalized,
  left_padding,
  shared_prefix,
  new_rows,  // k and v, appended by the call
  tree_mask,
  e4m3_cache,
  row_descales,  // k_descale or v_descale has one for each row
};

constexpr std::string_view name(KvCacheFeature feature) {
  switch (feature) {
    case KvCacheFeature::window:
      return "window";
    case KvCacheFeature::softcap:
      return "softcap";
    case KvCacheFeature::sinks:
      return "sinks";
    case KvCacheFeature::packed:
      return "packed";
    case KvCacheFeature::unnormalized:
      return "unnormalized";
    case KvCacheFeature::left_padding:
      return "leftpad_k";
    case KvCacheFeature::shared_prefix:
      return "prefix_groups";
    case KvCacheFeature::new_rows:
      return "new rows";
    case KvCacheFeature::tree_mask:
      return "tree_mask";
    case KvCacheFeature::e4m3_cache:
      return "e4m3 cache";
    case KvCacheFeature::row_descales:
      return "row descales";
  }
  return "unknown";
}

// What a kernel takes.
struct AttentionWithKvCacheFacts {
  std::span<const HeadDims> head_dims = {};  // empty: any up to 16384
  std::span<const KvCacheFeature> features = {};
};

// A problem, as far as it decides which kernels can run it. Sizes are at least 1 and less than
// 2^30, like those of tensors.
struct AttentionWithKvCacheProblem {
  DType dtype = DType::bf16;  // of q
  DType cache_dtype = DType::bf16;
  std::int64_t batch = 1;
  std::int64_t q_len = 1;       // new tokens of a sequence; packed: of all sequences together
  std::int64_t cache_rows = 1;  // the caches' first size: pages, or rows for whole sequences
  std::int64_t page_size = 0;   // 0: not paged
  std::int64_t capacity = 1;    // the most keys that a sequence can have
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;
  std::int64_t value_dim = 0;  // of v and o; 0: head_dim
  bool causal = false;
  bool window = false;
  bool softcap = false;
  bool sinks = false;
  bool packed = false;
  bool unnormalized = false;
  bool left_padding = false;
  bool shared_prefix = false;
  bool new_rows = false;
  bool tree_mask = false;
  bool row_descales = false;
  bool batch_invariant = false;
  std::int64_t max_seqlen_q = 0;   // packed: the most new tokens of a sequence; 0: not known
  std::int64_t max_seqlen_k = 0;   // the most keys of a sequence; 0: not known
  std::int64_t prefix_groups = 1;  // of sequences, where prefixes are shared
  std::int64_t window_left = -1;   // keys before its own that a token sees; -1: no limit is known

  bool asks_for(KvCacheFeature feature) const;
};

struct AttentionWithKvCacheParams;

struct AttentionWithKvCache {
  static constexpr std::string_view kName = "attention_with_kvcache";
  using Tensors = AttentionWithKvCacheTensors;
  using Options = AttentionWithKvCacheOptions;
  using Problem = AttentionWithKvCacheProblem;
  using Facts = AttentionWithKvCacheFacts;
  using Params = AttentionWithKvCacheParams;
};

// The library has the tables.
template <>
std::span<const Kernel<AttentionWithKvCache>> Table<AttentionWithKvCache>::rows();
extern template struct Table<AttentionWithKvCache>;

}  // namespace tilewright
