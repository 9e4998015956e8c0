#include "problems/kvcache_problem.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/block_scale.hpp"
#include "common/ceil_div.hpp"
#include "problems/problem.hpp"
#include "problems/random.hpp"
#include "reference/attention_with_kvcache.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr std::int64_t kPadding = 16;      // elements: 16 bytes of the smallest
constexpr std::int64_t kRowsBehind = 3;    // the last of packed sequences
constexpr std::uint64_t kSeedStep = 1000;  // between tensors

std::int64_t value_dim_of(const KvCacheProblem& p) {
  return p.value_dim == 0 ? p.head_dim : p.value_dim;
}

std::int64_t sum_of(const std::vector<int>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

HostTensor ints(const std::vector<int>& values) {
  HostTensor tensor(DType::int32, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.data(), values.data(), tensor.bytes());
  return tensor;
}

// ---- Values

// The value's bits for a tensor of E4M3, or the value.
double element_of(DType dtype, double value) {
  return dtype == DType::e4m3 ? float_to_e4m3(static_cast<float>(value)) : value;
}

// NaN or, where the dtype has them, infinities, by turns.
double poison_of(DType dtype, std::int64_t i) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr std::array kPoisons = {std::numeric_limits<double>::quiet_NaN(), kInf, -kInf};
  constexpr std::array kE4m3Poisons = {0x7f, 0xff, 0x7f};
  const auto at = static_cast<std::size_t>(i) % kPoisons.size();
  return dtype == DType::e4m3 ? kE4m3Poisons[at] : kPoisons[at];
}

std::int64_t row_offset(const TensorView& t, std::int64_t entry, std::int64_t row,
                        std::int64_t head) {
  return (t.rank == 4 ? entry * t.stride[0] : 0) + row * t.stride[t.rank - 3] +
         head * t.stride[t.rank - 2];
}

// Rows of a ([B,] N, H, D) tensor, by entry and number, that some query sees.
class SeenRows {
 public:
  SeenRows(std::int64_t entries, std::int64_t rows)
      : rows_(rows), is_seen_(static_cast<std::size_t>(entries * rows)) {}

  void add(std::int64_t entry, std::int64_t row) {
    is_seen_[static_cast<std::size_t>(entry * rows_ + row)] = true;
  }
  bool has(std::int64_t entry, std::int64_t row) const {
    return is_seen_[static_cast<std::size_t>(entry * rows_ + row)];
  }

 private:
  std::int64_t rows_;
  std::vector<bool> is_seen_;
};

// Nearly normal values in rows that are seen, poison in the others.
void fill_rows(const TensorView& t, const SeenRows& seen, std::uint64_t seed) {
  std::uint64_t index = 0;
  for (std::int64_t b = 0; b < (t.rank == 4 ? t.shape[0] : 1); ++b) {
    for (std::int64_t n = 0; n < t.shape[t.rank - 3]; ++n) {
      const bool is_seen = seen.has(b, n);
      const double poison = poison_of(t.dtype, n);
      for (std::int64_t h = 0; h < t.shape[t.rank - 2]; ++h) {
        const std::int64_t row = row_offset(t, b, n, h);
        for (std::int64_t d = 0; d < t.shape[t.rank - 1]; ++d, ++index) {
          reference::store(t, row + d,
                           is_seen ? element_of(t.dtype, near_normal(seed, index)) : poison);
        }
      }
    }
  }
}

// ---- Tensors

// ([B,] N, H, D), in the problem's order.
HostTensor make_rows(const KvCacheProblem& p, std::int64_t length, std::int64_t heads,
                     std::int64_t dim, DType dtype) {
  const auto batch = static_cast<std::int64_t>(p.batch());
  std::vector<std::int64_t> stride{length * heads * dim, heads * dim, dim, 1};
  if (p.order == CacheOrder::heads_first) {
    stride = {heads * length * dim, dim, length * dim, 1};
  } else if (p.order == CacheOrder::padded) {
    const std::int64_t row = heads * (dim + kPadding) + kPadding;
    stride = {length * row + kPadding, row, dim + kPadding, 1};
  }
  if (p.packed) {
    return HostTensor(dtype, {length, heads, dim}, {stride.begin() + 1, stride.end()});
  }
  return HostTensor(dtype, {batch, length, heads, dim}, stride);
}

std::int64_t query_rows(const KvCacheProblem& p) {
  return p.packed ? sum_of(p.q_lens) + kRowsBehind : p.q_lens.front();
}

HostTensor make_statistic(const KvCacheProblem& p) {
  return p.packed ? HostTensor(DType::fp32, {p.heads, query_rows(p)})
                  : HostTensor(DType::fp32,
                               {static_cast<std::int64_t>(p.batch()), p.heads, query_rows(p)});
}

