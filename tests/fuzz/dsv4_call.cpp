// Calls of dsv4_attention(), and what they must give.
#include "fuzz/dsv4_call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "fuzz/attention_parts.hpp"
#include "fuzz/check.hpp"
#include "reference/dsv4_attention.hpp"
#include "reference/kv_rows.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::int64_t kDim = kDsv4HeadDim;
constexpr std::int64_t kGroup = 128;  // values of E4M3 output with one scale
constexpr std::array<std::int64_t, 6> kWildInts = {
    -1, -2, 1, 100, std::numeric_limits<int>::max(), std::numeric_limits<int>::min()};

double largest_of(const reference::HostTensor& values) {
  double largest = 0;
  for (const std::int64_t offset : byte_offsets(values.view())) {
    const double value = reference::load(
        values.view(), offset / static_cast<std::int64_t>(size_bytes(values.view().dtype)));
    largest = std::isnan(value) ? largest : std::max(largest, std::abs(value));
  }
  return largest;
}

// The values of all rows of a cache, in the order of their slots.
reference::HostTensor values_of(const ConstTensorView& rows) {
  std::vector<std::int64_t> slots(static_cast<std::size_t>(rows.shape[0] * rows.shape[1]));
  std::iota(slots.begin(), slots.end(), std::int64_t{0});
  const auto count = static_cast<std::int64_t>(slots.size());
  reference::HostTensor values(DType::fp32, {count, kDim});
  reference::dequantize_kv_rows(
      {.rows = rows,
       .out = values.view(),
       .slot_mapping = contiguous(slots.data(), DType::int64, std::array{count})});
  return values;
}

}  // namespace

Dsv4Call::Dsv4Call(Choices& choices, Arena& arena) : Call(choices, arena) {
  dtype_ = choices_.coin() ? DType::fp32 : DType::bf16;
  batch_ = choices_.between(1, 2);
  tokens_ = choices_.between(1, 3);
  heads_ = choices_.between(1, 2);
  is_packed_ = choices_.one_in(3);
  is_unnormalized_ = choices_.one_in(4);
  is_quantized_ = !is_unnormalized_ && choices_.one_in(4);
  add_queries();
  add_scope(0);
  add_scope(1);
  add_others();
  if (choices_.coin()) {
    options_.scale = 0.02f * static_cast<float>(choices_.below(5));
  }
  options_.lse_counts_sink = choices_.coin();
  options_.check_values = choices_.coin();
  options_.kernel = choices_.coin() ? "cpu" : "auto";
}

void Dsv4Call::add_of_tokens(std::string_view name, DType dtype, std::vector<std::int64_t> sizes,
                             Strides strides, bool is_output, bool is_given) {
  sizes.insert(sizes.begin(), tokens_);
  if (!is_packed_) {
    sizes.insert(sizes.begin(), batch_);
  }
  add_optional(name, dtype, sizes, strides, is_output, is_given);
}

void Dsv4Call::add_queries() {
  const DType o_dtype = is_unnormalized_ ? DType::fp32 : is_quantized_ ? DType::e4m3 : dtype_;
  const std::int64_t tokens = tokens_;
  if (is_packed_) {
    add("q", dtype_, {tokens, heads_, kDim}, Strides::rows, false);
    add("o", o_dtype, {tokens, heads_, kDim}, Strides::rows, true);
  } else {
    add("q", dtype_, {batch_, tokens, heads_, kDim}, Strides::rows, false);
    add("o", o_dtype, {batch_, tokens, heads_, kDim}, Strides::rows, true);
  }
  Numbers starts = {0};
  for (std::int64_t b = 0; b < batch_; ++b) {
    starts.push_back(choices_.between(starts.back(), tokens_));
  }
  contents_.emplace_back("cu_seqlens_q", starts);
  add_optional("cu_seqlens_q", DType::int32, {batch_ + 1}, Strides::contiguous, false, is_packed_);
}

