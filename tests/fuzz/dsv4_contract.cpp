// What the header says of a call of dsv4_attention().
#include <algorithm>
#include <cmath>

#include "fuzz/attention_parts.hpp"
#include "fuzz/dsv4_call.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::int64_t kDim = kDsv4HeadDim;
constexpr std::int64_t kMostHeads = 128;
constexpr std::int64_t kMostTokens = 8;
constexpr std::int64_t kMostKeys = (std::int64_t{1} << 30) - 1;

}  // namespace

double Dsv4Call::scale() const {
  return options_.scale.value_or(static_cast<float>(1 / std::sqrt(512.0)));
}

Dsv4Call::TokenSizes Dsv4Call::token_sizes() const {
  return is_packed() ? TokenSizes{kAny, open_sizes<3>(tensor("q"))[0]}
                     : TokenSizes{open_sizes<4>(tensor("q"))[0], open_sizes<4>(tensor("q"))[1]};
}

std::int64_t Dsv4Call::heads() const {
  return is_packed() ? open_sizes<3>(tensor("q"))[1] : open_sizes<4>(tensor("q"))[2];
}

std::int64_t Dsv4Call::batch() const {
  if (!is_packed()) {
    return token_sizes()[0];
  }
  const std::int64_t boundaries = open_sizes<1>(tensor("cu_seqlens_q"))[0];
  return boundaries == kAny ? kAny : known(boundaries - 1);
}

std::int64_t Dsv4Call::capacity(const Dsv4Names& names) const {
  const std::int64_t page_size = open_sizes<3>(tensor(names.rows))[1];
  const std::int64_t pages =
      is_given(names.block_table) ? open_sizes<2>(tensor(names.block_table))[1] : 1;
  return page_size == kAny || pages == kAny ? kAny : page_size * pages;
}

// (B, Nq, sizes ...), or (Tq, sizes ...).
bool Dsv4Call::has_token_shape(Contract& c, std::string_view name,
                               std::vector<std::int64_t> sizes) const {
  const auto [requests, tokens] = token_sizes();
  sizes.insert(sizes.begin(), tokens);
  if (!is_packed()) {
    sizes.insert(sizes.begin(), requests);
  }
  return c.has_shape((*this)[name], sizes);
}

// Of int32 and contiguous in the last dimension, if it is given.
void Dsv4Call::judge_ints(Contract& c, std::string_view name,
                          std::vector<std::int64_t> sizes) const {
  if (is_given(name)) {
    if (c.has_shape((*this)[name], sizes)) {
      c.has_strides((*this)[name], Strides::rows);
    }
    c.has_dtype((*this)[name], {DType::int32});
  }
}

void Dsv4Call::judge_rows(Contract& c) const {
  if (has_token_shape(c, "q", {kAny, kDim})) {
    c.has_strides((*this)["q"], Strides::rows);
  }
  if (has_token_shape(c, "o", {heads(), kDim})) {
    c.has_strides((*this)["o"], Strides::rows);
  }
  if (heads() > kMostHeads || (!is_packed() && token_sizes()[1] > kMostTokens)) {
    c.refuse("q");
  }
  c.has_dtype((*this)["q"], {DType::fp32, DType::bf16});
  const DType dtype = tensor("q").dtype;
  c.has_dtype((*this)["o"], {is_given("row_max")   ? DType::fp32
                             : is_given("o_scale") ? DType::e4m3
                                                   : dtype});
  if (is_given("fresh_rows")) {
    if (has_token_shape(c, "fresh_rows", {kDim})) {
      c.has_strides((*this)["fresh_rows"], Strides::rows);
    }
    c.has_dtype((*this)["fresh_rows"], {dtype});
  }
  const std::int64_t size = batch();
  judge_ints(c, "cu_seqlens_q", {size == kAny ? kAny : size + 1});
  if (is_packed() && tensor("cu_seqlens_q").shape[0] < 2) {
    c.refuse("cu_seqlens_q");
  }
}

void Dsv4Call::judge_scope(Contract& c, std::size_t scope) const {
  const Dsv4Names& names = kDsv4Names[scope];
  if (!is_given(names.rows)) {
    return;
  }
  const TensorView& rows = tensor(names.rows);
  if (c.has_shape((*this)[names.rows], {kAny, kAny, kAny})) {
    const auto format = kv_row_format(rows.dtype, rows.shape[2]);
    if (!format) {
      c.refuse(names.rows);
    }
    c.has_strides((*this)[names.rows],
                  format == KvRowFormat::e4m3_bf16 ? Strides::contiguous : Strides::rows);
  }
  if (!is_given(names.indices) && !is_given(names.range_end)) {
    c.refuse(names.range_end);
  }
  if (is_given(names.indices)) {
    judge_list(c, names, numbers_[scope]);
  } else {
    judge_range(c, names, numbers_[scope]);
  }
}

