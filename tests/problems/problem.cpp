#include "problems/problem.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

namespace tilewright::test {
namespace {

using reference::HostTensor;

std::int64_t value_dim_of(const Problem& p) { return p.value_dim == 0 ? p.head_dim : p.value_dim; }

// Strides of a (B, N, H, D) tensor.
std::array<std::int64_t, 4> strides_of(MemoryOrder order, std::int64_t seq, std::int64_t heads,
                                       std::int64_t dim, bool is_kv) {
  constexpr std::int64_t kPadding = 24;
  switch (order) {
    case MemoryOrder::heads_first:
      return {heads * seq * dim, dim, seq * dim, 1};
    case MemoryOrder::padded_rows: {
      const std::int64_t row = heads * (dim + 8) + kPadding;
      return {seq * row + 2 * kPadding, row, dim + 8, 1};
    }
    case MemoryOrder::broadcast_kv:
      if (is_kv) {  // one head and batch, seen many times
        return {0, dim, 0, 1};
      }
      break;
    case MemoryOrder::dense:
      break;
  }
  return {seq * heads * dim, heads * dim, dim, 1};
}

enum class Role { query, key };

HostTensor make_rows(const Problem& p, Role role, std::int64_t dim, DType dtype) {
  const bool is_kv = role == Role::key;
  const std::int64_t length = is_kv ? p.kv_len : p.q_len;
  const std::int64_t heads = is_kv ? p.kv_heads : p.heads;
  const auto stride = strides_of(p.order, length, heads, dim, is_kv);
  if (!(is_kv ? p.kv_lens : p.q_lens).empty()) {
    return HostTensor(dtype, {length, heads, dim}, {stride[1], stride[2], stride[3]});
  }
  return HostTensor(dtype, {p.batch, length, heads, dim}, {stride.begin(), stride.end()});
}

// A number for each row of q.
HostTensor make_statistic(const Problem& p) {
  return p.q_lens.empty() ? HostTensor(DType::fp32, {p.batch, p.heads, p.q_len})
                          : HostTensor(DType::fp32, {p.heads, p.q_len});
}

std::optional<HostTensor> make_lengths(const std::vector<int>& lengths) {
  if (lengths.empty()) {
    return std::nullopt;
  }
  HostTensor tensor(DType::int32, {static_cast<std::int64_t>(lengths.size())});
  std::memcpy(tensor.data(), lengths.data(), tensor.bytes());
  return tensor;
}

// 0 and the lengths' running sum.
std::optional<HostTensor> make_cu_seqlens(const std::vector<int>& lengths) {
  if (lengths.empty()) {
    return std::nullopt;
  }
  std::vector<int> starts(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), starts.begin() + 1);
  return make_lengths(starts);
}

// Calls with the offset of each row of a ([B,] N, H, D) tensor and its indices (batch, n).
template <typename Function>
void for_each_row(const TensorView& t, Function function) {
  const bool has_batch = t.rank == 4;
  for (std::int64_t b = 0; b < (has_batch ? t.shape[0] : 1); ++b) {
    for (std::int64_t n = 0; n < t.shape[t.rank - 3]; ++n) {
      for (std::int64_t h = 0; h < t.shape[t.rank - 2]; ++h) {
        const std::int64_t offset =
            (has_batch ? b * t.stride[0] : 0) + n * t.stride[t.rank - 3] + h * t.stride[t.rank - 2];
        function(offset, b, n);
      }
    }
  }
}

// Rows of which the first element changes along the sequence. Where Q's are positive and K's grow,
// the running maximum rises with every tile of keys; where K's fall, from the last tile to the
// first.
void fill_sloping(HostTensor& tensor, std::uint64_t seed, double slope) {
  reference::fill_normal(tensor.view(), seed);
  for_each_row(tensor.view(), [&](std::int64_t offset, std::int64_t, std::int64_t n) {
    reference::store(tensor.view(), offset, 1.0 + slope * static_cast<double>(n));
  });
}

// Rows whose elements all have this sign.
void fill_one_sided(HostTensor& tensor, std::uint64_t seed, double sign) {
  reference::fill_normal(tensor.view(), seed);
  const std::int64_t dim = tensor.view().shape[tensor.view().rank - 1];
  for_each_row(tensor.view(), [&](std::int64_t offset, std::int64_t, std::int64_t) {
    for (std::int64_t d = offset; d < offset + dim; ++d) {
      reference::store(tensor.view(), d, sign * std::abs(reference::load(tensor.view(), d)));
    }
  });
}

void fill(HostTensor& tensor, const Problem& p, std::uint64_t which, bool is_value) {
  constexpr double kLarge = 8.0;
  constexpr double kSlope = 0.02;
  constexpr double kSteepSlope = 0.5;  // each tile's largest exponential dwarfs the one's before
  constexpr std::uint64_t kKeys = 1;
  const std::uint64_t seed = 3 * p.seed + which;
  switch (p.inputs) {
    case Inputs::normal:
      return reference::fill_normal(tensor.view(), seed);
    case Inputs::large:
      return reference::fill_normal(tensor.view(), seed, is_value ? 100.0 : kLarge);
    case Inputs::constant:
      return reference::fill_constant(tensor.view(), 0.75 + static_cast<double>(which));
    case Inputs::rising:
      return fill_sloping(tensor, seed, kSlope);
    case Inputs::falling:
      return fill_sloping(tensor, seed, which == kKeys ? -kSteepSlope : kSlope);
    case Inputs::negative:
      return is_value ? reference::fill_normal(tensor.view(), seed)
                      : fill_one_sided(tensor, seed, which == kKeys ? -1.0 : 1.0);
  }
}

// Rows [first, end) of a batch entry.
struct RowRange {
  std::int64_t entry;
  std::int64_t first;
  std::int64_t end;
};

RowRange sequence_rows(std::int64_t b, const std::vector<int>& lengths, std::int64_t length) {
  if (lengths.empty()) {
    return {b, 0, length};
  }
  const std::int64_t first = std::accumulate(lengths.begin(), lengths.begin() + b, std::int64_t{0});
  return {0, first, first + lengths[static_cast<std::size_t>(b)]};
}

// The keys of sequence b that at least one of its queries sees. The last query stands at the last
// key, and the first one's window begins before all others'.
RowRange visible_keys(const Problem& p, std::int64_t b) {
  const RowRange queries = sequence_rows(b, p.q_lens, p.q_len);
  RowRange keys = sequence_rows(b, p.kv_lens, p.kv_len);
  if (!p.used_kv.empty()) {
    keys.end = keys.first + p.used_kv[static_cast<std::size_t>(b)];
  }
  const std::int64_t q_len = queries.end - queries.first;
  if (q_len == 0) {
    keys.end = keys.first;
  } else if (p.window.left) {
    keys.first = std::max(keys.first, keys.end - q_len - *p.window.left);
  }
  return keys;
}

// NaN and both infinities, alternately, in every row that lies in none of the ranges.
void poison_all_but(HostTensor& tensor, const std::vector<RowRange>& ranges) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr std::array kPoisons = {std::numeric_limits<double>::quiet_NaN(), kInf, -kInf};
  const TensorView t = tensor.view();
  for_each_row(t, [&](std::int64_t offset, std::int64_t b, std::int64_t n) {
    const bool is_seen = std::ranges::any_of(ranges, [&](const RowRange& range) {
      return range.entry == b && range.first <= n && n < range.end;
    });
    for (std::int64_t d = 0; !is_seen && d < t.shape[t.rank - 1]; ++d) {
      reference::store(t, offset + d, kPoisons[static_cast<std::size_t>(n) % kPoisons.size()]);
    }
  });
}

