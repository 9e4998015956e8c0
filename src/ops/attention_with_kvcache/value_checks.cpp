// The values of lengths, tables and indices of a call of attention_with_kvcache().
#include <algorithm>
#include <string>
#include <vector>

#include "common/ceil_div.hpp"
#include "ops/attention_with_kvcache/checks.hpp"
#include "ops/length_checks.hpp"

namespace tilewright {
namespace {

using Tensors = AttentionWithKvCacheTensors;

std::string of_sequence(std::size_t b) { return " for sequence " + std::to_string(b); }

// A sequence's keys: in the cache, and new ones behind them.
struct Lengths {
  std::int64_t cached;
  std::int64_t added;
  std::int64_t elsewhere = 0;  // the first ones, which are read where another sequence has them
};

std::vector<Lengths> checked_lengths(const Tensors& t, const std::vector<int>& cu_seqlens,
                                     Stream stream) {
  const std::int64_t capacity = capacity_of(t);
  std::vector<Lengths> lengths;
  for (const int cached : values_of<int>(t.cache_seqlens, stream)) {
    const std::size_t b = lengths.size();
    const std::int64_t added = !t.k                 ? 0
                               : cu_seqlens.empty() ? seqlen_of(*t.k)
                                                    : cu_seqlens[b + 1] - cu_seqlens[b];
    if (cached < 0 || cached + added > capacity) {
      fail("cache_seqlens", "is " + std::to_string(cached) + of_sequence(b) +
                                ", must be between 0 and " + std::to_string(capacity - added) +
                                ", the capacity" +
                                (added == 0 ? "" : " less " + std::to_string(added) + " new rows"));
    }
    lengths.push_back({.cached = cached, .added = added});
  }
  return lengths;
}

void check_tree_tokens(const std::vector<int>& cu_seqlens) {
  for (std::size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const int tokens = cu_seqlens[b + 1] - cu_seqlens[b];
    if (tokens > kMaxTreeTokens) {
      fail("cu_seqlens_q", "gives " + std::to_string(tokens) + " new tokens" + of_sequence(b) +
                               ", must give at most 64 where tree_mask is given");
    }
  }
}

// The most keys that sequence b can share: the cache has them, and all of its tokens see them.
std::int64_t most_shared(const Tensors& t, bool is_causal, const Lengths& its,
                         std::int64_t tokens) {
  const std::int64_t before_tokens = its.cached + its.added - tokens;
  const std::int64_t seen = t.tree_mask ? before_tokens
                            : is_causal ? before_tokens + 1
                                        : its.cached;
  return std::clamp(seen, std::int64_t{0}, its.cached);
}

void check_prefixes(const Tensors& t, bool is_causal, const std::vector<int>& cu_seqlens,
                    std::vector<Lengths>& lengths, Stream stream) {
  const std::vector<int> groups = values_of<int>(*t.prefix_groups, stream);
  const std::vector<int> seqlens = values_of<int>(*t.prefix_seqlens, stream);
  check_ascends_from_0("prefix_groups", groups);
  if (static_cast<std::size_t>(groups.back()) != lengths.size()) {
    fail("prefix_groups", "ends with " + std::to_string(groups.back()) + ", must end with " +
                              std::to_string(lengths.size()) + ", the number of sequences");
  }
  for (std::size_t g = 0; g < seqlens.size(); ++g) {
    const auto first = static_cast<std::size_t>(groups[g]);
    for (std::size_t b = first; b < static_cast<std::size_t>(groups[g + 1]); ++b) {
      const std::int64_t tokens =
          cu_seqlens.empty() ? t.q.shape[1] : cu_seqlens[b + 1] - cu_seqlens[b];
      const std::int64_t most = most_shared(t, is_causal, lengths[b], tokens);
      if (seqlens[g] < 0 || seqlens[g] > most) {
        fail("prefix_seqlens", "is " + std::to_string(seqlens[g]) + " for group " +
                                   std::to_string(g) + ", must be between 0 and " +
                                   std::to_string(most) + ", the keys that the cache has" +
                                   of_sequence(b) + " and all its tokens see");
      }
      lengths[b].elsewhere = b == first ? 0 : seqlens[g];
    }
  }
}

void check_leftpad(const std::vector<int>& leftpad, const std::vector<Lengths>& lengths) {
  for (std::size_t b = 0; b < leftpad.size(); ++b) {
    const std::int64_t keys = lengths[b].cached + lengths[b].added;
    if (leftpad[b] < 0 || leftpad[b] > keys) {
      fail("leftpad_k", "is " + std::to_string(leftpad[b]) + of_sequence(b) +
                            ", must be between 0 and its length " + std::to_string(keys));
    }
  }
}

// Each must be a row of the caches, and no two sequences may write to one.
void check_cache_rows(const std::vector<int>& rows, const std::vector<Lengths>& lengths,
                      std::int64_t cache_rows) {
  std::vector<std::pair<int, std::size_t>> written;
  for (std::size_t b = 0; b < rows.size(); ++b) {
    if (rows[b] < 0 || rows[b] >= cache_rows) {
      fail("cache_batch_idx", "is " + std::to_string(rows[b]) + of_sequence(b) +
                                  ", must be between 0 and " + std::to_string(cache_rows - 1) +
                                  ", a row of the caches");
    }
    if (lengths[b].added > 0) {
      written.emplace_back(rows[b], b);
    }
  }
  std::ranges::sort(written);
  for (std::size_t i = 1; i < written.size(); ++i) {
    if (written[i].first == written[i - 1].first) {
      fail("cache_batch_idx", "is " + std::to_string(written[i].first) + " for sequences " +
                                  std::to_string(written[i - 1].second) + " and " +
                                  std::to_string(written[i].second) +
                                  ", must differ, as k and v are written there");
    }
  }
}

// Slots of a page that a sequence writes.
struct WrittenSlots {
  int page;
  std::int64_t first;
  std::int64_t end;
  std::size_t sequence;
};

// Adds the slots that a sequence writes, whose pages, in its order, are `pages`.
void add_written(const std::vector<int>& pages, const Lengths& lengths, std::int64_t page_size,
                 std::size_t sequence, std::vector<WrittenSlots>& written) {
  const std::int64_t end = lengths.cached + lengths.added;
  for (std::int64_t position = lengths.cached; position < end;) {
    const std::int64_t i = position / page_size;
    const std::int64_t page_end = std::min(end, (i + 1) * page_size);
    written.push_back({.page = pages[static_cast<std::size_t>(i)],
                       .first = position - i * page_size,
                       .end = page_end - i * page_size,
                       .sequence = sequence});
    position = page_end;
  }
}

void check_written_slots(std::vector<WrittenSlots> written) {
  std::ranges::sort(written, {}, [](const WrittenSlots& w) { return std::pair(w.page, w.first); });
  for (std::size_t i = 1; i < written.size(); ++i) {
    const WrittenSlots& before = written[i - 1];
    if (written[i].page == before.page && written[i].first < before.end) {
      fail("block_table", "has row " + std::to_string(written[i].first) + " of page " +
                              std::to_string(before.page) + " for new rows of sequences " +
                              std::to_string(before.sequence) + " and " +
                              std::to_string(written[i].sequence) +
                              ", must have another one for each new row");
    }
  }
}

void check_block_table(const Tensors& t, const std::vector<Lengths>& lengths, Stream stream) {
  const ConstTensorView& table = *t.block_table;
  const std::int64_t page_size = t.k_cache.shape[1];
  std::vector<WrittenSlots> written;
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int64_t count = ceil_div(lengths[b].cached + lengths[b].added, page_size);
    const auto* const first =
        static_cast<const int*>(table.data) + static_cast<std::int64_t>(b) * table.stride[0];
    const std::vector<int> pages =
        count == 0 ? std::vector<int>() : values_at(first, count, table.device, stream);
    for (auto i = static_cast<std::size_t>(lengths[b].elsewhere / page_size); i < pages.size();
         ++i) {
      if (pages[i] < 0 || pages[i] >= t.k_cache.shape[0]) {
        fail("block_table", "is " + std::to_string(pages[i]) + of_sequence(b) + " at page " +
                                std::to_string(i) + " of " + std::to_string(count) +
                                ", must be between 0 and " +
                                std::to_string(t.k_cache.shape[0] - 1) + ", a page of the caches");
      }
    }
    add_written(pages, lengths[b], page_size, b, written);
  }
  check_written_slots(std::move(written));
}

}  // namespace

void check_values(const Tensors& t, const AttentionWithKvCacheOptions& options, Stream stream) {
  std::vector<int> cu_seqlens;
  if (t.cu_seqlens_q) {
    cu_seqlens = values_of<int>(*t.cu_seqlens_q, stream);
    check_cu_seqlens("cu_seqlens_q", cu_seqlens, seqlen_of(t.q), "q");
  }
  if (t.tree_mask) {
    check_tree_tokens(cu_seqlens);
  }
  std::vector<Lengths> lengths = checked_lengths(t, cu_seqlens, stream);
  if (t.prefix_groups) {
    check_prefixes(t, options.causal, cu_seqlens, lengths, stream);
  }
  if (t.leftpad_k) {
    check_leftpad(values_of<int>(*t.leftpad_k, stream), lengths);
  }
  if (t.cache_batch_idx) {
    check_cache_rows(values_of<int>(*t.cache_batch_idx, stream), lengths, t.k_cache.shape[0]);
  }
  if (t.block_table) {
    check_block_table(t, lengths, stream);
  }
}

}  // namespace tilewright