void Dsv4Call::judge_range(Contract& c, const Dsv4Names& names, const ScopeNumbers& numbers) const {
  for (const char* const name : {names.range_end, names.range_begin}) {
    if (is_given(name)) {
      has_token_shape(c, name, {});
      c.has_dtype((*this)[name], {DType::int32});
    }
  }
  judge_ints(c, names.block_table, {batch(), kAny});
  if (is_given(names.list_lengths)) {
    c.refuse(names.list_lengths);
  }
  const auto [pages, page_size, bytes] = open_sizes<3>(tensor(names.rows));
  const std::int64_t most = capacity(names);
  if (is_given(names.block_table)) {
    if (most > kMostKeys) {
      c.refuse(names.block_table);
    }
  } else if (pages != kAny && batch() != kAny && pages < batch()) {
    c.refuse(names.rows);
  }
  if (most == kAny) {
    c.doubt(names.ring);
  } else if (numbers.ring < 0 || numbers.ring > most ||
             (numbers.ring > page_size && numbers.ring % page_size != 0)) {
    c.refuse(names.ring);
  }
  if (numbers.most_keys < 0) {
    c.refuse(names.most_keys);
  }
}

void Dsv4Call::judge_list(Contract& c, const Dsv4Names& names, const ScopeNumbers& numbers) const {
  for (const char* const name : {names.range_end, names.range_begin, names.block_table}) {
    if (is_given(name)) {
      c.refuse(name);
    }
  }
  if (numbers.ring != 0) {
    c.refuse(names.ring);
  }
  if (numbers.most_keys != 0) {
    c.refuse(names.most_keys);
  }
  if (has_token_shape(c, names.indices, {kAny})) {
    c.has_strides((*this)[names.indices], Strides::rows);
  }
  c.has_dtype((*this)[names.indices], {DType::int32});
  judge_ints(c, names.list_lengths, {batch()});
}

void Dsv4Call::judge_results(Contract& c) const {
  if (is_given("row_max") != is_given("row_sum")) {
    c.refuse("row_max");
    c.refuse("row_sum");
  }
  const auto [requests, tokens] = token_sizes();
  for (const char* const name : {"lse", "row_max", "row_sum"}) {
    if (is_given(name)) {
      is_packed() ? c.has_shape((*this)[name], {heads(), tokens})
                  : c.has_shape((*this)[name], {requests, heads(), tokens});
      c.has_dtype((*this)[name], {DType::fp32});
    }
  }
  if (is_given("o_scale")) {
    has_token_shape(c, "o_scale", {heads(), 4});
    c.has_dtype((*this)["o_scale"], {DType::fp32});
    if (is_given("row_max")) {
      c.refuse("o_scale");
    }
  }
  if (is_given("sinks")) {
    c.has_shape((*this)["sinks"], {heads()});
    c.has_dtype((*this)["sinks"], {DType::fp32});
  }
}

void Dsv4Call::judge_rotation(Contract& c) const {
  const bool has_cos = is_given("rotary_cos");
  if (has_cos != is_given("rotary_sin") || has_cos != is_given("positions")) {
    for (const char* const name : {"rotary_cos", "rotary_sin", "positions"}) {
      c.refuse(name);
    }
    return;
  }
  if (!has_cos) {
    return;
  }
  if (is_given("row_max")) {
    c.refuse("rotary_cos");
  }
  judge_rotary_tables(c, (*this)["rotary_cos"], (*this)["rotary_sin"], kDim, DType::fp32);
  const std::int64_t pairs = open_sizes<2>(tensor("rotary_cos"))[1];
  if (pairs != kAny && pairs != kDsv4RotaryDims / 2) {
    c.refuse("rotary_cos");
  }
  has_token_shape(c, "positions", {});
  c.has_dtype((*this)["positions"], {DType::int64});
}

void Dsv4Call::judge(Contract& c) const {
  judge_rows(c);
  judge_scope(c, 0);
  judge_scope(c, 1);
  judge_results(c);
  judge_rotation(c);
  if (!is_given("fresh_rows") && !is_given(kDsv4Names[0].rows) && !is_given(kDsv4Names[1].rows)) {
    c.refuse(kDsv4Names[0].rows);
  }
  judge_score_options(c, options_.scale, scale(), 0.0f, {});
  if (options_.kernel != "auto" && options_.kernel != "cpu") {
    c.refuse("kernel");
    c.refuse("q");  // it is on no device of that kernel's
  }
  c.on_one_device(arguments());
  c.outputs_are_apart(arguments());
}

// ---- Contents

// The new tokens; nothing where it is not known what they are.
std::optional<std::vector<Dsv4Call::Token>> Dsv4Call::tokens(Contract& c) const {
  Numbers starts = integers("cu_seqlens_q");
  const auto [requests, length] = token_sizes();
  for (std::int64_t b = 0; !is_packed() && b <= requests; ++b) {
    starts.push_back(b * length);
  }
  if (is_packed() &&
      (starts.front() != 0 || !std::ranges::is_sorted(starts) || starts.back() > length)) {
    c.refuse_contents("cu_seqlens_q");
    return std::nullopt;
  }
  std::vector<Token> all;
  for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
    if (starts[b + 1] - starts[b] > kMostTokens) {
      c.refuse_contents("cu_seqlens_q");
    }
    for (std::int64_t row = starts[b]; row < starts[b + 1]; ++row) {
      all.push_back({.request = b, .row = static_cast<std::size_t>(row)});
    }
  }
  return all;
}

