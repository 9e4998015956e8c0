// Calls of attention_with_kvcache(), and what they must give.
#include "fuzz/kvcache_call.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "fuzz/check.hpp"
#include "reference/attention_with_kvcache.hpp"
#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::array kWildInts = {-1, 1, 100, std::numeric_limits<int>::max(),
                                  std::numeric_limits<int>::min()};

// All elements of a tensor.
std::vector<double> elements_of(const ConstTensorView& t) {
  std::vector<double> values;
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(t.dtype));
  for (const std::int64_t offset : byte_offsets(t)) {
    values.push_back(reference::load(t, offset / element_bytes));
  }
  return values;
}

double largest_of(const std::optional<ConstTensorView>& t) {
  double largest = 0;
  for (const double element : t ? elements_of(*t) : std::vector<double>()) {
    const double value = t->dtype == DType::e4m3
                             ? reference::scale_value(DType::e4m3, static_cast<int>(element))
                             : element;
    largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
  }
  return largest;
}

// A cache is what it was, but for the slots of new rows.
void check_cache(const AttentionWithKvCacheTensors& t, const TensorView& cache,
                 const std::optional<ConstTensorView>& added, const std::vector<double>& before) {
  std::vector<double> expected = before;
  const auto at = [&](const reference::KeyPlace& slot, std::int64_t head, std::int64_t d) {
    return static_cast<std::size_t>(
        ((slot.entry * cache.shape[1] + slot.row) * cache.shape[2] + head) * cache.shape[3] + d);
  };
  for (std::int64_t b = 0; added && b < reference::sequence_count(t); ++b) {
    const reference::CachedSequence sequence = reference::sequence_of(t, b);
    for (std::size_t j = 0; j < sequence.keys.size(); ++j) {
      const reference::KeyPlace& from = sequence.keys[j];
      const reference::KeyPlace slot = reference::slot_of(t, b, static_cast<std::int64_t>(j));
      for (std::int64_t h = 0; from.is_new && h < cache.shape[2]; ++h) {
        for (std::int64_t d = 0; d < cache.shape[3]; ++d) {
          const auto& s = added->stride;
          const std::int64_t outer = added->rank == 4 ? from.entry * s[0] : 0;
          expected[at(slot, h, d)] = reference::load(
              *added, outer + from.row * s[added->rank - 3] + h * s[added->rank - 2] + d);
        }
      }
    }
  }
  check_near(cache, expected, std::vector<double>(expected.size(), 0), "a cache");
}

}  // namespace

KvCacheCall::KvCacheCall(Choices& choices, Arena& arena) : Call(choices, arena) {
  choose_sizes();
  choose_options();
  add_rows();
  add_places();
  add_others();
  choose_contents();
}

void KvCacheCall::fill() {
  const std::uint64_t seed = choices_.below(1000);
  std::uint64_t step = 0;
  for (const char* const name : {"q", "k_cache", "v_cache", "k", "v", "sinks"}) {
    ++step;
    if (is_given(name) && tensor(name).dtype == DType::e4m3) {
      constexpr int kLeast = 0x20;
      constexpr int kMost = 0x40;  // 2
      fill_bytes(input(name), seed + step, kLeast, kMost);
    } else {
      fill_normal(input(name), seed + step);
    }
  }
  fill_normal(input("k_descale"), seed + 10);
  fill_normal(input("v_descale"), seed + 11);
  fill_normal(input("q_descale"), seed + 13);
  fill_bytes(input("tree_mask"), seed + 12, 0, 255);
  for (const auto& [name, values] : contents_) {
    if (is_given(name)) {
      store_ints(tensor(name), values);
    }
  }
  if (is_given("block_table")) {
    const TensorView& table = tensor("block_table");
    for (std::int64_t b = 0; b < table.shape[0]; ++b) {
      for (std::int64_t i = 0; i < table.shape[1]; ++i) {
        const auto at = static_cast<std::size_t>(b * max_pages_ + i) % table_.size();
        reference::store(table, table_offset(b, i), table_[at]);
      }
    }
  }
  k_before_ = elements_of(tensor("k_cache"));
  v_before_ = elements_of(tensor("v_cache"));
}

std::optional<std::size_t> KvCacheCall::workspace_bytes() const {
  return attention_with_kvcache_workspace_bytes(tensors(), options_);
}