void poison_what_nobody_sees(HostTensors& tensors, const Problem& p) {
  std::vector<RowRange> queries;
  std::vector<RowRange> keys;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    queries.push_back(sequence_rows(b, p.q_lens, p.q_len));
    keys.push_back(visible_keys(p, b));
  }
  poison_all_but(tensors.q, queries);
  if (p.order != MemoryOrder::broadcast_kv) {  // there, another sequence may see them
    poison_all_but(tensors.k, keys);
    poison_all_but(tensors.v, keys);
  }
}

void store_specials(HostTensors& tensors, const Problem& p) {
  for (const Special& special : p.specials) {
    if (special.in == Special::In::sinks) {
      for (std::int64_t head = special.first; head < special.end; ++head) {
        reference::store(tensors.sinks->view(), head, special.value);
      }
      continue;
    }
    const TensorView t = (special.in == Special::In::q ? tensors.q : tensors.k).view();
    for_each_row(t, [&](std::int64_t offset, std::int64_t, std::int64_t n) {
      for (std::int64_t d = 0; special.first <= n && n < special.end && d < p.head_dim; ++d) {
        reference::store(t, offset + d, special.value);
      }
    });
  }
}

void print_specials(std::ostream& out, const std::vector<Special>& specials) {
  constexpr std::array kTensors = {"q", "k", "sinks"};
  for (const Special& special : specials) {
    out << ' ' << kTensors[static_cast<std::size_t>(special.in)] << '[' << special.first << ':'
        << special.end << "] = " << special.value;
  }
}

