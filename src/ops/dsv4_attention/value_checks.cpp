// The values of ranges, tables, indices, lengths and positions of a call of dsv4_attention(), and
// the scales of the rows that they name.
#include <algorithm>
#include <string>
#include <vector>

#include "ops/dsv4_attention/checks.hpp"
#include "ops/dsv4_attention/strides.hpp"
#include "ops/kv_rows/checks.hpp"
#include "ops/length_checks.hpp"

namespace tilewright {
namespace {

using Tensors = Dsv4AttentionTensors;

// A new token: the `index`-th of its request, and its place in tensors of tokens.
struct Token {
  std::int64_t request;
  std::int64_t index;
  std::int64_t row;  // of packed tokens; else the index
};

std::string request_text(std::int64_t request) { return "request " + std::to_string(request); }

std::string text_of(const Token& token) {
  return "token " + std::to_string(token.index) + " of " + request_text(token.request);
}

std::vector<Token> tokens_of(const Tensors& t, Stream stream) {
  std::vector<int> cu_seqlens;
  if (t.cu_seqlens_q) {
    cu_seqlens = values_of<int>(*t.cu_seqlens_q, stream);
    check_cu_seqlens("cu_seqlens_q", cu_seqlens, seqlen_of(t.q), "q");
  }
  std::vector<Token> tokens;
  for (std::int64_t b = 0; b < batch_size(t); ++b) {
    const auto at = static_cast<std::size_t>(b);
    const std::int64_t first = cu_seqlens.empty() ? 0 : cu_seqlens[at];
    const std::int64_t count = cu_seqlens.empty() ? seqlen_of(t.q) : cu_seqlens[at + 1] - first;
    if (count > kMaxNewTokens) {
      fail("cu_seqlens_q", "gives " + std::to_string(count) + " new tokens for " + request_text(b) +
                               ", must give at most 8");
    }
    for (std::int64_t i = 0; i < count; ++i) {
      tokens.push_back({.request = b, .index = i, .row = first + i});
    }
  }
  return tokens;
}

// A token's `count` neighbouring values in a tensor of tokens.
template <typename T>
std::vector<T> values_for(const ConstTensorView& tensor, const Token& token, bool is_packed,
                          std::int64_t count, Stream stream) {
  const TokenStrides stride = token_strides(tensor, is_packed);
  return values_at(
      static_cast<const T*>(tensor.data) + token.request * stride.batch + token.row * stride.token,
      count, tensor.device, stream);
}

// Finds the slots of a scope's rows that tokens see, and checks what leads to them.
class SlotFinder {
 public:
  SlotFinder(const Dsv4Scope& scope, const ScopeNames& names, bool is_packed, Stream stream)
      : scope_(scope),
        names_(names),
        is_packed_(is_packed),
        stream_(stream),
        pages_(scope.rows.shape[0]),
        page_size_(scope.rows.shape[1]) {
    if (scope.list_lengths) {
      check_list_lengths();
    }
  }

  void add_token(const Token& token) {
    if (scope_.indices) {
      add_list(token);
    } else {
      add_range(token);
    }
  }

  // In ascending order, each of them once.
  std::vector<std::int64_t> slots() && {
    std::ranges::sort(slots_);
    const auto rest = std::ranges::unique(slots_);
    slots_.erase(rest.begin(), rest.end());
    return std::move(slots_);
  }

 private:
  void check_list_lengths() {
    const std::int64_t entries = most_keys_of(scope_);
    list_lengths_ = values_of<int>(*scope_.list_lengths, stream_);
    for (std::size_t b = 0; b < list_lengths_.size(); ++b) {
      check_range(names_.list_lengths, list_lengths_[b], request_text(static_cast<std::int64_t>(b)),
                  0, entries, "entries of a list");
    }
  }