// Mostly right: what ranges and lists hold may be more than there is.
void Dsv4Call::add_scope(std::size_t scope) {
  constexpr std::array kFormats = {KvRowFormat::bf16, KvRowFormat::e4m3_bf16, KvRowFormat::e4m3,
                                   KvRowFormat::e2m1};
  const Dsv4Names& names = kDsv4Names[scope];
  const bool is_given = !choices_.one_in(4);
  const bool is_list = choices_.coin();
  const bool has_table = !is_list && choices_.coin();
  const KvRowFormat format = choices_.one_of(kFormats);
  const std::int64_t page_size = choices_.between(1, 4);
  const std::int64_t pages = has_table || is_list ? choices_.between(1, 3) : batch_;
  const std::int64_t max_pages = choices_.between(1, 3);
  const bool is_bf16 = format == KvRowFormat::bf16;
  add_optional(names.rows, is_bf16 ? DType::bf16 : DType::u8,
               {pages, page_size, is_bf16 ? kDim : kv_row_bytes(format)},
               format == KvRowFormat::e4m3_bf16 ? Strides::contiguous : Strides::rows, false,
               is_given);
  const bool has_range = is_given && !is_list;
  add_of_tokens(names.range_end, DType::int32, {}, Strides::any, false, has_range);
  add_of_tokens(names.range_begin, DType::int32, {}, Strides::any, false,
                has_range && choices_.coin());
  add_optional(names.block_table, DType::int32, {batch_, max_pages}, Strides::rows, false,
               is_given && has_table);
  const std::int64_t entries = choices_.between(1, 5);
  add_of_tokens(names.indices, DType::int32, {entries}, Strides::rows, false, is_given && is_list);
  add_optional(names.list_lengths, DType::int32, {batch_}, Strides::contiguous, false,
               is_given && is_list && choices_.coin());
  Numbers table, indices, lengths;
  for (std::int64_t i = 0; i < 12; ++i) {
    table.push_back(choices_.between(0, pages - 1));
    indices.push_back(choices_.between(-1, pages * page_size - 1));
    lengths.push_back(choices_.between(0, entries));
  }
  contents_.emplace_back(names.block_table, table);
  contents_.emplace_back(names.indices, indices);
  contents_.emplace_back(names.list_lengths, lengths);
  if (!is_list) {
    choose_range(names, numbers_[scope], page_size * (has_table ? max_pages : 1));
  } else {
    choose_range(names, numbers_[scope], 1);
    numbers_[scope] = {};
  }
}

void Dsv4Call::choose_range(const Dsv4Names& names, ScopeNumbers& numbers, std::int64_t capacity) {
  if (choices_.one_in(3)) {
    numbers.ring = capacity;
  }
  if (choices_.one_in(3)) {
    numbers.most_keys = choices_.between(1, capacity + 1);
  }
  const std::int64_t most =
      numbers.most_keys > 0 ? std::min(numbers.most_keys, capacity) : capacity;
  Numbers begins, ends;
  for (std::int64_t i = 0; i < 6; ++i) {
    const std::int64_t begin =
        is_given(names.range_begin)
            ? choices_.between(0, numbers.ring > 0 ? 3 * capacity : capacity - most)
            : 0;
    begins.push_back(begin);
    ends.push_back(begin + choices_.between(0, most));
  }
  contents_.emplace_back(names.range_begin, begins);
  contents_.emplace_back(names.range_end, ends);
}

void Dsv4Call::add_others() {
  add_of_tokens("fresh_rows", dtype_, {kDim}, Strides::rows, false, choices_.one_in(3));
  add_optional("sinks", DType::fp32, {heads_}, Strides::any, false, choices_.coin());
  for (const auto& [name, is_given] : {std::pair{"lse", choices_.coin()},
                                       {"row_max", is_unnormalized_},
                                       {"row_sum", is_unnormalized_}}) {
    if (is_packed_) {
      add_optional(name, DType::fp32, {heads_, tokens_}, Strides::any, true, is_given);
    } else {
      add_optional(name, DType::fp32, {batch_, heads_, tokens_}, Strides::any, true, is_given);
    }
  }
  const bool is_rotated = !is_unnormalized_ && choices_.one_in(3);
  const std::int64_t positions = choices_.between(1, 5);
  for (const char* const name : {"rotary_cos", "rotary_sin"}) {
    add_optional(name, DType::fp32, {positions, kDsv4RotaryDims / 2}, Strides::rows, false,
                 is_rotated);
  }
  add_of_tokens("positions", DType::int64, {}, Strides::any, false, is_rotated);
  add_of_tokens("o_scale", DType::fp32, {heads_, kDim / kGroup}, Strides::any, true, is_quantized_);
  Numbers values;
  for (std::int64_t i = 0; i < 6; ++i) {
    values.push_back(choices_.between(0, positions - 1));
  }
  contents_.emplace_back("positions", values);
}