void print_lengths(std::ostream& out, const char* name, const std::vector<int>& lengths) {
  if (lengths.empty()) {
    return;
  }
  out << ' ' << name << ' ' << lengths.front();
  for (std::size_t i = 1; i < lengths.size(); ++i) {
    out << ',' << lengths[i];
  }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Problem& p) {
  constexpr std::array kOrders = {"dense", "heads_first", "padded_rows", "broadcast_kv"};
  constexpr std::array kInputs = {"normal", "large", "constant", "rising", "falling", "negative"};
  out << name(p.dtype) << " batch " << p.batch << " q_len " << p.q_len << " kv_len " << p.kv_len
      << " heads " << p.heads << " kv_heads " << p.kv_heads << " head_dim " << p.head_dim
      << " value_dim " << value_dim_of(p) << " causal " << p.causal << " window "
      << p.window.left.value_or(-1) << ',' << p.window.right.value_or(-1) << " softcap "
      << p.softcap << " sinks " << p.sinks;
  print_lengths(out, "q_lens", p.q_lens);
  print_lengths(out, "kv_lens", p.kv_lens);
  print_lengths(out, "used_kv", p.used_kv);
  out << " unnormalized " << p.unnormalized << " batch_invariant " << p.batch_invariant << " order "
      << kOrders[static_cast<std::size_t>(p.order)] << " inputs "
      << kInputs[static_cast<std::size_t>(p.inputs)] << " seed " << p.seed;
  if (p.scale) {
    out << " scale " << *p.scale;
  }
  print_specials(out, p.specials);
  return out;
}

AttentionOptions options_of(const Problem& p, std::string_view kernel) {
  return {.causal = p.causal,
          .window = p.window,
          .scale = p.scale,
          .softcap = p.softcap,
          .batch_invariant = p.batch_invariant,
          .kernel = kernel};
}

AttentionProblem constraints_of(const Problem& p) {
  return {.dtype = p.dtype,
          .batch = p.batch,
          .q_len = p.q_len,
          .kv_len = p.kv_len,
          .heads = p.heads,
          .kv_heads = p.kv_heads,
          .head_dim = p.head_dim,
          .value_dim = p.value_dim,
          .causal = p.causal,
          .window = p.window.left || p.window.right,
          .softcap = p.softcap > 0,
          .sinks = p.sinks,
          .packed = !p.q_lens.empty() || !p.kv_lens.empty() || !p.used_kv.empty(),
          .packed_queries = !p.q_lens.empty(),
          .packed_keys = !p.kv_lens.empty(),
          .unnormalized = p.unnormalized,
          .batch_invariant = p.batch_invariant};
}

HostTensors make_tensors(const Problem& p) {
  HostTensors tensors{
      .q = make_rows(p, Role::query, p.head_dim, p.dtype),
      .k = make_rows(p, Role::key, p.head_dim, p.dtype),
      .v = make_rows(p, Role::key, value_dim_of(p), p.dtype),
      .o = make_rows(p, Role::query, value_dim_of(p), p.unnormalized ? DType::fp32 : p.dtype),
      .lse = make_statistic(p),
      .sinks = std::nullopt,
      .cu_seqlens_q = make_cu_seqlens(p.q_lens),
      .cu_seqlens_k = make_cu_seqlens(p.kv_lens),
      .seqused_k = make_lengths(p.used_kv),
      .row_max = std::nullopt,
      .row_sum = std::nullopt};
  if (p.sinks) {
    tensors.sinks = HostTensor(DType::fp32, {p.heads});
    reference::fill_normal(tensors.sinks->view(), 3 * p.seed + 1000, 2.0);
  }
  if (p.unnormalized) {
    tensors.row_max = make_statistic(p);
    tensors.row_sum = make_statistic(p);
  }
  fill(tensors.q, p, 0, false);
  fill(tensors.k, p, 1, false);
  fill(tensors.v, p, 2, true);
  poison_what_nobody_sees(tensors, p);
  store_specials(tensors, p);
  for (HostTensor* const output : tensors.outputs()) {
    std::memset(output->data(), std::to_integer<int>(kUnwritten), output->bytes());
  }
  return tensors;
}

}  // namespace tilewright::test
