#include "problems/kvcache_forms.hpp"

#include <algorithm>
#include <numeric>

#include "problems/views.hpp"
#include "reference/attention_with_kvcache.hpp"

namespace tilewright::test {
namespace {

// Copies a row of all heads, or a number of each, from its place in one cache to a row of another.
void copy_slot(const ConstTensorView& source, const ConstTensorView& target,
               const reference::KeyPlace& at, std::int64_t entry, std::int64_t row) {
  const TensorView written{
      const_cast<void*>(target.data), target.dtype, {}, target.rank, target.shape, target.stride};
  for (std::int64_t h = 0; h < source.shape[2]; ++h) {
    for (std::int64_t d = 0; d < (source.rank == 4 ? source.shape[3] : 1); ++d) {
      const auto offset = [&](const auto& stride, std::int64_t i, std::int64_t j) {
        return i * stride[0] + j * stride[1] + h * stride[2] + d;
      };
      reference::store(written, offset(target.stride, entry, row),
                       reference::load(source, offset(source.stride, at.entry, at.row)));
    }
  }
}

// Copies a key of sequence b, with its value and descales, from its place in one call's caches to
// row `row` of entry `entry` of another's.
void copy_key(const AttentionWithKvCacheTensors& from, const AttentionWithKvCacheTensors& to,
              std::int64_t b, std::int64_t position, std::int64_t entry, std::int64_t row) {
  const reference::KeyPlace at = reference::slot_of(from, b, position);
  copy_slot(from.k_cache, to.k_cache, at, entry, row);
  copy_slot(from.v_cache, to.v_cache, at, entry, row);
  if (from.k_descale && from.k_descale->rank == 3) {
    copy_slot(*from.k_descale, *to.k_descale, at, entry, row);
    copy_slot(*from.v_descale, *to.v_descale, at, entry, row);
  }
}

}  // namespace

KvCacheForm without_pages(const KvCacheProblem& problem, KvCacheHostTensors& paged) {
  KvCacheForm result{.problem = problem, .tensors = paged};
  KvCacheProblem& p = result.problem;
  p.page_size = 0;
  p.shares_pages = p.cache_batch_idx = false;
  KvCacheHostTensors& t = result.tensors;
  const KvCacheHostTensors whole = make_tensors(p);
  t.caches = whole.caches;
  t.k_layout = whole.k_layout;
  t.v_layout = whole.v_layout;
  t.block_table.reset();
  t.cache_batch_idx.reset();
  if (p.descale == DescalePer::row) {
    t.k_descale = whole.k_descale;
    t.v_descale = whole.v_descale;
  }
  const AttentionWithKvCacheTensors from = paged.views();
  const AttentionWithKvCacheTensors to = t.views();
  for (std::size_t b = 0; b < p.batch(); ++b) {
    const auto entry = static_cast<std::int64_t>(b);
    for (std::int64_t j = 0; j < p.keys(b); ++j) {
      copy_key(from, to, entry, j, entry, j);
    }
  }
  return result;
}

KvCacheForm without_prefixes(const KvCacheProblem& problem, KvCacheHostTensors& shared) {
  KvCacheForm result{.problem = problem, .tensors = shared};
  KvCacheProblem& p = result.problem;
  p.prefix_groups.clear();
  p.prefix_seqlens.clear();
  KvCacheHostTensors& t = result.tensors;
  t.prefix_groups.reset();
  t.prefix_seqlens.reset();
  const AttentionWithKvCacheTensors from = shared.views();
  const AttentionWithKvCacheTensors to = t.views();
  for (std::size_t b = 0; b < p.batch(); ++b) {
    const auto entry = static_cast<std::int64_t>(b);
    const std::int64_t count = problem.keys_elsewhere(b);
    std::int64_t j = 0;
    if (p.page_size > 0) {  // whole pages are named by both tables
      const std::int64_t row = to.block_table->stride[0];
      const std::int64_t pages = count / p.page_size;
      auto* const table = static_cast<int*>(t.block_table->view().data);
      std::copy_n(table + reference::holder_of(from, entry, 0) * row, pages, table + entry * row);
      j = pages * p.page_size;
    }
    for (; j < count; ++j) {
      const reference::KeyPlace its = reference::slot_of(to, entry, j);
      copy_key(from, to, entry, j, its.entry, its.row);
    }
  }
  return result;
}

AttentionWithKvCacheTensors alone(const KvCacheProblem& problem,
                                  const AttentionWithKvCacheTensors& tensors, std::size_t b) {
  AttentionWithKvCacheTensors t = tensors;
  const auto entry = static_cast<std::int64_t>(b);
  const auto first = std::accumulate(problem.q_lens.begin(), problem.q_lens.begin() + entry, 0);
  const auto of_batch = [&](auto& view) { view = narrowed(view, 0, entry, 1); };
  // Of a tensor whose rows are dimension `dim` if they are packed.
  const auto of_tokens = [&](auto& view, int dim) {
    view = problem.packed ? batch_of_one(narrowed(view, dim, first, problem.q_lens[b]))
                          : narrowed(view, 0, entry, 1);
  };
  const auto if_given = [](auto& view, const auto& change) {
    if (view) {
      change(*view);
    }
  };
  const auto of_rows = [&](auto& view) { of_tokens(view, 0); };
  const auto of_statistic = [&](auto& view) { of_tokens(view, 1); };
  of_rows(t.q);
  of_rows(t.o);
  if_given(t.k, of_rows);
  if_given(t.v, of_rows);
  if_given(t.tree_mask, of_rows);
  if_given(t.lse, of_statistic);
  if_given(t.row_max, of_statistic);
  if_given(t.row_sum, of_statistic);
  of_batch(t.cache_seqlens);
  if_given(t.block_table, of_batch);
  if_given(t.cache_batch_idx, of_batch);
  if_given(t.leftpad_k, of_batch);
  t.cu_seqlens_q.reset();
  const bool is_first_row = !t.block_table && !t.cache_batch_idx;
  if (is_first_row) {
    of_batch(t.k_cache);
    of_batch(t.v_cache);
  }
  for (std::optional<ConstTensorView>* const descale : {&t.q_descale, &t.k_descale, &t.v_descale}) {
    if (*descale && ((*descale)->rank == 2 || ((*descale)->rank == 3 && is_first_row))) {
      of_batch(**descale);
    }
  }
  return t;
}

}  // namespace tilewright::test
