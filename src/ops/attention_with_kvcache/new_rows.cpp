// A call's new rows, as append_kv's kernels take them.
#include "ops/attention_with_kvcache/kernels.hpp"

namespace tilewright {

AppendKvParams new_rows_of(const AttentionWithKvCacheParams& p) {
  const KvRows& rows = p.rows;
  const bool is_packed = p.packed_q.cu_seqlens != nullptr;
  AppendKvParams append;
  append.k = p.added.k;
  append.v = p.added.v;
  append.k_cache = p.k_cache;
  append.v_cache = p.v_cache;
  append.dtype = p.dtype;
  append.kv_heads = p.kv_heads;
  append.head_dim = p.head_dim;
  append.value_dim = p.value_dim;
  append.k_stride = p.added.k_stride;
  append.v_stride = p.added.v_stride;
  append.k_cache_stride = p.k_stride;
  append.v_cache_stride = p.v_stride;
  append.rows.count = is_packed ? p.added.len : p.batch * p.added.len;
  append.rows.per_batch = p.added.len;
  append.rows.pages = rows.cache_rows;
  append.rows.page_size = rows.page_size > 0 ? rows.page_size : rows.capacity;
  append.rows.seqlens = rows.cache_seqlens;
  append.rows.cu_seqlens_new = p.packed_q.cu_seqlens;
  append.rows.sequences = p.batch;
  append.rows.block_table = rows.block_table;
  append.rows.block_table_stride = rows.table_stride;
  append.rows.max_pages = rows.max_pages;
  append.rows.cache_batch_idx = rows.cache_batch_idx;
  return append;
}

}  // namespace tilewright
