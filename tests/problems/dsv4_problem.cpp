#include "problems/dsv4_problem.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "common/ceil_div.hpp"
#include "problems/dsv4_rows.hpp"
#include "problems/problem.hpp"
#include "problems/random.hpp"
#include "reference/dsv4_attention.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr std::int64_t kDim = kDsv4HeadDim;
constexpr std::int64_t kPadding = 16;      // elements: 16 bytes of the smallest
constexpr std::int64_t kRowsBehind = 3;    // the last of packed requests
constexpr std::int64_t kPositions = 300;   // of the rotation
constexpr std::uint64_t kSeedStep = 1000;  // between tensors
constexpr std::array kGarbage = {-7, 1 << 30, std::numeric_limits<int>::min(), 77777};

// A new token: the `index`-th of its request, and its row where tokens are packed.
struct Token {
  std::size_t request;
  std::int64_t index;
  std::int64_t row;

  std::int64_t offset(const ConstTensorView& t, bool is_packed) const {
    return is_packed ? row * t.stride[0]
                     : static_cast<std::int64_t>(request) * t.stride[0] + index * t.stride[1];
  }
};

std::vector<Token> tokens_of(const Dsv4Problem& p) {
  std::vector<Token> tokens;
  for (std::size_t b = 0; b < p.batch(); ++b) {
    for (std::int64_t i = 0; i < p.q_lens[b]; ++i) {
      tokens.push_back({.request = b, .index = i, .row = static_cast<std::int64_t>(tokens.size())});
    }
  }
  return tokens;
}

std::int64_t token_rows(const Dsv4Problem& p) {
  return p.packed ? std::accumulate(p.q_lens.begin(), p.q_lens.end(), std::int64_t{0}) + kRowsBehind
                  : p.q_lens.front();
}

// (B, Nq, sizes ...), or (Tq, sizes ...) if packed. `padding` elements lie between neighbours of
// each dimension but the last; of `sizes` the last is contiguous.
HostTensor token_tensor(const Dsv4Problem& p, DType dtype, std::vector<std::int64_t> sizes,
                        std::int64_t padding) {
  std::vector<std::int64_t> shape{token_rows(p)};
  if (!p.packed) {
    shape.insert(shape.begin(), static_cast<std::int64_t>(p.batch()));
  }
  const std::size_t outer = shape.size();
  shape.insert(shape.end(), sizes.begin(), sizes.end());
  std::vector<std::int64_t> stride(shape.size());
  std::int64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    step += i < outer || i + 1 < shape.size() ? (p.padded ? padding : 0) : 0;
    stride[i] = step;
    step *= shape[i];
  }
  HostTensor tensor(dtype, shape, stride);
  std::memset(tensor.data(), std::to_integer<int>(kUnwritten), tensor.bytes());
  return tensor;
}

HostTensor ints(const std::vector<int>& values) {
  HostTensor tensor(DType::int32, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.data(), values.data(), tensor.bytes());
  return tensor;
}

void fill_with_garbage(HostTensor& tensor) {
  auto* const values = reinterpret_cast<int*>(tensor.data());
  for (std::size_t i = 0; i < tensor.bytes() / sizeof(int); ++i) {
    values[i] = kGarbage[i % kGarbage.size()];
  }
}

// An integer for each token, which value(token) gives.
template <typename F>
HostTensor token_ints(const Dsv4Problem& p, F value) {
  HostTensor tensor = token_tensor(p, DType::int32, {}, 1);
  fill_with_garbage(tensor);
  for (const Token& token : tokens_of(p)) {
    static_cast<int*>(tensor.view().data)[token.offset(tensor.view(), p.packed)] = value(token);
  }
  return tensor;
}

// ---- Scopes

int end_of(const Dsv4ScopeCase& scope, const Token& token) {
  return scope.ends[token.request] + static_cast<int>(token.index) * scope.advance;
}

// The rows that request b needs in its pages.
std::int64_t rows_of(const Dsv4Problem& p, const Dsv4ScopeCase& scope, std::size_t b) {
  if (scope.ring > 0) {
    return scope.ring;
  }
  return std::max(0, scope.ends[b] + std::max(0, p.q_lens[b] - 1) * scope.advance);
}

std::int64_t max_pages_of(const Dsv4Problem& p, const Dsv4ScopeCase& scope) {
  std::int64_t most = std::max(std::int64_t{1}, ceil_div(scope.capacity, scope.page_size));
  for (std::size_t b = 0; scope.has_table && b < p.batch(); ++b) {
    most = std::max(most, ceil_div(rows_of(p, scope, b), scope.page_size));
  }
  return most;
}