// A scope without rows is none.
void Dsv4Call::update_outputs() {
  for (const Dsv4Names& names : kDsv4Names) {
    if (!is_given(names.rows)) {
      for (const char* const name : {names.range_end, names.range_begin, names.block_table,
                                     names.indices, names.list_lengths}) {
        withdraw(name);
      }
    }
  }
}

void Dsv4Call::spoil_options() {
  constexpr std::array kNames = {"", "flash", "dsv4_decode", "cpu "};
  constexpr std::array<std::int64_t, 6> kNumbers = {
      0, 1, 3, -1, std::int64_t{1} << 32, std::numeric_limits<std::int64_t>::max()};
  ScopeNumbers& numbers = numbers_[choices_.below(2)];
  switch (choices_.below(6)) {
    case 0:
      options_.scale = choices_.one_of(kExtremeOptions);
      break;
    case 1:
      options_.kernel = choices_.one_of(kNames);
      break;
    case 2:
      numbers.ring = choices_.one_of(kNumbers);
      break;
    case 3:
      numbers.most_keys = choices_.one_of(kNumbers);
      break;
    default: {
      Numbers& values = contents_[choices_.below(contents_.size())].second;
      values[choices_.below(values.size())] = choices_.one_of(kWildInts);
    }
  }
}

// ---- Values

// Normal values in a cache's format; of bytes now and then one is 255.
void Dsv4Call::fill_rows(const char* name, std::uint64_t seed) {
  const TensorView& rows = tensor(name);
  reference::HostTensor x(DType::fp32, {rows.shape[0] * rows.shape[1], kDim});
  reference::fill_normal(x.view(), seed);
  reference::HostTensor cache = dense_copy(rows);
  std::vector<std::int64_t> slots(static_cast<std::size_t>(x.view().shape[0]));
  std::iota(slots.begin(), slots.end(), std::int64_t{0});
  reference::quantize_kv_rows(
      {.x = x.view(),
       .rows = cache.view(),
       .slot_mapping = contiguous(slots.data(), DType::int64, std::array{x.view().shape[0]})});
  const std::byte* from = cache.data();
  for (const std::int64_t offset : byte_offsets(rows)) {
    std::memcpy(static_cast<std::byte*>(rows.data) + offset, from, size_bytes(rows.dtype));
    from += size_bytes(rows.dtype);
  }
  if (rows.dtype == DType::u8) {
    put_somewhere(name, {255});
  }
  largest_value_ = std::max(largest_value_, largest_of(values_of(rows)));
}

void Dsv4Call::fill() {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::uint64_t seed = choices_.below(1000);
  std::uint64_t step = 0;
  for (const char* const name : {"q", "fresh_rows", "sinks", "rotary_cos", "rotary_sin"}) {
    fill_normal(input(name), seed + ++step);
  }
  put_somewhere("sinks", {kInfinity, -kInfinity, kNaN});
  put_somewhere("q", {kNaN});
  if (is_given("fresh_rows")) {
    largest_value_ = largest_of(dense_copy(tensor("fresh_rows")));
  }
  for (const Dsv4Names& names : kDsv4Names) {
    if (is_given(names.rows)) {
      fill_rows(names.rows, seed + ++step);
    }
  }
  for (const auto& [name, values] : contents_) {
    if (is_given(name)) {
      store_integers(tensor(name), values);
    }
  }
}

// ---- The call

std::optional<std::size_t> Dsv4Call::workspace_bytes() const {
  return dsv4_attention_workspace_bytes(tensors(), options_);
}

void Dsv4Call::make(Workspace workspace) const { dsv4_attention(tensors(), options_, workspace); }

// Where pages lie across each other their scales may be anything.
bool Dsv4Call::has_one_result() const { return scale() < 1e3 && largest_value_ < 1e3; }

// What rounding may change of an element of o.
double Dsv4Call::value_bound(const Dsv4AttentionTensors& t) const {
  double bound = relative_error(t.q.dtype) * largest_value_ + 0x1p-25;
  if (t.rotary_cos) {
    bound *= 1 + largest_of(dense_copy(*t.rotary_cos)) + largest_of(dense_copy(*t.rotary_sin));
  }
  return bound;
}