void Dsv4Call::judge_ranges(Contract& c, std::size_t scope,
                            const std::vector<Token>& tokens) const {
  const Dsv4Names& names = kDsv4Names[scope];
  const auto& [ring, most_keys] = numbers_[scope];
  const TensorView& rows = tensor(names.rows);
  const Numbers ends = integers(names.range_end);
  const Numbers begins = integers(names.range_begin);
  const Numbers table = integers(names.block_table);
  const std::int64_t columns = table.empty() ? 1 : tensor(names.block_table).shape[1];
  Numbers slots;
  for (const Token& token : tokens) {
    const std::int64_t end = ends[token.row];
    const std::int64_t begin = begins.empty() ? 0 : begins[token.row];
    if (end < 0 || begin < 0 || begin > end || (ring == 0 && end > capacity(names)) ||
        (ring > 0 && end - begin > ring) || (most_keys > 0 && end - begin > most_keys)) {
      c.refuse_contents(names.range_end);
      c.refuse_contents(names.range_begin);
      continue;
    }
    for (std::int64_t position = begin; position < end; ++position) {
      const std::int64_t place = ring > 0 ? position % ring : position;
      const auto request = static_cast<std::int64_t>(token.request);
      const std::int64_t page =
          table.empty()
              ? request
              : table[static_cast<std::size_t>(request * columns + place / rows.shape[1])];
      if (page < 0 || page >= rows.shape[0]) {
        c.refuse_contents(names.block_table);
      } else {
        slots.push_back(page * rows.shape[1] + place % rows.shape[1]);
      }
    }
  }
  judge_scales(c, scope, slots);
}

void Dsv4Call::judge_lists(Contract& c, std::size_t scope, const std::vector<Token>& tokens) const {
  const Dsv4Names& names = kDsv4Names[scope];
  const TensorView& rows = tensor(names.rows);
  const Numbers indices = integers(names.indices);
  const Numbers lengths = integers(names.list_lengths);
  const TensorView& list = tensor(names.indices);
  const std::int64_t entries = list.shape[list.rank - 1];
  for (const std::int64_t length : lengths) {
    if (length < 0 || length > entries) {
      return c.refuse_contents(names.list_lengths);
    }
  }
  Numbers slots;
  for (const Token& token : tokens) {
    const std::int64_t count = lengths.empty() ? entries : lengths[token.request];
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t slot =
          indices[token.row * static_cast<std::size_t>(entries) + static_cast<std::size_t>(i)];
      if (slot < -1 || slot >= rows.shape[0] * rows.shape[1]) {
        c.refuse_contents(names.indices);
      } else if (slot >= 0) {
        slots.push_back(slot);
      }
    }
  }
  judge_scales(c, scope, slots);
}

// No UE8M0 scale of a row that is seen is 255.
void Dsv4Call::judge_scales(Contract& c, std::size_t scope, const Numbers& slots) const {
  const TensorView& rows = tensor(kDsv4Names[scope].rows);
  const auto format = kv_row_format(rows.dtype, rows.shape[2]);
  const std::int64_t page_size = rows.shape[1];
  for (const std::int64_t slot : slots) {
    const auto* const page = static_cast<const std::uint8_t*>(rows.data) +
                             (rows.shape[0] > 1 ? slot / page_size * rows.stride[0] : 0);
    const std::int64_t row = slot % page_size;
    const std::uint8_t* scales = page;
    int count = 0;
    if (format == KvRowFormat::e4m3_bf16) {
      scales += page_size * 576 + row * 8;
      count = 7;
    } else if (format == KvRowFormat::e4m3) {
      scales += (page_size > 1 ? row * rows.stride[1] : 0) + 512;
      count = 16;
    }
    if (std::count(scales, scales + count, 255) > 0) {
      c.refuse_contents(kDsv4Names[scope].rows);
    }
  }
}

void Dsv4Call::judge_contents(Contract& c) const {
  const auto all = tokens(c);
  if (!all) {
    return;
  }
  for (std::size_t scope = 0; scope < kDsv4Names.size(); ++scope) {
    if (is_given(kDsv4Names[scope].indices)) {
      judge_lists(c, scope, *all);
    } else if (is_given(kDsv4Names[scope].range_end)) {
      judge_ranges(c, scope, *all);
    }
  }
  const Numbers positions = integers("positions");
  for (const Token& token : *all) {
    if (!positions.empty() &&
        (positions[token.row] < 0 || positions[token.row] >= tensor("rotary_cos").shape[0])) {
      c.refuse_contents("positions");
    }
  }
}

}  // namespace tilewright::fuzz