std::int64_t page_count(const Dsv4Problem& p, const Dsv4ScopeCase& scope) {
  if (scope.is_list()) {
    return scope.pages;
  }
  std::int64_t pages = scope.pages;
  for (std::size_t b = 0; b < p.batch(); ++b) {
    pages += scope.has_table ? ceil_div(rows_of(p, scope, b), scope.page_size) : 1;
  }
  return std::max(pages, std::int64_t{1});
}

// Pages in random order; garbage beyond those that a request needs.
HostTensor make_table(const Dsv4Problem& p, const Dsv4ScopeCase& scope, Random& pick) {
  const std::int64_t columns = max_pages_of(p, scope);
  HostTensor table(DType::int32, {static_cast<std::int64_t>(p.batch()), columns},
                   {columns + (p.padded ? 3 : 0), 1});
  fill_with_garbage(table);
  const std::vector<int> pages = pick.permutation(static_cast<std::size_t>(page_count(p, scope)));
  std::size_t next = 0;
  for (std::size_t b = 0; b < p.batch(); ++b) {
    int* const its = static_cast<int*>(table.view().data) +
                     static_cast<std::int64_t>(b) * table.view().stride[0];
    for (std::int64_t i = 0; i < ceil_div(rows_of(p, scope, b), scope.page_size); ++i) {
      its[i] = pages[next++];
    }
  }
  return table;
}

HostTensor make_list(const Dsv4Problem& p, const Dsv4ScopeCase& scope, Random& pick) {
  HostTensor list = token_tensor(p, DType::int32, {scope.entries}, 4);
  fill_with_garbage(list);
  for (const Token& token : tokens_of(p)) {
    int* const its = static_cast<int*>(list.view().data) + token.offset(list.view(), p.packed);
    const std::int64_t count = scope.has_lengths ? scope.ends[token.request] : scope.entries;
    for (std::int64_t j = 0; j < count; ++j) {
      const bool is_none = scope.keys == Dsv4Keys::empty_list || pick.one_in(8);
      const auto slot = static_cast<int>(pick(0, scope.pages * scope.page_size - 1));
      its[j] = is_none ? -1 : j > 0 && pick.one_in(10) ? its[j - 1] : slot;
    }
  }
  return list;
}

// A scope without values in its rows.
std::optional<Dsv4ScopeSet<HostTensor>> make_scope(const Dsv4Problem& p, const Dsv4ScopeCase& scope,
                                                   Random& pick) {
  if (scope.keys == Dsv4Keys::none) {
    return std::nullopt;
  }
  Dsv4ScopeSet<HostTensor> set{
      .rows = make_cache(scope.format, page_count(p, scope), scope.page_size, p.padded),
      .range_end = {},
      .range_begin = {},
      .block_table = {},
      .indices = {},
      .list_lengths = {},
      .ring = scope.ring,
      .most_keys = scope.most_keys};
  if (scope.is_list()) {
    set.indices = make_list(p, scope, pick);
    if (scope.has_lengths) {
      set.list_lengths = ints(scope.ends);
    }
    return set;
  }
  set.range_end = token_ints(p, [&](const Token& token) { return end_of(scope, token); });
  if (scope.most > 0) {
    set.range_begin = token_ints(
        p, [&](const Token& token) { return std::max(0, end_of(scope, token) - scope.most); });
  }
  if (scope.has_table) {
    set.block_table = make_table(p, scope, pick);
  }
  return set;
}

// Values in the rows that a token sees.
void fill_scope(const Dsv4Problem& p, const Dsv4AttentionTensors& t,
                const std::optional<Dsv4Scope>& scope, const TensorView& rows, double deviation,
                std::uint64_t seed) {
  std::vector<std::int64_t> slots;
  for (const Token& token : tokens_of(p)) {
    const auto its =
        reference::seen_slots(t, scope, static_cast<std::int64_t>(token.request), token.index);
    slots.insert(slots.end(), its.begin(), its.end());
  }
  std::ranges::sort(slots);
  const auto rest = std::ranges::unique(slots);
  slots.erase(rest.begin(), rest.end());
  fill_rows(rows, slots, {.seed = seed, .deviation = deviation, .odd_scales = p.odd_scales});
}

// ---- The other tensors

