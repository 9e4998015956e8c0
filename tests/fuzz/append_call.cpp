// Calls of append_kv(), and what they must give.
#include "fuzz/append_call.hpp"

#include <algorithm>
#include <limits>

#include "fuzz/attention_parts.hpp"
#include "fuzz/matrices.hpp"
#include "reference/append_kv.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::array<std::int64_t, 5> kWildInts = {-1, 1, 100, std::numeric_limits<int>::max(),
                                                   std::numeric_limits<int>::min()};
constexpr std::array kOutputs = {"k_cache", "v_cache", "q_out", "computed_k_descale",
                                 "computed_v_descale"};

}  // namespace

AppendCall::AppendCall(Choices& choices, Arena& arena) : Call(choices, arena) {
  choose_sizes();
  add_rows();
  add_places();
  add_rotation();
  add_descales();
  choose_contents();
  options_ = {.interleaved = choices_.coin(), .check_values = choices_.coin()};
  options_.kernel = choices_.coin() ? "cpu" : "auto";
}

void AppendCall::fill() {
  const std::uint64_t seed = choices_.below(1000);
  std::uint64_t step = 0;
  for (const char* const name : {"k", "v", "q", "rotary_cos", "rotary_sin"}) {
    fill_normal(input(name), seed + ++step);
  }
  fill_positive(input("k_descale"));
  fill_positive(input("v_descale"));
  for (const auto& [name, values] : contents_) {
    if (is_given(name)) {
      store_integers(tensor(name), values);
    }
  }
  before_.clear();
  for (const char* const name : kOutputs) {
    before_.push_back(is_given(name) ? std::optional(dense_copy(tensor(name))) : std::nullopt);
  }
}

void AppendCall::make(Workspace) const { append_kv(tensors(), options_); }

void AppendCall::check_results() const {
  std::vector<std::optional<reference::HostTensor>> expected = before_;
  AppendKvTensors t = tensors();
  const auto view_of = [&](std::size_t i) {
    return expected[i] ? std::optional(expected[i]->view()) : std::nullopt;
  };
  t.k_cache = expected[0]->view();
  t.v_cache = expected[1]->view();
  t.q_out = view_of(2);
  t.computed_k_descale = view_of(3);
  t.computed_v_descale = view_of(4);
  reference::append_kv(t, options_);
  for (std::size_t i = 0; i < kOutputs.size(); ++i) {
    if (expected[i]) {
      check_same_bits(tensor(kOutputs[i]), *expected[i], kOutputs[i]);
    }
  }
}

void AppendCall::choose_sizes() {
  dtype_ = choices_.one_of(kFloats);
  cache_dtype_ = choices_.one_in(3) ? DType::e4m3 : dtype_;
  has_slots_ = choices_.one_in(3);
  is_packed_ = has_slots_ || choices_.coin();
  has_table_ = !has_slots_ && choices_.coin();
  has_idx_ = !has_slots_ && !has_table_ && choices_.coin();
  rotates_ = choices_.coin();
  sequences_ = choices_.between(1, 3);
  tokens_ = choices_.between(1, 5);
  kv_heads_ = choices_.between(1, 2);
  head_dim_ = choices_.between(2, 20);
  value_dim_ = choices_.coin() ? head_dim_ : choices_.between(1, 20);
  page_size_ = choices_.between(1, 4);
  max_pages_ = choices_.between(2, 4);
  if (!has_table_ && !has_slots_) {
    page_size_ = choices_.between(5, 9);
    max_pages_ = 1;
  }
  pages_ = has_slots_ || has_table_ ? choices_.between(1, 14)
                                    : sequences_ + (has_idx_ ? choices_.between(0, 2) : 0);
  positions_ = choices_.between(8, 16);
}

void AppendCall::add_of_tokens(std::string_view name, DType dtype, std::int64_t heads,
                               std::int64_t dim, bool is_output, bool is_given) {
  if (is_packed_) {
    add_optional(name, dtype, {tokens_, heads, dim}, Strides::rows, is_output, is_given);
  } else {
    add_optional(name, dtype, {sequences_, tokens_, heads, dim}, Strides::rows, is_output,
                 is_given);
  }
}

void AppendCall::add_rows() {
  if (is_packed_) {
    add("k", dtype_, {tokens_, kv_heads_, head_dim_}, Strides::rows, false);
    add("v", dtype_, {tokens_, kv_heads_, value_dim_}, Strides::rows, false);
  } else {
    add("k", dtype_, {sequences_, tokens_, kv_heads_, head_dim_}, Strides::rows, false);
    add("v", dtype_, {sequences_, tokens_, kv_heads_, value_dim_}, Strides::rows, false);
  }
  for (const auto& [name, dim] : {std::pair{"k_cache", head_dim_}, {"v_cache", value_dim_}}) {
    add(name, cache_dtype_, {pages_, page_size_, kv_heads_, dim}, Strides::rows, true);
  }
  const std::int64_t heads = choices_.between(1, 3);
  const bool has_queries = rotates_ && choices_.coin();
  add_of_tokens("q", dtype_, heads, head_dim_, false, has_queries);
  add_of_tokens("q_out", dtype_, heads, head_dim_, true, has_queries);
}

