// Attention over KV caches on the CPU, by the tiles of attention_tile.hpp. A row's result depends
// on its sequence's keys and values alone: pages change where these are read, and nothing else.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "cpu/attention_tile.hpp"
#include "cpu/cpu_attention.hpp"

namespace tilewright::cpu {
namespace {

using Params = AttentionWithKvCacheParams;

// A sequence's new tokens, and where their rows begin in q or, likewise, in k and v.
struct NewTokens {
  int first;
  int count;
};

NewTokens new_tokens_of(const Params& p, int batch, int len) {
  if (p.packed_q.cu_seqlens == nullptr) {
    return {.first = 0, .count = len};
  }
  const int first = p.packed_q.cu_seqlens[batch];
  return {.first = first, .count = p.packed_q.cu_seqlens[batch + 1] - first};
}

int added_of(const Params& p, int batch) {
  return p.added.k == nullptr ? 0 : new_tokens_of(p, batch, p.added.len).count;
}

// The first keys of a sequence, which another one holds for it.
struct Prefix {
  int len;
  int holder;

  int holder_of(int batch, int position) const { return position < len ? holder : batch; }
};

Prefix prefix_of(const SharedPrefixes& prefixes, int batch) {
  if (prefixes.groups == nullptr) {
    return {.len = 0, .holder = batch};
  }
  const int* const end = prefixes.groups + prefixes.count + 1;
  const auto group = std::upper_bound(prefixes.groups, end, batch) - prefixes.groups - 1;
  return {.len = prefixes.seqlens[group], .holder = prefixes.groups[group]};
}

// A row of the caches: of a page, or of a whole sequence.
struct Slot {
  int entry;
  int row;
};

// Where the keys lie that a sequence holds.
TILEWRIGHT_INLINE Slot slot_of(const KvRows& rows, int batch, int position) {
  if (rows.block_table != nullptr) {
    return {.entry = rows.block_table[batch * rows.table_stride + position / rows.page_size],
            .row = position % rows.page_size};
  }
  return {.entry = rows.cache_batch_idx != nullptr ? rows.cache_batch_idx[batch] : batch,
          .row = position};
}

// Up to kBc rows of a cache, wherever they lie.
template <typename T>
struct CacheRows {
  const T* data;
  std::array<std::int64_t, kBc> offset;
  std::array<float, kBc> descale;  // of E4M3

  TILEWRIGHT_INLINE float operator()(int i, int d) const {
    const auto row = static_cast<std::size_t>(i);
    const float value = to_float(data[offset[row] + d]);
    if constexpr (std::is_same_v<T, E4m3>) {
      return descale[row] * value;
    } else {
      return value;
    }
  }
};

// A head's queries from one on.
template <typename T>
struct Queries {
  StridedRows<T> rows;
  float descale;  // of E4M3

  TILEWRIGHT_INLINE float operator()(int i, int d) const {
    if constexpr (std::is_same_v<T, E4m3>) {
      return descale * rows(i, d);
    } else {
      return rows(i, d);
    }
  }
};

// Which keys of a sequence's new tokens its queries see.
class Tree {
 public:
  Tree(const Params& p, const Sequence& s) : p_(p), s_(s) {
    for (int i = 0; p.tree.bits != nullptr && i < s.q_len; ++i) {
      seen_ |= bits_of(i);
    }
  }

  // Does new token `row` see the key at a position?
  bool sees(int row, int position) const { return has(bits_of(row), position); }

  // Does any?
  bool is_seen(int position) const { return has(seen_, position); }

 private:
  std::uint64_t bits_of(int row) const {
    return static_cast<std::uint64_t>(p_.tree.bits[s_.batch * p_.tree.batch_stride +
                                                   (s_.first_query + row) * p_.tree.seq_stride]);
  }

  bool has(std::uint64_t bits, int position) const {
    const int token = position - (s_.kv_len - s_.q_len);
    return token < 0 || (bits >> token & 1) != 0;
  }

  const Params& p_;
  const Sequence& s_;
  std::uint64_t seen_ = 0;
};

// The keys of a sequence in caches of elements Cache, to queries of elements T. Results of E4M3 are
// BF16.
template <typename T, typename Cache>
class CachedKeys {
 public:
  using Params = AttentionWithKvCacheParams;
  using Output = std::conditional_t<std::is_same_v<T, E4m3>, Bf16, T>;

  static Sequence sequence_of(const Params& p, int batch) {
    const NewTokens queries = new_tokens_of(p, batch, p.q_len);
    return {.batch = batch,
            .first_query = queries.first,
            .first_key = 0,
            .q_len = queries.count,
            .kv_len = p.rows.cache_seqlens[batch] + added_of(p, batch),
            .unseen = p.rows.leftpad != nullptr ? p.rows.leftpad[batch] : 0};
  }

  CachedKeys(const Params& p, const Sequence& sequence, int head)
      : p_(p),
        s_(sequence),
        prefix_(prefix_of(p.prefixes, sequence.batch)),
        head_(head),
        kv_head_(head / (p.heads / p.kv_heads)),
        tree_(p, sequence) {}