// Nearly normal values in the rows of tokens; `count` lie one after the other at `step`.
void fill_tokens(const Dsv4Problem& p, HostTensor& tensor, std::int64_t count, std::int64_t step,
                 double deviation, std::uint64_t seed) {
  std::uint64_t index = 0;
  for (const Token& token : tokens_of(p)) {
    const std::int64_t first = token.offset(tensor.view(), p.packed);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t d = 0; d < kDim; ++d, ++index) {
        reference::store(tensor.view(), first + i * step + d, deviation * near_normal(seed, index));
      }
    }
  }
}

HostTensor make_statistic(const Dsv4Problem& p) {
  HostTensor tensor =
      p.packed
          ? HostTensor(DType::fp32, {p.heads, token_rows(p)})
          : HostTensor(DType::fp32, {static_cast<std::int64_t>(p.batch()), p.heads, token_rows(p)});
  std::memset(tensor.data(), std::to_integer<int>(kUnwritten), tensor.bytes());
  return tensor;
}

HostTensor make_sinks(const Dsv4Problem& p) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr std::array kSpecials = {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()};
  HostTensor sinks(DType::fp32, {p.heads});
  reference::fill_normal(sinks.view(), p.seed * kSeedStep + 5, 2.0);
  for (std::int64_t h = 0; p.sinks == Dsv4Sinks::special && h < p.heads; h += 2) {
    reinterpret_cast<float*>(sinks.data())[h] =
        kSpecials[static_cast<std::size_t>(h / 2) % kSpecials.size()];
  }
  return sinks;
}

void add_rotation(const Dsv4Problem& p, Dsv4HostTensors& t, Random& pick) {
  constexpr std::int64_t kPairs = kDsv4RotaryDims / 2;
  const std::int64_t row = kPairs + (p.padded ? 4 : 0);
  t.rotary_cos = HostTensor(DType::fp32, {kPositions, kPairs}, {row, 1});
  t.rotary_sin = t.rotary_cos;
  t.positions = token_tensor(p, DType::int64, {}, 1);
  for (HostTensor* const table : {&*t.rotary_cos, &*t.rotary_sin}) {
    std::memset(table->data(), 0xff, table->bytes());
  }
  for (const Token& token : tokens_of(p)) {
    const std::int64_t position = pick(0, kPositions - 1);
    static_cast<std::int64_t*>(
        t.positions->view().data)[token.offset(t.positions->view(), p.packed)] = position;
    for (std::int64_t pair = 0; pair < kPairs; ++pair) {
      const double angle =
          3 * near_normal(p.seed, static_cast<std::uint64_t>(position * kPairs + pair));
      reference::store(t.rotary_cos->view(), position * row + pair, std::cos(angle));
      reference::store(t.rotary_sin->view(), position * row + pair, std::sin(angle));
    }
  }
}

void add_optional_tensors(const Dsv4Problem& p, Dsv4HostTensors& t, Random& pick) {
  if (p.packed) {
    std::vector<int> starts(p.batch() + 1, 0);
    std::partial_sum(p.q_lens.begin(), p.q_lens.end(), starts.begin() + 1);
    t.cu_seqlens_q = ints(starts);
  }
  if (p.fresh_rows) {
    t.fresh_rows = token_tensor(p, p.dtype, {kDim}, kPadding);
    fill_tokens(p, *t.fresh_rows, 1, 0, p.key_deviation, p.seed * kSeedStep + 3);
  }
  if (p.sinks != Dsv4Sinks::none) {
    t.sinks = make_sinks(p);
  }
  if (p.unnormalized) {
    t.row_max = make_statistic(p);
    t.row_sum = make_statistic(p);
  }
  if (p.inverse_rope) {
    add_rotation(p, t, pick);
  }
  if (p.e4m3_output) {
    t.o_scale = token_tensor(p, DType::fp32, {p.heads, kDim / 128}, 2);
  }
}

// ---- Text and constraints

std::ostream& operator<<(std::ostream& out, const Dsv4ScopeCase& scope) {
  constexpr std::array kKeys = {"none", "range", "list", "empty_list"};
  out << kKeys[static_cast<std::size_t>(scope.keys)];
  if (scope.keys == Dsv4Keys::none) {
    return out;
  }
  out << ' ' << name(scope.format) << " page_size=" << scope.page_size << " ends=";
  for (const int end : scope.ends) {
    out << end << ',';
  }
  return out << " advance=" << scope.advance << " most=" << scope.most
             << " has_table=" << scope.has_table << " capacity=" << scope.capacity
             << " ring=" << scope.ring << " most_keys=" << scope.most_keys
             << " pages=" << scope.pages << " entries=" << scope.entries
             << " has_lengths=" << scope.has_lengths;
}