void AppendCall::add_places() {
  const auto add_ints = [&](std::string_view name, std::int64_t count, bool is_given) {
    add_optional(name, DType::int32, {count}, Strides::contiguous, false, is_given);
  };
  add_optional("slot_mapping", DType::int64, {tokens_}, Strides::contiguous, false, has_slots_);
  add_ints("cache_seqlens", sequences_, !has_slots_);
  add_ints("cu_seqlens_new", sequences_ + 1, is_packed_ && !has_slots_);
  add_optional("block_table", DType::int32, {sequences_, max_pages_}, Strides::rows, false,
               has_table_);
  add_ints("cache_batch_idx", sequences_, has_idx_);
}

void AppendCall::add_rotation() {
  const DType dtype = choices_.coin() ? DType::fp32 : dtype_;
  const std::int64_t pairs = choices_.between(1, head_dim_ / 2);
  for (const char* const name : {"rotary_cos", "rotary_sin"}) {
    add_optional(name, dtype, {positions_, pairs}, Strides::rows, false, rotates_);
  }
  const bool is_given = rotates_ && (has_slots_ || choices_.coin());
  if (is_packed_) {
    add_optional("positions", DType::int64, {tokens_}, Strides::contiguous, false, is_given);
  } else {
    add_optional("positions", DType::int64, {sequences_, tokens_}, Strides::rows, false, is_given);
  }
}

void AppendCall::add_descales() {
  for (const auto& [name, computed] :
       {std::pair{"k_descale", "computed_k_descale"}, {"v_descale", "computed_v_descale"}}) {
    const bool is_e4m3 = cache_dtype_ == DType::e4m3;
    const bool is_computed = choices_.coin();
    if (has_slots_ || choices_.coin()) {
      add_optional(name, DType::fp32, {1}, Strides::any, false, is_e4m3 && !is_computed);
    } else {
      add_optional(name, DType::fp32, {sequences_, kv_heads_}, Strides::any, false,
                   is_e4m3 && !is_computed);
    }
    add_optional(computed, DType::fp32, {pages_, page_size_, kv_heads_}, Strides::any, true,
                 is_e4m3 && is_computed);
  }
}

// Mostly right: there may be too few pages for all rows.
void AppendCall::choose_contents() {
  Numbers slots, starts = {0}, cached, table, rows, positions;
  const std::int64_t capacity = page_size_ * max_pages_;
  const std::int64_t all = pages_ * page_size_;
  const std::int64_t first = choices_.between(0, all - 1);
  for (std::int64_t i = 0; i < tokens_; ++i) {
    slots.push_back(i >= all || choices_.one_in(6) ? -1 : (first + i) % all);
  }
  for (std::int64_t b = 0; b < sequences_; ++b) {
    starts.push_back(choices_.between(starts.back(), tokens_));
    const std::int64_t added = is_packed_ ? starts.back() - starts[starts.size() - 2] : tokens_;
    const std::int64_t most =
        (choices_.one_in(4) ? capacity : std::min(capacity, positions_)) - added;
    cached.push_back(choices_.between(0, std::max(most, std::int64_t{0})));
    rows.push_back((b + 1) % pages_);
  }
  for (std::int64_t i = 0; i < sequences_ * max_pages_; ++i) {
    table.push_back((i + first) % pages_);
  }
  for (std::int64_t i = 0; i < sequences_ * tokens_; ++i) {
    positions.push_back((first + 3 * i) % positions_);
  }
  contents_ = {{"slot_mapping", slots}, {"cu_seqlens_new", starts}, {"cache_seqlens", cached},
               {"block_table", table},  {"cache_batch_idx", rows},  {"positions", positions}};
}

void AppendCall::spoil_options() {
  constexpr std::array kNames = {"", "flash", "hopper", "cpu "};
  if (choices_.one_in(3)) {
    options_.kernel = choices_.one_of(kNames);
  } else {
    Numbers& values = contents_[choices_.below(contents_.size())].second;
    values[choices_.below(values.size())] = choices_.one_of(kWildInts);
  }
}

AppendKvTensors AppendCall::tensors() const {
  return {.k = tensor("k"),
          .v = tensor("v"),
          .k_cache = tensor("k_cache"),
          .v_cache = tensor("v_cache"),
          .slot_mapping = input("slot_mapping"),
          .cache_seqlens = input("cache_seqlens"),
          .cu_seqlens_new = input("cu_seqlens_new"),
          .block_table = input("block_table"),
          .cache_batch_idx = input("cache_batch_idx"),
          .rotary_cos = input("rotary_cos"),
          .rotary_sin = input("rotary_sin"),
          .positions = input("positions"),
          .q = input("q"),
          .q_out = output("q_out"),
          .k_descale = input("k_descale"),
          .v_descale = input("v_descale"),
          .computed_k_descale = output("computed_k_descale"),
          .computed_v_descale = output("computed_v_descale")};
}

std::unique_ptr<Call> make_append(Choices& choices, Arena& arena) {
  return std::make_unique<AppendCall>(choices, arena);
}

}  // namespace tilewright::fuzz