  Queries<T> q_rows(int row0) const {
    return {.rows = query_rows<T>(p_, s_, head_, row0),
            .descale = descale_of(p_.q_descale, s_.batch, {})};
  }

  CacheRows<Cache> k_rows(int key0, int count) const {
    return rows_from(key0, count, p_.k_cache, p_.k_stride, p_.k_descale);
  }
  CacheRows<Cache> v_rows(int key0, int count) const {
    return rows_from(key0, count, p_.v_cache, p_.v_stride, p_.v_descale);
  }

  void hide_scores(int row, int key0, float* s, int first, int end) const {
    for (int j = first; p_.tree.bits != nullptr && j < end; ++j) {
      if (!tree_.sees(row, key0 + j)) {
        s[j] = -std::numeric_limits<float>::infinity();
      }
    }
  }

  void hide_values(int key0, int count, float* v, int padded_dim) const {
    for (int j = 0; p_.tree.bits != nullptr && j < count; ++j) {
      if (!tree_.is_seen(key0 + j)) {
        std::fill_n(v + j * padded_dim, padded_dim, 0.0f);
      }
    }
  }

 private:
  CacheRows<Cache> rows_from(int key0, int count, const void* data, const OuterStrides& stride,
                             const Descales& descales) const {
    CacheRows<Cache> rows;
    rows.data = static_cast<const Cache*>(data);
    for (int i = 0; i < count; ++i) {
      const int holder = prefix_.holder_of(s_.batch, key0 + i);
      const Slot slot = slot_of(p_.rows, holder, key0 + i);
      const auto at = static_cast<std::size_t>(i);
      rows.offset[at] = stride.offset(slot.entry, slot.row, kv_head_);
      rows.descale[at] = descale_of(descales, holder, slot);
    }
    return rows;
  }

  float descale_of(const Descales& descales, int holder, Slot slot) const {
    if (descales.data == nullptr) {
      return 1.0f;
    }
    switch (descales.per) {
      case Descales::Per::tensor:
        return descales.data[0];
      case Descales::Per::sequence:
        return descales.data[descales.stride.offset(holder, 0, kv_head_)];
      case Descales::Per::row:
        return descales.data[descales.stride.offset(slot.entry, slot.row, kv_head_)];
    }
    return 1.0f;
  }

  const Params& p_;
  const Sequence& s_;
  Prefix prefix_;
  int head_;
  int kv_head_;
  Tree tree_;
};

// Rows of k or v, and the cache that they go to.
struct Copy {
  const void* source;
  OuterStrides source_stride;
  void* cache;
  OuterStrides cache_stride;
  std::int64_t element_bytes;
  int dim;
};

void copy_row(const Copy& copy, int batch, int row, Slot slot, int head) {
  const std::int64_t from = copy.source_stride.offset(batch, row, head);
  const std::int64_t to = copy.cache_stride.offset(slot.entry, slot.row, head);
  std::memcpy(static_cast<std::byte*>(copy.cache) + to * copy.element_bytes,
              static_cast<const std::byte*>(copy.source) + from * copy.element_bytes,
              static_cast<std::size_t>(copy.dim * copy.element_bytes));
}

// Writes new rows behind those that the caches hold.
void append(const Params& p) {
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(p.cache_dtype));
  const Copy keys{.source = p.added.k,
                  .source_stride = p.added.k_stride,
                  .cache = p.k_cache,
                  .cache_stride = p.k_stride,
                  .element_bytes = element_bytes,
                  .dim = p.head_dim};
  const Copy values{.source = p.added.v,
                    .source_stride = p.added.v_stride,
                    .cache = p.v_cache,
                    .cache_stride = p.v_stride,
                    .element_bytes = element_bytes,
                    .dim = p.value_dim};
  parallel_for_rows(std::int64_t{p.batch} * p.kv_heads, [&](std::int64_t i) {
    const auto batch = static_cast<int>(i / p.kv_heads);
    const auto head = static_cast<int>(i % p.kv_heads);
    const NewTokens tokens = new_tokens_of(p, batch, p.added.len);
    for (int row = 0; row < tokens.count; ++row) {
      const Slot slot = slot_of(p.rows, batch, p.rows.cache_seqlens[batch] + row);
      copy_row(keys, batch, tokens.first + row, slot, head);
      copy_row(values, batch, tokens.first + row, slot, head);
    }
  });
}

template <typename T>
void attend_to_caches(const Params& p) {
  const auto first = p.added.k != nullptr ? append : nullptr;
  if (p.cache_dtype == DType::e4m3) {
    attend_all<CachedKeys<T, E4m3>>(p, first);
  } else {
    attend_all<CachedKeys<T, T>>(p, first);
  }
}

}  // namespace

void attention_with_kvcache(const Params& p, Stream) {
  switch (p.dtype) {
    case DType::fp32:
      return attend_to_caches<float>(p);
    case DType::fp16:
      return attend_to_caches<Fp16>(p);
    case DType::bf16:
      return attend_to_caches<Bf16>(p);
    case DType::e4m3:  // caches are of E4M3, too
      return attend_to_caches<E4m3>(p);
    default:  // refused by the registry
      return;
  }
}

}  // namespace tilewright::cpu
