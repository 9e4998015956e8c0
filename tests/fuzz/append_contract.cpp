// What the header says of a call of append_kv().
#include <algorithm>
#include <set>

#include "fuzz/append_call.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::int64_t kMostRows = (std::int64_t{1} << 30) - 1;

}  // namespace

void AppendCall::judge(Contract& c) const {
  judge_rows(c);
  judge_ways(c);
  judge_places(c);
  judge_rotation(c);
  judge_queries(c);
  judge_descale(c, "k_descale", "computed_k_descale");
  judge_descale(c, "v_descale", "computed_v_descale");
  if (options_.kernel != "auto" && options_.kernel != "cpu") {
    c.refuse("kernel");
    c.refuse("k");  // it is on no device of that kernel's
  }
  c.on_one_device(arguments());
  c.outputs_are_apart(arguments());
}

void AppendCall::has_row_shape(Contract& c, std::string_view name, const FourSizes& s) const {
  const Argument& argument = (*this)[name];
  if (is_packed() ? c.has_shape(argument, {s[1], s[2], s[3]})
                  : c.has_shape(argument, {s[0], s[1], s[2], s[3]})) {
    c.has_strides(argument, Strides::rows);
  }
}

void AppendCall::judge_rows(Contract& c) const {
  const FourSizes k = row_sizes("k");
  const FourSizes v = row_sizes("v");
  has_row_shape(c, "k", {kAny, kAny, kAny, kAny});
  has_row_shape(c, "v", {k[0], k[1], k[2], kAny});
  if (k[0] != kAny && k[1] != kAny && Wide{k[0]} * k[1] > kMostRows) {
    c.refuse("k");
  }
  const FourSizes cache = open_sizes<4>(tensor("k_cache"));
  if (c.has_shape((*this)["k_cache"], {kAny, kAny, k[2], k[3]})) {
    c.has_strides((*this)["k_cache"], Strides::rows);
  }
  if (c.has_shape((*this)["v_cache"], {cache[0], cache[1], k[2], v[3]})) {
    c.has_strides((*this)["v_cache"], Strides::rows);
  }
  const DType dtype = tensor("k").dtype;
  c.has_dtype((*this)["k"], {DType::fp32, DType::fp16, DType::bf16});
  c.has_dtype((*this)["v"], {dtype});
  c.has_dtype((*this)["k_cache"], {dtype, DType::e4m3});
  c.has_dtype((*this)["v_cache"], {tensor("k_cache").dtype});
}

// Which arguments say where rows go.
void AppendCall::judge_ways(Contract& c) const {
  if (has_slots() == is_given("cache_seqlens")) {
    c.refuse("slot_mapping");
    c.refuse("cache_seqlens");
  }
  for (const char* const name : {"cu_seqlens_new", "block_table", "cache_batch_idx"}) {
    if (has_slots() && is_given(name)) {
      c.refuse(name);
    }
  }
  if (is_given("block_table") && is_given("cache_batch_idx")) {
    c.refuse("cache_batch_idx");
  }
}

void AppendCall::judge_places(Contract& c) const {
  const std::int64_t size = sequences();
  for (const auto& [name, dtype, count] :
       {std::tuple{"slot_mapping", DType::int64, row_sizes("k")[1]},
        {"cache_seqlens", DType::int32, kAny},
        {"cu_seqlens_new", DType::int32, size == kAny ? kAny : size + 1},
        {"cache_batch_idx", DType::int32, size}}) {
    if (is_given(name)) {
      if (c.has_shape((*this)[name], {count})) {
        c.has_strides((*this)[name], Strides::contiguous);
      }
      c.has_dtype((*this)[name], {dtype});
    }
  }
  if (is_given("block_table")) {
    if (c.has_shape((*this)["block_table"], {size, kAny})) {
      c.has_strides((*this)["block_table"], Strides::rows);
    }
    c.has_dtype((*this)["block_table"], {DType::int32});
  } else if (!has_slots() && !is_given("cache_batch_idx") && size != kAny &&
             open_sizes<4>(tensor("k_cache"))[0] != size) {
    c.refuse("k_cache");
  }
  if (!is_packed() && size != kAny && row_sizes("k")[0] != size) {
    c.refuse("k");
  }
}

void AppendCall::judge_rotation(Contract& c) const {
  if (is_given("rotary_cos") != is_given("rotary_sin")) {
    c.refuse("rotary_cos");
    c.refuse("rotary_sin");
  }
  const FourSizes k = row_sizes("k");
  if (is_given("rotary_cos") && is_given("rotary_sin")) {
    judge_rotary_tables(c, (*this)["rotary_cos"], (*this)["rotary_sin"], k[3], tensor("k").dtype);
  }
  if (is_given("positions")) {
    if (!is_given("rotary_cos")) {
      c.refuse("positions");
    }
    if (is_packed() ? c.has_shape((*this)["positions"], {k[1]})
                    : c.has_shape((*this)["positions"], {k[0], k[1]})) {
      c.has_strides((*this)["positions"], Strides::rows);
    }
    c.has_dtype((*this)["positions"], {DType::int64});
  } else if (is_given("rotary_cos") && has_slots()) {
    c.refuse("positions");
  }
}

