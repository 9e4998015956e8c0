// Problems of attention over KV caches: shapes, features, where caches' rows lie, inputs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string_view>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/attention_with_kvcache.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"

namespace tilewright::test {

// The order of caches in memory: (pages, page_size, heads, head_dim), heads before rows, K and V of
// a page (or of a sequence) one after the other, or gaps between rows.
enum class CacheOrder { rows_first, heads_first, interleaved, padded };

// What the descales of E4M3 caches are of, and those of E4M3 queries, which have none of rows.
enum class DescalePer { none, tensor, sequence, row };

struct KvCacheProblem {
  DType dtype = DType::bf16;
  DType cache_dtype = DType::bf16;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t value_dim = 0;  // 0: head_dim
  std::vector<int> q_lens{};   // of each sequence; where not packed, all are equal
  std::vector<int> cached{};   // keys of each that are in the cache
  std::vector<int> leftpad{};  // of each, or none
  bool packed = false;         // with some rows behind the last sequence
  int max_seqlen_q = 0;        // what the call is told of packed sequences, which may be wrong
  int max_seqlen_k = 0;        // and of the keys
  std::optional<int> added{};  // new rows of each; where packed, any number means q_lens
  std::int64_t page_size = 0;  // 0: contiguous
  std::int64_t capacity = 0;   // keys of a sequence at most; of pages, whole ones
  int spare = 0;               // pages or rows of caches that no sequence has
  bool shares_pages = false;   // full pages at the beginning of sequences are one
  bool cache_batch_idx = false;
  // Groups of sequences, each with a prefix whose keys its first sequence holds; or none.
  std::vector<int> prefix_groups{};
  std::vector<int> prefix_seqlens{};
  bool tree = false;
  bool causal = false;
  Window window{};
  float softcap = 0;
  bool sinks = false;
  bool unnormalized = false;
  bool batch_invariant = false;
  DescalePer descale = DescalePer::none;
  DescalePer q_descale = DescalePer::none;
  CacheOrder order = CacheOrder::rows_first;
  std::uint64_t seed = 1;

  DType output_dtype() const {
    return unnormalized ? DType::fp32 : dtype == DType::e4m3 ? DType::bf16 : dtype;
  }

  std::size_t batch() const { return q_lens.size(); }
  int added_rows(std::size_t b) const { return !added ? 0 : packed ? q_lens[b] : *added; }
  int keys(std::size_t b) const { return cached[b] + added_rows(b); }

  // The keys of sequence b that another sequence holds.
  int keys_elsewhere(std::size_t b) const {
    if (prefix_groups.empty() || std::ranges::count(prefix_groups, static_cast<int>(b)) > 0) {
      return 0;
    }
    const auto end = std::ranges::upper_bound(prefix_groups, static_cast<int>(b));
    return prefix_seqlens[static_cast<std::size_t>(end - prefix_groups.begin() - 1)];
  }
};

std::ostream& operator<<(std::ostream& out, const KvCacheProblem& problem);

AttentionWithKvCacheOptions options_of(const KvCacheProblem& problem, std::string_view kernel);

// What can_run() wants to know of it.
AttentionWithKvCacheProblem constraints_of(const KvCacheProblem& problem);

// Where a cache's elements lie in the memory of both.
struct CacheLayout {
  std::int64_t offset;  // elements
  std::array<std::int64_t, 4> shape;
  std::array<std::int64_t, 4> stride;
};

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct KvCacheTensorSet {
  Tensor q, caches, o, lse, cache_seqlens;  // caches: the memory of both
  CacheLayout k_layout, v_layout;
  std::optional<Tensor> block_table, cache_batch_idx, leftpad_k, prefix_groups, prefix_seqlens,
      cu_seqlens_q, k, v, q_descale, k_descale, v_descale, tree_mask, sinks, row_max, row_sum;

  TensorView cache(const CacheLayout& layout) {
    TensorView view = caches.view();
    const auto bytes = static_cast<std::int64_t>(size_bytes(view.dtype));
    view.data = static_cast<std::byte*>(view.data) + layout.offset * bytes;
    view.rank = 4;
    for (std::size_t i = 0; i < layout.shape.size(); ++i) {
      view.shape[i] = layout.shape[i];
      view.stride[i] = layout.stride[i];
    }
    return view;
  }

  AttentionWithKvCacheTensors views() {
    AttentionWithKvCacheTensors tensors{.q = q.view(),
                                        .k_cache = cache(k_layout),
                                        .v_cache = cache(v_layout),
                                        .o = o.view(),
                                        .cache_seqlens = cache_seqlens.view(),
                                        .lse = lse.view()};
    const auto set = [](auto& target, std::optional<Tensor>& source) {
      if (source) {
        target = source->view();
      }
    };
    set(tensors.block_table, block_table);
    set(tensors.cache_batch_idx, cache_batch_idx);
    set(tensors.leftpad_k, leftpad_k);
    set(tensors.prefix_groups, prefix_groups);
    set(tensors.prefix_seqlens, prefix_seqlens);
    set(tensors.cu_seqlens_q, cu_seqlens_q);
    set(tensors.k, k);
    set(tensors.v, v);
    set(tensors.q_descale, q_descale);
    set(tensors.k_descale, k_descale);
    set(tensors.v_descale, v_descale);
    set(tensors.tree_mask, tree_mask);
    set(tensors.sinks, sinks);
    set(tensors.row_max, row_max);
    set(tensors.row_sum, row_sum);
    return tensors;
  }

  // All that a call may write; the caches come last.
  std::vector<Tensor*> outputs() {
    std::vector<Tensor*> all{&o, &lse};
    for (std::optional<Tensor>* const statistic : {&row_max, &row_sum}) {
      if (*statistic) {
        all.push_back(&**statistic);
      }
    }
    all.push_back(&caches);
    return all;
  }
};

using KvCacheHostTensors = KvCacheTensorSet<reference::HostTensor>;

// Inputs of a problem, and outputs filled with kUnwritten. What no result may depend on is NaN or
// garbage: slots that no query sees, those of new rows included, their descales, new rows that no
// query sees, rows of q behind the last sequence, entries of the table beyond sequences' ends.
KvCacheHostTensors make_tensors(const KvCacheProblem& problem);

}  // namespace tilewright::test
