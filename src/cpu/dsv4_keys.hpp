// The keys of a token of dsv4_attention(), one after the other, as rows of floats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>

#include "common/kv_row.hpp"
#include "cpu/element.hpp"
#include "cpu/vector.hpp"
#include "ops/dsv4_attention/params.hpp"

namespace tilewright::cpu {

// A new token: the `index`-th of its request, and where it lies in tensors of tokens.
struct NewToken {
  int batch;
  int index;
  int row;  // of packed tokens; else the index

  std::int64_t at(const TokenStrides& stride) const {
    return batch * stride.batch + row * stride.token;
  }
};

// Where a key's row lies.
struct KeyRow {
  const std::uint8_t* data;
  const std::uint8_t* scales;  // of a format with codes
  KvRowFormat format;
  bool is_fresh;  // it has the queries' dtype, and no format
};

// Goes through the keys that a token sees: the window's, the compressed ones, fresh rows. Entries
// of lists that are no key are left out. The values of the call have been checked.
class KeyCursor {
 public:
  KeyCursor(const Dsv4AttentionParams& p, const NewToken& token)
      : p_(p),
        token_(token),
        sections_{section_of(p.window), section_of(p.compressed),
                  Section{.next = 0, .end = p.fresh.rows != nullptr ? token.index + 1 : 0}} {}

  // Takes the next keys, at most as many as `keys` has room for, and returns their number. It is
  // less only if there are no more.
  int take(std::span<KeyRow> keys) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < std::size(sections_); ++i) {
      for (auto& [next, end] = sections_[i]; next < end && count < keys.size(); ++next) {
        count += add(i, next, keys[count]) ? 1 : 0;
      }
    }
    return static_cast<int>(count);
  }

 private:
  // Positions of a range, entries of a list, or fresh rows.
  struct Section {
    std::int64_t next;
    std::int64_t end;
  };

  Section section_of(const Dsv4ScopeParams& scope) const {
    if (scope.rows == nullptr) {
      return {.next = 0, .end = 0};
    }
    if (scope.keys == Dsv4ScopeParams::Keys::list) {
      return {.next = 0,
              .end = scope.list_lengths != nullptr ? scope.list_lengths[token_.batch]
                                                   : scope.most_keys};
    }
    return {
        .next = scope.range_begin != nullptr ? scope.range_begin[token_.at(scope.begin_stride)] : 0,
        .end = scope.range_end[token_.at(scope.end_stride)]};
  }

  // Sets the key, if there is one.
  bool add(std::size_t section, std::int64_t i, KeyRow& key) const {
    if (section == 2) {
      key = fresh_row(i);
      return true;
    }
    const Dsv4ScopeParams& scope = section == 0 ? p_.window : p_.compressed;
    if (scope.keys == Dsv4ScopeParams::Keys::range) {
      key = row_at(scope, slot_of_position(scope, i));
      return true;
    }
    const int slot = scope.indices[token_.at(scope.indices_stride) + i];
    if (slot >= 0) {
      key = row_at(scope, slot);
    }
    return slot >= 0;
  }

  std::int64_t slot_of_position(const Dsv4ScopeParams& scope, std::int64_t position) const {
    const std::int64_t place = scope.ring > 0 ? position % scope.ring : position;
    const std::int64_t entry = place / scope.page_size;
    const std::int64_t page = scope.block_table != nullptr
                                  ? scope.block_table[token_.batch * scope.table_stride + entry]
                                  : token_.batch;
    return page * scope.page_size + (place - entry * scope.page_size);
  }

  static KeyRow row_at(const Dsv4ScopeParams& scope, std::int64_t slot) {
    const KvRowPlace place = kv_rows_layout(scope.format, scope.pages, scope.page_size,
                                            scope.page_bytes, scope.row_bytes)
                                 .place(slot);
    const auto* const rows = static_cast<const std::uint8_t*>(scope.rows);
    return {.data = rows + place.data,
            .scales = rows + place.scales,
            .format = scope.format,
            .is_fresh = false};
  }

  KeyRow fresh_row(std::int64_t i) const {
    const auto element_bytes = static_cast<std::int64_t>(size_bytes(p_.dtype));
    const std::int64_t row = token_.row - token_.index + i;
    const std::int64_t offset = token_.batch * p_.fresh.stride.batch + row * p_.fresh.stride.token;
    return {.data = static_cast<const std::uint8_t*>(p_.fresh.rows) + offset * element_bytes,
            .scales = nullptr,
            .format = KvRowFormat::bf16,
            .is_fresh = true};
  }

  const Dsv4AttentionParams& p_;
  const NewToken& token_;
  Section sections_[3];
};

// ---- Values

// Values may lie anywhere: rows are bytes.
template <typename T>
TILEWRIGHT_INLINE void copy_dims(const std::uint8_t* data, int dims, float* out) {
  for (int d = 0; d < dims; ++d) {
    T value;
    std::memcpy(&value, data + d * sizeof(T), sizeof(T));
    out[d] = to_float(value);
  }
}

template <KvRowFormat kFormat>
TILEWRIGHT_INLINE void decode_format(const KeyRow& key, float* out) {
  constexpr KvRowParts kParts = parts_of(kFormat);
  for (int first = 0; first < kParts.coded_dims; first += kParts.group) {
    for (int d = first; d < first + kParts.group; ++d) {
      out[d] = decoded_dim(kFormat, key.data, key.scales, d);
    }
  }
  copy_dims<Bf16>(key.data + kParts.code_bytes(), kKvRowDims - kParts.coded_dims,
                  out + kParts.coded_dims);
}

// Writes the 512 values of a key, in a call whose queries are of T.
template <typename T>
TILEWRIGHT_INLINE void decode_row(const KeyRow& key, float* out) {
  if (key.is_fresh) {
    return copy_dims<T>(key.data, kKvRowDims, out);
  }
  switch (key.format) {
    case KvRowFormat::bf16:
      return decode_format<KvRowFormat::bf16>(key, out);
    case KvRowFormat::e4m3_bf16:
      return decode_format<KvRowFormat::e4m3_bf16>(key, out);
    case KvRowFormat::e4m3:
      return decode_format<KvRowFormat::e4m3>(key, out);
    case KvRowFormat::e2m1:
      return decode_format<KvRowFormat::e2m1>(key, out);
  }
}

}  // namespace tilewright::cpu