std::int64_t most_keys_of(const Dsv4Problem& p, const Dsv4ScopeCase& scope) {
  if (scope.is_list()) {
    return scope.entries;
  }
  const std::int64_t rows = scope.ring > 0 ? scope.ring : scope.page_size * max_pages_of(p, scope);
  return scope.most_keys > 0 ? std::min<std::int64_t>(scope.most_keys, rows) : rows;
}

Dsv4ScopeProblem constraints_of(const Dsv4Problem& p, const Dsv4ScopeCase& scope) {
  using Keys = Dsv4ScopeProblem::Keys;
  if (scope.keys == Dsv4Keys::none) {
    return {};
  }
  return {.keys = scope.is_list() ? Keys::list : Keys::range,
          .format = scope.format,
          .pages = page_count(p, scope),
          .page_size = scope.page_size,
          .most_keys = most_keys_of(p, scope)};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Dsv4Problem& p) {
  constexpr std::array kSinks = {"none", "normal", "special"};
  out << name(p.dtype) << " heads=" << p.heads << " q_lens=";
  for (const int q_len : p.q_lens) {
    out << q_len << ',';
  }
  return out << " packed=" << p.packed << " window=(" << p.window << ") compressed=("
             << p.compressed << ") fresh_rows=" << p.fresh_rows
             << " sinks=" << kSinks[static_cast<std::size_t>(p.sinks)]
             << " lse_counts_sink=" << p.lse_counts_sink << " unnormalized=" << p.unnormalized
             << " inverse_rope=" << p.inverse_rope << " e4m3_output=" << p.e4m3_output
             << " padded=" << p.padded << " odd_scales=" << p.odd_scales
             << " key_deviation=" << p.key_deviation
             << " compressed_deviation=" << p.compressed_deviation
             << " scale=" << p.scale.value_or(-1.0f) << " seed=" << p.seed;
}

Dsv4AttentionOptions options_of(const Dsv4Problem& p, std::string_view kernel) {
  return {.scale = p.scale, .lse_counts_sink = p.lse_counts_sink, .kernel = kernel};
}

Dsv4AttentionProblem constraints_of(const Dsv4Problem& p) {
  return {.dtype = p.dtype,
          .batch = static_cast<std::int64_t>(p.batch()),
          .q_len = token_rows(p),
          .heads = p.heads,
          .window = constraints_of(p, p.window),
          .compressed = constraints_of(p, p.compressed),
          .packed = p.packed,
          .fresh_rows = p.fresh_rows,
          .sinks = p.sinks != Dsv4Sinks::none,
          .unnormalized = p.unnormalized,
          .inverse_rope = p.inverse_rope,
          .e4m3_output = p.e4m3_output};
}

Dsv4HostTensors make_tensors(const Dsv4Problem& p) {
  Random pick(p.seed);
  const DType o_dtype = p.unnormalized ? DType::fp32 : p.e4m3_output ? DType::e4m3 : p.dtype;
  Dsv4HostTensors t{.q = token_tensor(p, p.dtype, {p.heads, kDim}, kPadding),
                    .o = token_tensor(p, o_dtype, {p.heads, kDim}, kPadding),
                    .lse = make_statistic(p),
                    .window = make_scope(p, p.window, pick),
                    .compressed = make_scope(p, p.compressed, pick),
                    .fresh_rows = {},
                    .sinks = {},
                    .row_max = {},
                    .row_sum = {},
                    .rotary_cos = {},
                    .rotary_sin = {},
                    .positions = {},
                    .o_scale = {},
                    .cu_seqlens_q = {}};
  const std::uint64_t seed = p.seed * kSeedStep;
  fill_tokens(p, t.q, p.heads, t.q.view().stride[t.q.view().rank - 2], 1.0, seed);
  add_optional_tensors(p, t, pick);
  const Dsv4AttentionTensors views = t.views();
  if (t.window) {
    fill_scope(p, views, views.window, t.window->rows.view(), p.key_deviation, seed + 1);
  }
  if (t.compressed) {
    fill_scope(p, views, views.compressed, t.compressed->rows.view(),
               p.key_deviation * p.compressed_deviation, seed + 7);
  }
  return t;
}

}  // namespace tilewright::test