  void add_list(const Token& token) {
    const std::int64_t count = scope_.list_lengths
                                   ? list_lengths_[static_cast<std::size_t>(token.request)]
                                   : most_keys_of(scope_);
    if (count == 0) {
      return;
    }
    const auto indices = values_for<int>(*scope_.indices, token, is_packed_, count, stream_);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] < -1 || indices[i] >= pages_ * page_size_) {
        fail(names_.indices, "is " + std::to_string(indices[i]) + " for " + text_of(token) +
                                 ", entry " + std::to_string(i) + ", must be -1 or less than " +
                                 std::to_string(pages_ * page_size_) + ", the slots of " +
                                 names_.rows);
      }
      if (indices[i] >= 0) {
        slots_.push_back(indices[i]);
      }
    }
  }

  std::int64_t bound(const std::optional<ConstTensorView>& tensor, const Token& token) const {
    return tensor ? values_for<int>(*tensor, token, is_packed_, 1, stream_).front() : 0;
  }

  void check_bounds(const Token& token, std::int64_t begin, std::int64_t end) const {
    const std::int64_t capacity = capacity_of(scope_);
    if (end < 0 || (scope_.ring == 0 && end > capacity)) {
      fail(names_.range_end, "is " + std::to_string(end) + " for " + text_of(token) + ", must be " +
                                 (scope_.ring > 0 ? "at least 0"
                                                  : "from 0 to " + std::to_string(capacity) +
                                                        ", the rows of a request's pages"));
    }
    if (scope_.range_begin && (begin < 0 || begin > end)) {
      fail(names_.range_begin, "is " + std::to_string(begin) + " for " + text_of(token) +
                                   ", must be from 0 to its end, " + std::to_string(end));
    }
    if (const std::int64_t most = most_keys_of(scope_); end - begin > most) {
      fail(scope_.range_begin ? names_.range_begin : names_.range_end,
           "makes a range of " + std::to_string(end - begin) + " keys for " + text_of(token) +
               ", must make one of at most " + std::to_string(most) + ", " +
               (most == scope_.ring ? "the rows of the ring" : names_.most_keys));
    }
  }

  void add_range(const Token& token) {
    const std::int64_t end = bound(scope_.range_end, token);
    const std::int64_t begin = bound(scope_.range_begin, token);
    check_bounds(token, begin, end);
    for (std::int64_t position = begin; position < end; ++position) {
      const std::int64_t place = scope_.ring > 0 ? position % scope_.ring : position;
      slots_.push_back(page_of(token.request, place / page_size_) * page_size_ +
                       place % page_size_);
    }
  }

  std::int64_t page_of(std::int64_t request, std::int64_t entry) {
    if (!scope_.block_table) {
      return request;
    }
    if (table_request_ != request) {
      const ConstTensorView& table = *scope_.block_table;
      table_ = values_at(static_cast<const int*>(table.data) + request * stride_of(table, 0),
                         table.shape[1], table.device, stream_);
      table_request_ = request;
    }
    const int page = table_[static_cast<std::size_t>(entry)];
    check_range(names_.block_table, page,
                request_text(request) + ", entry " + std::to_string(entry), 0, pages_ - 1,
                "pages of its rows");
    return page;
  }

  const Dsv4Scope& scope_;
  const ScopeNames& names_;
  bool is_packed_;
  Stream stream_;
  std::int64_t pages_;
  std::int64_t page_size_;
  std::vector<int> list_lengths_;
  std::vector<int> table_;  // the entries of one request
  std::int64_t table_request_ = -1;
  std::vector<std::int64_t> slots_;
};

// UE8M0 scales of rows that are seen must not be NaN.
void check_scales(const Dsv4Scope& scope, const ScopeNames& names,
                  const std::vector<std::int64_t>& slots, Stream stream) {
  const KvRowsLayout layout = kv_rows_layout_of(scope.rows);
  if (layout.format != KvRowFormat::e4m3_bf16 && layout.format != KvRowFormat::e4m3) {
    return;
  }
  const int count = parts_of(layout.format).scales();
  for (const std::int64_t slot : slots) {
    const auto* const first =
        static_cast<const std::uint8_t*>(scope.rows.data) + layout.place(slot).scales;
    const auto scales = values_at(first, count, scope.rows.device, stream);
    const auto nan = std::ranges::find(scales, kE8m0NaN);
    if (nan != scales.end()) {
      fail(names.rows, "has the UE8M0 scale 255 in group " + std::to_string(nan - scales.begin()) +
                           " of slot " + std::to_string(slot) +
                           ", must have at most 254 in rows that a token sees");
    }
  }
}

void check_positions(const Tensors& t, const std::vector<Token>& tokens, Stream stream) {
  const std::int64_t positions = t.rotary_cos->shape[0];
  for (const Token& token : tokens) {
    const std::int64_t position =
        values_for<std::int64_t>(*t.positions, token, t.cu_seqlens_q.has_value(), 1, stream)
            .front();
    check_range("positions", position, text_of(token), 0, positions - 1, "positions of rotary_cos");
  }
}

}  // namespace

void check_values(const Tensors& t, Stream stream) {
  const std::vector<Token> tokens = tokens_of(t, stream);
  for_each_scope(t, [&](const Dsv4Scope& scope, const ScopeNames& names) {
    SlotFinder finder(scope, names, t.cu_seqlens_q.has_value(), stream);
    for (const Token& token : tokens) {
      finder.add_token(token);
    }
    check_scales(scope, names, std::move(finder).slots(), stream);
  });
  if (t.positions) {
    check_positions(t, tokens, stream);
  }
}

}  // namespace tilewright