void AppendCall::judge_queries(Contract& c) const {
  if (is_given("q") != is_given("q_out")) {
    c.refuse("q");
    c.refuse("q_out");
  }
  const FourSizes k = row_sizes("k");
  const std::int64_t heads = is_given("q") ? row_sizes("q")[2] : kAny;
  for (const char* const name : {"q", "q_out"}) {
    if (is_given(name)) {
      has_row_shape(c, name, {k[0], k[1], heads, k[3]});
      c.has_dtype((*this)[name], {tensor("k").dtype});
      if (!is_given("rotary_cos")) {
        c.refuse(name);
      }
    }
  }
}

void AppendCall::judge_descale(Contract& c, const char* given, const char* computed) const {
  const bool is_e4m3 = tensor("k_cache").dtype == DType::e4m3;
  if (is_e4m3 ? is_given(given) == is_given(computed) : is_given(given) || is_given(computed)) {
    c.refuse(given);
    c.refuse(computed);
  }
  const std::int64_t heads = row_sizes("k")[2];
  if (is_given(given)) {
    if (tensor(given).rank == 2) {
      c.has_shape((*this)[given], {sequences(), heads});
      if (has_slots()) {
        c.refuse(given);
      }
    } else {
      c.has_shape((*this)[given], {1});
    }
    c.has_dtype((*this)[given], {DType::fp32});
  }
  if (is_given(computed)) {
    const FourSizes cache = open_sizes<4>(tensor("k_cache"));
    c.has_shape((*this)[computed], {cache[0], cache[1], heads});
    c.has_dtype((*this)[computed], {DType::fp32});
  }
}

void AppendCall::judge_contents(Contract& c) const {
  if (!has_slots()) {
    Numbers starts = integers("cu_seqlens_new");
    const std::int64_t tokens = tensor("k").shape[is_packed() ? 0 : 1];
    if (!starts.empty() &&
        (starts.front() != 0 || !std::ranges::is_sorted(starts) || starts.back() > tokens)) {
      return c.refuse_contents("cu_seqlens_new");
    }
    for (std::int64_t b = 0; !is_packed() && b <= sequences(); ++b) {
      starts.push_back(b * tokens);
    }
    return judge_lengths(c, starts);
  }
  const Numbers slots = integers("slot_mapping");
  std::set<std::int64_t> taken;
  std::vector<bool> is_looked_at;
  for (const std::int64_t slot : slots) {
    const bool is_stored = slot != -1;
    if (is_stored && (slot < 0 || slot >= tensor("k_cache").shape[0] * tensor("k_cache").shape[1] ||
                      !taken.insert(slot).second)) {
      c.refuse_contents("slot_mapping");
    }
    is_looked_at.push_back(is_stored || is_given("q"));
  }
  judge_positions(c, is_looked_at);
}

// Rows behind the keys that are there: sequence b has the new rows from starts[b] on.
void AppendCall::judge_lengths(Contract& c, const Numbers& starts) const {
  const Numbers cached = integers("cache_seqlens");
  const Numbers table = integers("block_table");
  const Numbers entries = integers("cache_batch_idx");
  const std::int64_t pages = tensor("k_cache").shape[0];
  const std::int64_t page_size = tensor("k_cache").shape[1];
  const std::int64_t columns = table.empty() ? 1 : tensor("block_table").shape[1];
  const char* const place = !table.empty() ? "block_table" : "cache_batch_idx";
  std::set<std::pair<std::int64_t, std::int64_t>> taken;
  for (std::size_t b = 0; b < cached.size(); ++b) {
    const std::int64_t added = starts[b + 1] - starts[b];
    if (cached[b] < 0 || cached[b] + added > columns * page_size) {
      c.refuse_contents("cache_seqlens");
      continue;
    }
    if (!entries.empty() && (entries[b] < 0 || entries[b] >= pages)) {
      c.refuse_contents("cache_batch_idx");
    }
    for (std::int64_t p = cached[b]; p < cached[b] + added; ++p) {
      const auto sequence = static_cast<std::int64_t>(b);
      const std::int64_t page =
          !table.empty()    ? table[static_cast<std::size_t>(sequence * columns + p / page_size)]
          : entries.empty() ? sequence
                            : entries[b];
      if (page < 0 || page >= pages || !taken.emplace(page, p % page_size).second) {
        c.refuse_contents(place);
      }
      if (is_given("rotary_cos") && !is_given("positions") && p >= tensor("rotary_cos").shape[0]) {
        c.refuse_contents("rotary_cos");
      }
    }
  }
  std::vector<bool> is_looked_at(integers("positions").size());
  std::fill_n(is_looked_at.begin(),
              std::min(is_looked_at.size(), static_cast<std::size_t>(starts.back())), true);
  judge_positions(c, is_looked_at);
}

void AppendCall::judge_positions(Contract& c, const std::vector<bool>& is_looked_at) const {
  const Numbers positions = integers("positions");
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (is_looked_at[i] && (positions[i] < 0 || positions[i] >= tensor("rotary_cos").shape[0])) {
      c.refuse_contents("positions");
    }
  }
}

}  // namespace tilewright::fuzz
