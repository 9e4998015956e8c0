// A checked call of attention_with_kvcache(), as all of its kernels receive it.
#pragma once

#include <cstdint>

#include "common/attention_parts.hpp"
#include "common/strides.hpp"
#include "tilewright/attention_with_kvcache.hpp"

namespace tilewright {

// Where a sequence's rows lie in the caches.
struct KvRows {
  const int* cache_seqlens = nullptr;
  const int* block_table = nullptr;  // null: contiguous
  std::int64_t table_stride = 0;     // of a sequence, in elements
  int max_pages = 0;                 // columns of the table
  int page_size = 0;                 // rows of a page; contiguous: 0
  int cache_rows = 0;                // pages, or rows for whole sequences
  int capacity = 0;                  // the most keys of a sequence: max_pages * page_size, if paged
  const int* cache_batch_idx = nullptr;
  const int* leftpad = nullptr;
};

// Prefixes that groups of neighbouring sequences share. Null: none.
struct SharedPrefixes {
  const int* groups = nullptr;   // where each begins, and the last one's end
  const int* seqlens = nullptr;  // keys
  int count = 0;                 // of groups
};

// Rows that the call appends. Null: none.
struct NewRows {
  const void* k = nullptr;
  const void* v = nullptr;
  int len = 0;  // of each sequence; packed: of all together
  OuterStrides k_stride;
  OuterStrides v_stride;
};

// Bits of which new tokens see which; null: none.
struct TreeMask {
  const std::int64_t* bits = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t seq_stride = 0;
};

// What the values of 8-bit caches and queries must be multiplied by. Null: 1.
struct Descales {
  enum class Per : std::uint8_t { tensor, sequence, row };

  const float* data = nullptr;
  Per per = Per::tensor;
  OuterStrides stride;  // batch: of a sequence, or of the caches' first dimension
};

struct AttentionWithKvCacheParams {
  const void* q = nullptr;
  void* k_cache = nullptr;
  void* v_cache = nullptr;
  void* o = nullptr;
  float* lse = nullptr;  // may be null
  void* workspace = nullptr;

  DType dtype = DType::bf16;  // of q; o is the same, but bf16 where q is e4m3
  DType cache_dtype = DType::bf16;
  int batch = 0;
  int q_len =
      0;  // new tokens of a sequence; packed: rows of q, perhaps more than the last one's end
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int value_dim = 0;

  OuterStrides q_stride;
  OuterStrides k_stride;  // batch: of a page, or of a whole sequence
  OuterStrides v_stride;
  OuterStrides o_stride;
  OuterStrides lse_stride;

  KvRows rows;
  SharedPrefixes prefixes;
  NewRows added;
  TreeMask tree;
  Descales q_descale;  // never per row
  Descales k_descale;
  Descales v_descale;

  float scale = 0.0f;
  bool causal = false;
  bool batch_invariant = false;
  KeyWindow window;
  float softcap = 0.0f;  // 0: none
  Sinks sinks;
  PackedRows packed_q;
  RowStatistics statistics;  // if there are any, o is FP32

  int multiprocessors = 0;  // of the GPU
};

}  // namespace tilewright