void KvCacheCall::make(Workspace workspace) const {
  attention_with_kvcache(tensors(), options_, workspace);
}

// With extreme options scores overflow in FP32, and not in float64.
bool KvCacheCall::has_one_result() const {
  return scale() < 1e3 && options_.softcap < 1e3 &&
         (options_.softcap == 0 || options_.softcap > 1e-3);
}

void KvCacheCall::check_results() const {
  const AttentionWithKvCacheTensors t = tensors();
  reference::AttentionResult exact = reference::attention_with_kvcache(t, options_);
  const double value_error =
      relative_error(output_dtype(t.q.dtype, false)) * largest_value() + 0x1p-25;
  std::vector<double> bounds(exact.o.size(), value_error);
  if (t.row_max) {
    double most = 1;
    for (const double sum : exact.row_sum) {
      most = std::max(most, std::isnan(sum) ? 0 : sum);
    }
    std::ranges::fill(bounds, value_error * most);
  }
  const auto add_unwritten = [&](const ConstTensorView& actual, std::vector<double>& expected) {
    if (is_given("cu_seqlens_q")) {
      expect_unwritten(actual, t.q.shape[0], ints_of(tensor("cu_seqlens_q")).back(), expected);
    }
  };
  add_unwritten(t.o, exact.o);
  check_near(t.o, exact.o, bounds, "o");
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
  check_caches(t);
}

void KvCacheCall::choose_sizes() {
  dtype_ = choices_.one_in(6) ? DType::e4m3 : choices_.one_of(kFloats);
  cache_dtype_ = choices_.one_in(4) ? DType::e4m3 : dtype_;
  batch_ = choices_.between(1, 3);
  q_len_ = choices_.between(1, 5);
  is_packed_ = choices_.one_in(4);
  is_paged_ = choices_.coin();
  appends_ = choices_.one_in(3);
  has_rows_idx_ = !is_paged_ && choices_.one_in(3);
  added_ = is_packed_ ? q_len_ : choices_.between(1, 3);
  page_size_ = is_paged_ ? choices_.between(1, 4) : choices_.between(5, 9);
  max_pages_ = is_paged_ ? choices_.between(3, 5) : 1;
  cache_rows_ = is_paged_ ? choices_.between(1, 16) : batch_ + choices_.between(0, 1);
  kv_heads_ = choices_.between(1, 2);
  heads_ = kv_heads_ * choices_.between(1, 2);
  head_dim_ = choices_.one_of(kHeadDims);
  value_dim_ = choices_.coin() ? head_dim_ : choices_.one_of(kHeadDims);
  is_unnormalized_ = choices_.one_in(4);
  has_tree_ = choices_.one_in(4);
  has_prefixes_ = choices_.one_in(4);
  groups_ = choices_.between(1, 3);
}

void KvCacheCall::choose_options() {
  constexpr std::array<std::int64_t, 5> kWindows = {0, 1, 3, 1 << 20,
                                                    std::numeric_limits<std::int64_t>::max()};
  options_.batch_invariant = choices_.one_in(4);
  options_.check_values = choices_.one_in(4);
  options_.max_seqlen_q = choices_.coin() ? choices_.one_of(kWindows) : 0;
  options_.max_seqlen_k = choices_.coin() ? choices_.one_of(kWindows) : 0;
  if (!has_tree_) {
    options_.causal = choices_.coin();
    if (!has_prefixes_ && choices_.one_in(4)) {
      options_.window.left = choices_.one_of(kWindows);
    }
    if (!has_prefixes_ && choices_.one_in(4)) {
      options_.window.right = choices_.one_of(kWindows);
    }
  }
  if (choices_.coin()) {
    options_.scale = 0.25f * static_cast<float>(choices_.below(5));
  }
  if (choices_.one_in(4)) {
    options_.softcap = 0.5f * static_cast<float>(choices_.below(5));
  }
  options_.kernel = choices_.coin() ? "cpu" : "auto";
}