// Rows of the caches' entries, and how many entries there are.
struct CacheSize {
  std::int64_t entries;
  std::int64_t rows;
};

// Pages at the beginning of a sequence that are the first one's.
std::int64_t shared_pages(const KvCacheProblem& p, std::size_t b) {
  return !p.shares_pages || b == 0 ? 0 : std::min(p.cached[0], p.cached[b]) / p.page_size;
}

CacheSize cache_size(const KvCacheProblem& p) {
  if (p.page_size == 0) {
    return {static_cast<std::int64_t>(p.batch()) + p.spare, p.capacity};
  }
  std::int64_t pages = p.spare;
  for (std::size_t b = 0; b < p.batch(); ++b) {
    pages += ceil_div(std::int64_t{p.keys(b)}, p.page_size) - shared_pages(p, b);
  }
  return {std::max(pages, std::int64_t{1}), p.page_size};
}

struct CacheLayouts {
  CacheLayout k;
  CacheLayout v;
  std::int64_t elements;
};

CacheLayouts layouts_of(const KvCacheProblem& p) {
  const auto [entries, rows] = cache_size(p);
  const std::int64_t heads = p.kv_heads;
  const auto one = [&](std::int64_t dim) {
    CacheLayout layout{.offset = 0, .shape = {entries, rows, heads, dim}, .stride = {}};
    const std::int64_t padded_row = heads * (dim + kPadding) + 2 * kPadding;
    switch (p.order) {
      case CacheOrder::heads_first:
        layout.stride = {rows * heads * dim, dim, rows * dim, 1};
        break;
      case CacheOrder::padded:
        layout.stride = {rows * padded_row + kPadding, padded_row, dim + kPadding, 1};
        break;
      default:
        layout.stride = {rows * heads * dim, heads * dim, dim, 1};
        break;
    }
    return layout;
  };
  CacheLayouts layouts{.k = one(p.head_dim), .v = one(value_dim_of(p)), .elements = 0};
  const std::int64_t k_entry = layouts.k.stride[0];
  const std::int64_t v_entry = layouts.v.stride[0];
  if (p.order == CacheOrder::interleaved) {
    layouts.v.offset = k_entry;
    layouts.k.stride[0] = layouts.v.stride[0] = k_entry + v_entry;
  } else {
    layouts.v.offset = entries * k_entry;
  }
  layouts.elements = entries * (k_entry + v_entry);
  return layouts;
}

// Pages in random order; garbage beyond a sequence's end, and where another one holds its keys.
HostTensor make_block_table(const KvCacheProblem& p, Random& pick) {
  constexpr std::array kGarbage = {-1, 1 << 30, std::numeric_limits<int>::min(), 77777};
  const std::int64_t max_pages = p.capacity / p.page_size;
  const std::int64_t row = max_pages + (p.order == CacheOrder::padded ? 3 : 0);
  HostTensor table(DType::int32, {static_cast<std::int64_t>(p.batch()), max_pages}, {row, 1});
  const std::vector<int> pages = pick.permutation(static_cast<std::size_t>(cache_size(p).entries));
  auto* const entries = static_cast<int*>(table.view().data);
  std::size_t next = 0;
  for (std::size_t b = 0; b < p.batch(); ++b) {
    int* const its = entries + static_cast<std::int64_t>(b) * row;
    const std::int64_t used = ceil_div(std::int64_t{p.keys(b)}, p.page_size);
    const std::int64_t elsewhere = p.keys_elsewhere(b) / p.page_size;
    const auto is_garbage = [&](std::int64_t i) { return i < elsewhere || i >= used; };
    for (std::int64_t i = 0; i < max_pages; ++i) {
      its[i] = is_garbage(i)            ? kGarbage[static_cast<std::size_t>(i) % kGarbage.size()]
               : i < shared_pages(p, b) ? entries[i]
                                        : pages[next++];
    }
  }
  return table;
}

HostTensor make_tree_mask(const KvCacheProblem& p, Random& pick) {
  HostTensor mask =
      p.packed ? HostTensor(DType::int64, {query_rows(p)})
               : HostTensor(DType::int64, {static_cast<std::int64_t>(p.batch()), query_rows(p)});
  auto* const bits = reinterpret_cast<std::uint64_t*>(mask.data());
  std::generate_n(bits, mask.bytes() / sizeof(*bits), [&] { return pick.bits() & pick.bits(); });
  return mask;
}

