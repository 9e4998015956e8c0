// A checked call of dsv4_attention(), as all of its kernels receive it.
#pragma once

#include <cstdint>

#include "common/attention_parts.hpp"
#include "common/strides.hpp"
#include "tilewright/dsv4_attention.hpp"

namespace tilewright {

// Strides of a tensor with an entry for each token, in elements; of packed tokens `batch` is 0.
struct TokenStrides {
  std::int64_t batch = 0;
  std::int64_t token = 0;
};

// A scope's cache and keys. `rows` is null where the scope is absent.
struct Dsv4ScopeParams {
  enum class Keys : std::uint8_t { range, list };

  const void* rows = nullptr;
  KvRowFormat format = KvRowFormat::bf16;
  std::int64_t page_bytes = 0;  // from a page to the next
  std::int64_t row_bytes = 0;   // from a row to the next; of e4m3_bf16 576, in the first plane
  int pages = 0;
  int page_size = 0;

  Keys keys = Keys::range;
  const int* range_end = nullptr;
  const int* range_begin = nullptr;  // null: 0
  TokenStrides end_stride;
  TokenStrides begin_stride;
  const int* block_table = nullptr;  // null: request b has page b
  std::int64_t table_stride = 0;     // of a request
  int max_pages = 0;                 // columns of the table; 1 without one
  int ring = 0;                      // rows; 0: no ring

  const int* indices = nullptr;
  TokenStrides indices_stride;
  const int* list_lengths = nullptr;  // null: most_keys

  int most_keys = 0;  // of a token: the entries of a list, the bound of a range
};

struct FreshRows {
  const void* rows = nullptr;
  TokenStrides stride;
};

// The rotation of o's last dims. Null: none.
struct InverseRope {
  const float* cos = nullptr;
  const float* sin = nullptr;
  std::int64_t cos_stride = 0;  // of a position
  std::int64_t sin_stride = 0;
  int max_positions = 0;
  const std::int64_t* positions = nullptr;
  TokenStrides positions_stride;
};

struct Dsv4AttentionParams {
  const void* q = nullptr;
  void* o = nullptr;
  float* lse = nullptr;      // may be null
  float* o_scale = nullptr;  // not null: o is E4M3
  void* workspace = nullptr;

  DType dtype = DType::bf16;
  int batch = 0;
  int q_len = 0;  // new tokens of a request; packed: of all together
  int heads = 0;

  OuterStrides q_stride;
  OuterStrides o_stride;
  OuterStrides o_scale_stride;
  OuterStrides lse_stride;
  std::int64_t o_scale_group_stride = 0;

  Dsv4ScopeParams window;
  Dsv4ScopeParams compressed;
  FreshRows fresh;
  InverseRope rope;

  float scale = 0.0f;
  bool lse_counts_sink = true;
  Sinks sinks;
  PackedRows packed_q;
  RowStatistics statistics;  // if there are any, o is FP32 and un-normalised

  int multiprocessors = 0;  // of the GPU
};

}  // namespace tilewright