void Dsv4Call::check_results() const {
  const Dsv4AttentionTensors t = tensors();
  reference::AttentionResult exact = reference::dsv4_attention(t, options_);
  double bound = value_bound(t);
  for (const double sum : exact.row_sum) {
    bound = t.row_max && sum > 1 ? std::max(bound, sum * value_bound(t)) : bound;
  }
  const auto add_unwritten = [&](const ConstTensorView& actual, std::vector<double>& expected) {
    if (is_packed()) {
      expect_unwritten(actual, t.q.shape[0], integers("cu_seqlens_q").back(), expected);
    }
  };
  if (t.o_scale) {
    check_quantized(t, exact.o, bound);
  } else {
    add_unwritten(t.o, exact.o);
    check_near(t.o, exact.o, std::vector<double>(exact.o.size(), bound), "o");
  }
  const auto check_statistic = [&](const std::optional<TensorView>& statistic,
                                   std::vector<double>& expected, const char* name) {
    if (statistic) {
      add_unwritten(*statistic, expected);
      check_near(*statistic, expected, statistic_bounds(expected), name);
    }
  };
  check_statistic(t.lse, exact.lse, "lse");
  check_statistic(t.row_max, exact.row_max, "row_max");
  check_statistic(t.row_sum, exact.row_sum, "row_sum");
}

// The groups of E4M3 results: a scale of the largest value or of one near it, and codes that are as
// near as they can be. Groups with NaN, and those of rows that are not written, are left out.
void Dsv4Call::check_quantized(const Dsv4AttentionTensors& t, const std::vector<double>& exact,
                               double bound) const {
  const reference::HostTensor codes = dense_copy(t.o);
  const reference::HostTensor scales = dense_copy(*t.o_scale);
  for (std::size_t first = 0; first < exact.size(); first += kGroup) {
    double amax = 0;
    bool is_nan = false;
    for (std::size_t i = first; i < first + kGroup; ++i) {
      amax = std::max(amax, std::abs(exact[i]));
      is_nan = is_nan || std::isnan(exact[i]);
    }
    if (is_nan) {
      continue;
    }
    const double scale = reference::load(scales.view(), static_cast<std::int64_t>(first / kGroup));
    check(scale >= reference::output_scale(amax - bound) &&
              scale <= reference::output_scale(amax + bound),
          "a scale of o is wrong");
    for (std::size_t i = first; i < first + kGroup; ++i) {
      const auto code =
          static_cast<int>(reference::load(codes.view(), static_cast<std::int64_t>(i)));
      const double value = scale * reference::scale_value(DType::e4m3, code);
      check(std::abs(value - exact[i]) <=
                bound + std::max(0x1.1p-4 * std::abs(exact[i]), 0x1.1p-10 * scale),
            "a value of o is too far from the exact one");
    }
  }
}

// ---- Help

std::optional<Dsv4Scope> Dsv4Call::scope_of(std::size_t scope) const {
  const Dsv4Names& names = kDsv4Names[scope];
  if (!is_given(names.rows)) {
    return std::nullopt;
  }
  return Dsv4Scope{.rows = tensor(names.rows),
                   .range_end = input(names.range_end),
                   .range_begin = input(names.range_begin),
                   .block_table = input(names.block_table),
                   .ring = numbers_[scope].ring,
                   .most_keys = numbers_[scope].most_keys,
                   .indices = input(names.indices),
                   .list_lengths = input(names.list_lengths)};
}

Dsv4AttentionTensors Dsv4Call::tensors() const {
  return {.q = tensor("q"),
          .o = tensor("o"),
          .window = scope_of(0),
          .compressed = scope_of(1),
          .fresh_rows = input("fresh_rows"),
          .sinks = input("sinks"),
          .lse = output("lse"),
          .row_max = output("row_max"),
          .row_sum = output("row_sum"),
          .rotary_cos = input("rotary_cos"),
          .rotary_sin = input("rotary_sin"),
          .positions = input("positions"),
          .o_scale = output("o_scale"),
          .cu_seqlens_q = input("cu_seqlens_q")};
}

std::unique_ptr<Call> make_dsv4(Choices& choices, Arena& arena) {
  return std::make_unique<Dsv4Call>(choices, arena);
}

}  // namespace tilewright::fuzz