HostTensor make_descale(const KvCacheProblem& p, DescalePer per, const SeenRows& seen,
                        Random& pick) {
  const auto value = [&] { return 0.5 + static_cast<double>(pick(0, 100)) / 64; };
  const auto [entries, rows] = cache_size(p);
  const std::int64_t heads = p.kv_heads;
  if (per != DescalePer::row) {
    const auto batch = static_cast<std::int64_t>(p.batch());
    HostTensor descale = per == DescalePer::tensor
                             ? HostTensor(DType::fp32, {1})
                             : HostTensor(DType::fp32, {batch, heads}, {1, batch});
    auto* const values = static_cast<float*>(descale.view().data);
    std::generate_n(values, descale.bytes() / sizeof(float),
                    [&] { return static_cast<float>(value()); });
    return descale;
  }
  HostTensor descale(DType::fp32, {entries, rows, heads}, {rows * heads, 1, rows});
  for (std::int64_t entry = 0; entry < entries; ++entry) {
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t head = 0; head < heads; ++head) {
        reference::store(descale.view(), entry * rows * heads + row + head * rows,
                         seen.has(entry, row) ? value() : poison_of(DType::fp32, row));
      }
    }
  }
  return descale;
}

// Which rows of q belong to a sequence, and which of the caches and of k and v a query sees.
struct Seen {
  SeenRows queries;
  SeenRows slots;   // those of new rows, too
  SeenRows cached;  // the others
  SeenRows added;
};

Seen seen_of(const KvCacheProblem& p, const AttentionWithKvCacheTensors& t) {
  const auto [entries, rows] = cache_size(p);
  const auto batch = static_cast<std::int64_t>(p.batch());
  Seen seen{.queries = SeenRows(batch, query_rows(p)),
            .slots = SeenRows(entries, rows),
            .cached = SeenRows(entries, rows),
            .added = SeenRows(batch, t.k ? t.k->shape[t.k->rank - 3] : 0)};
  for (std::int64_t b = 0; b < batch; ++b) {
    const reference::CachedSequence sequence = reference::sequence_of(t, b);
    for (std::int64_t i = 0; i < sequence.query_count; ++i) {
      seen.queries.add(sequence.batch, sequence.first_query + i);
      for (const std::int64_t j : reference::seen_keys(t, options_of(p, "auto"), sequence, b, i)) {
        const reference::KeyPlace place = sequence.keys[static_cast<std::size_t>(j)];
        const reference::KeyPlace slot = reference::slot_of(t, b, j);
        seen.slots.add(slot.entry, slot.row);
        (place.is_new ? seen.added : seen.cached).add(place.entry, place.row);
      }
    }
  }
  return seen;
}