void KvCacheCall::add_rows() {
  const auto add_one = [&](std::string_view name, DType dtype, std::int64_t length,
                           std::int64_t heads, std::int64_t dim, bool is_output, bool is_given) {
    if (is_packed_) {
      add_optional(name, dtype, {length, heads, dim}, Strides::rows, is_output, is_given);
    } else {
      add_optional(name, dtype, {batch_, length, heads, dim}, Strides::rows, is_output, is_given);
    }
  };
  const auto add_query = [&](std::string_view name, DType dtype, std::int64_t dim, bool is_output) {
    if (is_packed_) {
      add(name, dtype, {q_len_, heads_, dim}, Strides::rows, is_output);
    } else {
      add(name, dtype, {batch_, q_len_, heads_, dim}, Strides::rows, is_output);
    }
  };
  add_query("q", dtype_, head_dim_, false);
  add_query("o", output_dtype(dtype_, is_unnormalized_), value_dim_, true);
  add("k_cache", cache_dtype_, {cache_rows_, page_size_, kv_heads_, head_dim_}, Strides::rows,
      appends_);
  add("v_cache", cache_dtype_, {cache_rows_, page_size_, kv_heads_, value_dim_}, Strides::rows,
      appends_);
  add_one("k", cache_dtype_, added_, kv_heads_, head_dim_, false, appends_);
  add_one("v", cache_dtype_, added_, kv_heads_, value_dim_, false, appends_);
  for (const auto& [name, is_given] : {std::pair{"lse", choices_.coin()},
                                       {"row_max", is_unnormalized_},
                                       {"row_sum", is_unnormalized_}}) {
    if (is_packed_) {
      add_optional(name, DType::fp32, {heads_, q_len_}, Strides::any, true, is_given);
    } else {
      add_optional(name, DType::fp32, {batch_, heads_, q_len_}, Strides::any, true, is_given);
    }
  }
}

void KvCacheCall::add_places() {
  const auto add_ints = [&](std::string_view name, std::int64_t count, bool is_given) {
    add_optional(name, DType::int32, {count}, Strides::contiguous, false, is_given);
  };
  add("cache_seqlens", DType::int32, {batch_}, Strides::contiguous, false);
  add_optional("block_table", DType::int32, {batch_, max_pages_}, Strides::rows, false, is_paged_);
  add_ints("cache_batch_idx", batch_, has_rows_idx_);
  add_ints("leftpad_k", batch_, !has_prefixes_ && choices_.one_in(4));
  add_ints("prefix_groups", groups_ + 1, has_prefixes_);
  add_ints("prefix_seqlens", groups_, has_prefixes_);
  add_ints("cu_seqlens_q", batch_ + 1, is_packed_);
}

void KvCacheCall::add_others() {
  const bool has_q_descale = dtype_ == DType::e4m3 && choices_.coin();
  if (choices_.coin()) {
    add_optional("q_descale", DType::fp32, {1}, Strides::any, false, has_q_descale);
  } else {
    add_optional("q_descale", DType::fp32, {batch_, kv_heads_}, Strides::any, false, has_q_descale);
  }
  for (const char* const name : {"k_descale", "v_descale"}) {
    const bool is_given = cache_dtype_ == DType::e4m3 && choices_.coin();
    switch (choices_.below(3)) {
      case 0:
        add_optional(name, DType::fp32, {1}, Strides::any, false, is_given);
        break;
      case 1:
        add_optional(name, DType::fp32, {batch_, kv_heads_}, Strides::any, false, is_given);
        break;
      default:
        add_optional(name, DType::fp32, {cache_rows_, page_size_, kv_heads_}, Strides::any, false,
                     is_given);
    }
  }
  if (is_packed_) {
    add_optional("tree_mask", DType::int64, {q_len_}, Strides::any, false, has_tree_);
  } else {
    add_optional("tree_mask", DType::int64, {batch_, q_len_}, Strides::any, false, has_tree_);
  }
  add_optional("sinks", DType::fp32, {heads_}, Strides::any, false, choices_.one_in(4));
}

// Mostly right: a prefix may reach into the new tokens.
void KvCacheCall::choose_prefixes(const std::vector<int>& cached) {
  std::vector<int> groups = {0}, seqlens;
  for (std::int64_t g = 1; g <= groups_; ++g) {
    const int first = groups.back();
    const std::int64_t end = g == groups_ ? batch_ : choices_.between(first, batch_);
    int most = first < end ? cached[static_cast<std::size_t>(first)] : 0;
    for (std::int64_t b = first; b < end; ++b) {
      most = std::min(most, cached[static_cast<std::size_t>(b)]);
    }
    groups.push_back(static_cast<int>(end));
    seqlens.push_back(static_cast<int>(choices_.between(0, most)));
  }
  contents_.emplace_back("prefix_groups", groups);
  contents_.emplace_back("prefix_seqlens", seqlens);
}

void KvCacheCall::choose_contents() {
  std::vector<int> starts = {0}, cached, rows, leftpad;
  for (std::int64_t b = 0; b < batch_; ++b) {
    starts.push_back(static_cast<int>(choices_.between(starts.back(), q_len_)));
    const std::int64_t most = page_size_ * max_pages_ - (appends_ ? added_ : 0);
    cached.push_back(static_cast<int>(choices_.between(0, std::max(most, std::int64_t{0}))));
    leftpad.push_back(static_cast<int>(choices_.between(0, cached.back())));
    rows.push_back(static_cast<int>((b + 1) % cache_rows_));
  }
  for (std::int64_t i = 0; i < batch_ * max_pages_; ++i) {
    table_.push_back(static_cast<int>((7 * i + 3) % cache_rows_));
  }
  contents_ = {{"cu_seqlens_q", starts},
               {"cache_seqlens", cached},
               {"cache_batch_idx", rows},
               {"leftpad_k", leftpad}};
  choose_prefixes(cached);
}

void KvCacheCall::update_outputs() {
  for (const char* const cache : {"k_cache", "v_cache"}) {
    set_is_output(cache, is_given("k") && is_given("v"));
  }
}

void KvCacheCall::spoil_options() {
  switch (choices_.below(6)) {
    case 0:
      options_.scale = choices_.one_of(kExtremeOptions);
      break;
    case 1:
      options_.softcap = choices_.one_of(kExtremeOptions);
      break;
    case 2:
      (choices_.coin() ? options_.window.left : options_.window.right) = choices_.between(-1, 3);
      break;
    case 3:
      options_.causal = !options_.causal;
      break;
    case 4: {
      constexpr std::array kNames = {"", "flash", "nobody", "cpu "};
      options_.kernel = choices_.one_of(kNames);
      break;
    }
    default: {
      const std::size_t which = choices_.below(contents_.size() + 1);
      std::vector<int>& values = which == contents_.size() ? table_ : contents_[which].second;
      values[choices_.below(values.size())] = choices_.one_of(kWildInts);
    }
  }
}

AttentionWithKvCacheTensors KvCacheCall::tensors() const {
  return {.q = tensor("q"),
          .k_cache = tensor("k_cache"),
          .v_cache = tensor("v_cache"),
          .o = tensor("o"),
          .cache_seqlens = tensor("cache_seqlens"),
          .block_table = input("block_table"),
          .cache_batch_idx = input("cache_batch_idx"),
          .leftpad_k = input("leftpad_k"),
          .prefix_groups = input("prefix_groups"),
          .prefix_seqlens = input("prefix_seqlens"),
          .cu_seqlens_q = input("cu_seqlens_q"),
          .k = input("k"),
          .v = input("v"),
          .q_descale = input("q_descale"),
          .k_descale = input("k_descale"),
          .v_descale = input("v_descale"),
          .tree_mask = input("tree_mask"),
          .sinks = input("sinks"),
          .lse = output("lse"),
          .row_max = output("row_max"),
          .row_sum = output("row_sum")};
}

// The offset of an entry of the table.
std::int64_t KvCacheCall::table_offset(std::int64_t b, std::int64_t page) const {
  const TensorView& table = tensor("block_table");
  return (table.shape[0] > 1 ? b * table.stride[0] : 0) +
         (table.shape[1] > 1 ? page * table.stride[1] : 0);
}

double KvCacheCall::largest_value() const {
  const double descale = is_given("v_descale") ? largest_of(input("v_descale")) : 1.0;
  return descale * std::max(largest_of(input("v_cache")), largest_of(input("v")));
}

void KvCacheCall::check_caches(const AttentionWithKvCacheTensors& t) const {
  check_cache(t, t.k_cache, t.k, k_before_);
  check_cache(t, t.v_cache, t.v, v_before_);
}

std::unique_ptr<Call> make_kvcache(Choices& choices, Arena& arena) {
  return std::make_unique<KvCacheCall>(choices, arena);
}

}  // namespace tilewright::fuzz