void add_optional_inputs(const KvCacheProblem& p, KvCacheHostTensors& t, Random& pick) {
  if (p.page_size > 0) {
    t.block_table = make_block_table(p, pick);
  }
  if (p.cache_batch_idx) {
    std::vector<int> rows = pick.permutation(static_cast<std::size_t>(cache_size(p).entries));
    rows.resize(p.batch());
    t.cache_batch_idx = ints(rows);
  }
  if (!p.leftpad.empty()) {
    t.leftpad_k = ints(p.leftpad);
  }
  if (!p.prefix_groups.empty()) {
    t.prefix_groups = ints(p.prefix_groups);
    t.prefix_seqlens = ints(p.prefix_seqlens);
  }
  if (p.packed) {
    std::vector<int> starts(p.batch() + 1, 0);
    std::partial_sum(p.q_lens.begin(), p.q_lens.end(), starts.begin() + 1);
    t.cu_seqlens_q = ints(starts);
  }
  if (p.added) {
    const std::int64_t rows = p.packed ? query_rows(p) : *p.added;
    t.k = make_rows(p, rows, p.kv_heads, p.head_dim, p.cache_dtype);
    t.v = make_rows(p, rows, p.kv_heads, value_dim_of(p), p.cache_dtype);
  }
  if (p.tree) {
    t.tree_mask = make_tree_mask(p, pick);
  }
  if (p.sinks) {
    t.sinks = HostTensor(DType::fp32, {p.heads});
    reference::fill_normal(t.sinks->view(), p.seed * kSeedStep + 5, 2.0);
  }
  if (p.unnormalized) {
    t.row_max = make_statistic(p);
    t.row_sum = make_statistic(p);
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const KvCacheProblem& p) {
  constexpr std::array kOrders = {"rows_first", "heads_first", "interleaved", "padded"};
  constexpr std::array kPers = {"none", "tensor", "sequence", "row"};
  const auto print = [&](const char* name, const std::vector<int>& lengths) {
    out << ' ' << name;
    for (const int length : lengths) {
      out << ' ' << length;
    }
  };
  out << name(p.dtype) << " cache " << name(p.cache_dtype) << " heads " << p.heads << " kv_heads "
      << p.kv_heads << " head_dim " << p.head_dim << " value_dim " << value_dim_of(p);
  print("q_lens", p.q_lens);
  print("cached", p.cached);
  print("leftpad", p.leftpad);
  print("prefix_groups", p.prefix_groups);
  print("prefix_seqlens", p.prefix_seqlens);
  return out << " packed " << p.packed << " added " << p.added.value_or(-1) << " page_size "
             << p.page_size << " capacity " << p.capacity << " spare " << p.spare
             << " shares_pages " << p.shares_pages << " cache_batch_idx " << p.cache_batch_idx
             << " tree " << p.tree << " causal " << p.causal << " window "
             << p.window.left.value_or(-1) << ',' << p.window.right.value_or(-1) << " softcap "
             << p.softcap << " sinks " << p.sinks << " unnormalized " << p.unnormalized
             << " batch_invariant " << p.batch_invariant << " max_seqlen_q " << p.max_seqlen_q
             << " max_seqlen_k " << p.max_seqlen_k << " descale "
             << kPers[static_cast<std::size_t>(p.descale)] << " q_descale "
             << kPers[static_cast<std::size_t>(p.q_descale)] << " order "
             << kOrders[static_cast<std::size_t>(p.order)] << " seed " << p.seed;
}

AttentionWithKvCacheOptions options_of(const KvCacheProblem& p, std::string_view kernel) {
  return {.causal = p.causal,
          .window = p.window,
          .softcap = p.softcap,
          .batch_invariant = p.batch_invariant,
          .max_seqlen_q = p.max_seqlen_q,
          .max_seqlen_k = p.max_seqlen_k,
          .kernel = kernel};
}

AttentionWithKvCacheProblem constraints_of(const KvCacheProblem& p) {
  return {.dtype = p.dtype,
          .cache_dtype = p.cache_dtype,
          .batch = static_cast<std::int64_t>(p.batch()),
          .q_len = query_rows(p),
          .cache_rows = cache_size(p).entries,
          .page_size = p.page_size,
          .capacity = p.capacity,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .value_dim = p.value_dim,
          .causal = p.causal,
          .window = p.window.left || p.window.right,
          .softcap = p.softcap > 0,
          .sinks = p.sinks,
          .packed = p.packed,
          .unnormalized = p.unnormalized,
          .left_padding = !p.leftpad.empty(),
          .shared_prefix = !p.prefix_groups.empty(),
          .new_rows = p.added.has_value(),
          .tree_mask = p.tree,
          .row_descales = p.descale == DescalePer::row,
          .batch_invariant = p.batch_invariant,
          .max_seqlen_q = p.max_seqlen_q,
          .max_seqlen_k = p.max_seqlen_k,
          .window_left = p.window.left.value_or(-1)};
}

KvCacheHostTensors make_tensors(const KvCacheProblem& p) {
  Random pick(p.seed);
  const CacheLayouts layouts = layouts_of(p);
  KvCacheHostTensors t{.q = make_rows(p, query_rows(p), p.heads, p.head_dim, p.dtype),
                       .caches = HostTensor(p.cache_dtype, {layouts.elements}),
                       .o = make_rows(p, query_rows(p), p.heads, value_dim_of(p), p.output_dtype()),
                       .lse = make_statistic(p),
                       .cache_seqlens = ints(p.cached),
                       .k_layout = layouts.k,
                       .v_layout = layouts.v,
                       .block_table = {},
                       .cache_batch_idx = {},
                       .leftpad_k = {},
                       .prefix_groups = {},
                       .prefix_seqlens = {},
                       .cu_seqlens_q = {},
                       .k = {},
                       .v = {},
                       .q_descale = {},
                       .k_descale = {},
                       .v_descale = {},
                       .tree_mask = {},
                       .sinks = {},
                       .row_max = {},
                       .row_sum = {}};
  add_optional_inputs(p, t, pick);
  for (HostTensor* const output : t.outputs()) {
    std::memset(output->data(), std::to_integer<int>(kUnwritten), output->bytes());
  }
  const Seen seen = seen_of(p, t.views());
  const std::uint64_t seed = p.seed * kSeedStep;
  fill_rows(t.q.view(), seen.queries, seed);
  fill_rows(t.cache(t.k_layout), seen.cached, seed + 1);
  fill_rows(t.cache(t.v_layout), seen.cached, seed + 2);
  if (t.k) {
    fill_rows(t.k->view(), seen.added, seed + 3);
    fill_rows(t.v->view(), seen.added, seed + 4);
  }
  if (p.descale != DescalePer::none) {
    t.k_descale = make_descale(p, p.descale, seen.slots, pick);
    t.v_descale = make_descale(p, p.descale, seen.slots, pick);
  }
  if (p.q_descale != DescalePer::none) {
    t.q_descale = make_descale(p, p.q_descale, seen.slots, pick);
  }
  return t;
}

}  // namespace tilewright::test
