// What the header says of a call of attention_with_kvcache().
#include <algorithm>
#include <set>

#include "fuzz/kvcache_call.hpp"
#include "reference/attention_with_kvcache.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::int64_t kMostKeys = (std::int64_t{1} << 30) - 1;
constexpr std::int64_t kNoWindow = 1 << 29;  // a window so wide may be taken for none
constexpr std::int64_t kMostTreeTokens = 64;

}  // namespace

KvCacheCall::Sizes KvCacheCall::row_sizes(std::string_view name) const {
  const TensorView& t = tensor(name);
  const auto& s = t.shape;
  if (t.rank != (is_packed() ? 3 : 4)) {
    return {kAny, kAny, kAny, kAny};
  }
  return is_packed() ? Sizes{kAny, known(s[0]), known(s[1]), known(s[2])}
                     : Sizes{known(s[0]), known(s[1]), known(s[2]), known(s[3])};
}

KvCacheCall::Sizes KvCacheCall::cache_sizes(std::string_view name) const {
  const TensorView& t = tensor(name);
  return t.rank != 4
             ? Sizes{kAny, kAny, kAny, kAny}
             : Sizes{known(t.shape[0]), known(t.shape[1]), known(t.shape[2]), known(t.shape[3])};
}

std::int64_t KvCacheCall::batch() const {
  if (!is_packed()) {
    return row_sizes("q")[0];
  }
  const std::int64_t boundaries = known(tensor("cu_seqlens_q").shape[0]);
  return boundaries == kAny ? kAny : known(boundaries - 1);
}

std::int64_t KvCacheCall::capacity() const {
  const std::int64_t rows = cache_sizes("k_cache")[1];
  if (!is_given("block_table")) {
    return rows;
  }
  const std::int64_t pages = known(tensor("block_table").shape[1]);
  return rows == kAny || pages == kAny ? kAny : rows * pages;
}

void KvCacheCall::has_row_shape(Contract& c, std::string_view name, const Sizes& s) const {
  const Argument& argument = (*this)[name];
  if (is_packed() ? c.has_shape(argument, {s[1], s[2], s[3]})
                  : c.has_shape(argument, {s[0], s[1], s[2], s[3]})) {
    c.has_strides(argument, Strides::rows);
  }
}

void KvCacheCall::judge_rows(Contract& c) const {
  const Sizes q = row_sizes("q");
  const Sizes k = cache_sizes("k_cache");
  const Sizes v = cache_sizes("v_cache");
  has_row_shape(c, "q", {kAny, kAny, kAny, kAny});
  has_row_shape(c, "o", {q[0], q[1], q[2], v[3]});
  if (c.has_shape((*this)["k_cache"], {kAny, kAny, kAny, q[3]})) {
    c.has_strides((*this)["k_cache"], Strides::rows);
  }
  if (c.has_shape((*this)["v_cache"], {k[0], k[1], k[2], kAny})) {
    c.has_strides((*this)["v_cache"], Strides::rows);
  }
  if (std::max(q[3], v[3]) > kMostHeadDim) {
    for (const char* const name : {"q", "k_cache", "v_cache", "o"}) {
      c.refuse(name);
    }
  }
  if (q[2] != kAny && k[2] != kAny && q[2] % k[2] != 0) {
    c.refuse("k_cache");
  }
  const DType cache_dtype = tensor("k_cache").dtype;
  c.has_dtype((*this)["q"], {DType::fp32, DType::fp16, DType::bf16, DType::e4m3});
  c.has_dtype((*this)["k_cache"], {tensor("q").dtype, DType::e4m3});
  c.has_dtype((*this)["v_cache"], {cache_dtype});
  c.has_dtype((*this)["o"], {output_dtype(tensor("q").dtype, is_given("row_max"))});
}

void KvCacheCall::judge_places(Contract& c) const {
  const std::int64_t size = batch();
  for (const auto& [name, more] : {std::pair{"cache_seqlens", 0},
                                   {"cache_batch_idx", 0},
                                   {"leftpad_k", 0},
                                   {"cu_seqlens_q", 1}}) {
    if (is_given(name)) {
      if (c.has_shape((*this)[name], {size == kAny ? kAny : size + more})) {
        c.has_strides((*this)[name], Strides::contiguous);
      }
      c.has_dtype((*this)[name], {DType::int32});
    }
  }
  if (is_packed() && tensor("cu_seqlens_q").shape[0] < 2) {
    c.refuse("cu_seqlens_q");
  }
  const std::int64_t rows = cache_sizes("k_cache")[0];
  if (is_given("block_table")) {
    if (c.has_shape((*this)["block_table"], {size, kAny})) {
      c.has_strides((*this)["block_table"], Strides::rows);
    }
    c.has_dtype((*this)["block_table"], {DType::int32});
    if (capacity() > kMostKeys) {
      c.refuse("block_table");
    }
    if (is_given("cache_batch_idx")) {
      c.refuse("cache_batch_idx");
    }
  } else if (!is_given("cache_batch_idx") && rows != kAny && rows < size) {
    c.refuse("k_cache");
  }
}

void KvCacheCall::judge_prefixes(Contract& c) const {
  if (is_given("prefix_groups") != is_given("prefix_seqlens")) {
    c.refuse("prefix_groups");
    c.refuse("prefix_seqlens");
  }
  std::int64_t groups = kAny;
  if (is_given("prefix_groups")) {
    const std::int64_t boundaries = known(tensor("prefix_groups").shape[0]);
    groups = boundaries == kAny ? kAny : known(boundaries - 1);
    if (c.has_shape((*this)["prefix_groups"], {kAny})) {
      c.has_strides((*this)["prefix_groups"], Strides::contiguous);
    }
    c.has_dtype((*this)["prefix_groups"], {DType::int32});
    if (tensor("prefix_groups").shape[0] < 2 || is_given("leftpad_k")) {
      c.refuse("prefix_groups");
    }
    refuse_window(c, "prefix_groups");
  }
  if (is_given("prefix_seqlens")) {
    if (c.has_shape((*this)["prefix_seqlens"], {groups})) {
      c.has_strides((*this)["prefix_seqlens"], Strides::contiguous);
    }
    c.has_dtype((*this)["prefix_seqlens"], {DType::int32});
  }
}

void KvCacheCall::judge_new_rows(Contract& c) const {
  if (is_given("k") != is_given("v")) {
    c.refuse("k");
    c.refuse("v");
  }
  const Sizes q = row_sizes("q");
  for (const auto& [name, cache] : {std::pair{"k", "k_cache"}, {"v", "v_cache"}}) {
    if (!is_given(name)) {
      continue;
    }
    const Sizes its_cache = cache_sizes(cache);
    const std::int64_t length = is_packed() ? q[1] : is_given("k") ? row_sizes("k")[1] : kAny;
    has_row_shape(c, name, {q[0], length, its_cache[2], its_cache[3]});
    c.has_dtype((*this)[name], {tensor("k_cache").dtype});
    const std::int64_t added = row_sizes(name)[1];
    if (!is_packed() && added != kAny && capacity() != kAny && added > capacity()) {
      c.refuse(name);
    }
  }
}

DType KvCacheCall::output_dtype(DType q, bool is_unnormalized) {
  return is_unnormalized ? DType::fp32 : q == DType::e4m3 ? DType::bf16 : q;
}

void KvCacheCall::judge_q_descale(Contract& c) const {
  if (!is_given("q_descale")) {
    return;
  }
  const Argument& descale = (*this)["q_descale"];
  if (tensor("q").dtype != DType::e4m3) {
    c.refuse("q_descale");
  }
  if (tensor("q_descale").rank == 1) {
    c.has_shape(descale, {1});
  } else {
    c.has_shape(descale, {batch(), cache_sizes("k_cache")[2]});
  }
  c.has_dtype(descale, {DType::fp32});
}

void KvCacheCall::judge_descale(Contract& c, const char* name) const {
  if (!is_given(name)) {
    return;
  }
  const Sizes k = cache_sizes("k_cache");
  if (tensor("k_cache").dtype != DType::e4m3) {
    c.refuse(name);
  }
  switch (tensor(name).rank) {
    case 1:
      c.has_shape((*this)[name], {1});
      break;
    case 2:
      c.has_shape((*this)[name], {batch(), k[2]});
      break;
    default:
      c.has_shape((*this)[name], {k[0], k[1], k[2]});
  }
  c.has_dtype((*this)[name], {DType::fp32});
}

// For an argument that is not given together with a window.
void KvCacheCall::refuse_window(Contract& c, std::string_view name) const {
  for (const auto& side : {options_.window.left, options_.window.right}) {
    if (side) {
      *side < kNoWindow ? c.refuse(name) : c.doubt(name);
    }
  }
}

void KvCacheCall::judge_tree_mask(Contract& c) const {
  if (!is_given("tree_mask")) {
    return;
  }
  const Sizes q = row_sizes("q");
  if (is_packed()) {
    c.has_shape((*this)["tree_mask"], {q[1]});
  } else {
    c.has_shape((*this)["tree_mask"], {q[0], q[1]});
    if (q[1] > kMostTreeTokens) {
      c.refuse("tree_mask");
    }
  }
  c.has_dtype((*this)["tree_mask"], {DType::int64});
  refuse_window(c, "tree_mask");
  if (options_.causal) {
    c.refuse("tree_mask");
  }
}

void KvCacheCall::judge_statistics(Contract& c) const {
  if (is_given("row_max") != is_given("row_sum")) {
    c.refuse("row_max");
    c.refuse("row_sum");
  }
  const Sizes q = row_sizes("q");
  for (const char* const name : {"lse", "row_max", "row_sum"}) {
    if (is_given(name)) {
      is_packed() ? c.has_shape((*this)[name], {q[2], q[1]})
                  : c.has_shape((*this)[name], {q[0], q[2], q[1]});
      c.has_dtype((*this)[name], {DType::fp32});
    }
  }
  if (is_given("sinks")) {
    c.has_shape((*this)["sinks"], {q[2]});
    c.has_dtype((*this)["sinks"], {DType::fp32});
  }
}

void KvCacheCall::judge(Contract& c) const {
  judge_rows(c);
  judge_places(c);
  judge_prefixes(c);
  judge_new_rows(c);
  judge_q_descale(c);
  judge_descale(c, "k_descale");
  judge_descale(c, "v_descale");
  judge_tree_mask(c);
  judge_statistics(c);
  judge_score_options(c, options_.scale, scale(), options_.softcap, options_.window);
  if (options_.kernel != "auto" && options_.kernel != "cpu") {
    c.refuse("kernel");
    c.refuse("q");  // it is on no device of that kernel's
  }
  c.on_one_device(arguments());
  c.outputs_are_apart(arguments());
}

void KvCacheCall::judge_contents(Contract& c) const {
  const std::vector<int> cu_seqlens =
      is_given("cu_seqlens_q") ? ints_of(tensor("cu_seqlens_q")) : std::vector<int>();
  if (!cu_seqlens.empty() && !are_boundaries(cu_seqlens, tensor("q").shape[0])) {
    c.refuse_contents("cu_seqlens_q");
    return;
  }
  const std::vector<int> cached = ints_of(tensor("cache_seqlens"));
  std::vector<std::int64_t> keys;
  for (std::size_t b = 0; b < cached.size(); ++b) {
    const std::int64_t tokens =
        cu_seqlens.empty() ? 0 : std::int64_t{cu_seqlens[b + 1]} - cu_seqlens[b];
    const std::int64_t added = !is_given("k")       ? 0
                               : cu_seqlens.empty() ? tensor("k").shape[1]
                                                    : tokens;
    if (is_given("tree_mask") && tokens > kMostTreeTokens) {
      c.refuse_contents("cu_seqlens_q");
    }
    if (cached[b] < 0 || cached[b] + added > capacity()) {
      c.refuse_contents("cache_seqlens");
      return;
    }
    keys.push_back(cached[b] + added);
  }
  if (is_given("prefix_groups")) {
    const std::vector<int> groups = ints_of(tensor("prefix_groups"));
    if (!are_boundaries(groups, batch()) || groups.back() != batch()) {
      c.refuse_contents("prefix_groups");
      return;
    }
    judge_shared_keys(c, cached, keys);
  }
  judge_slots(c, cached, keys);
}

// The cache has all keys of a prefix, and all tokens see them.
void KvCacheCall::judge_shared_keys(Contract& c, const std::vector<int>& cached,
                                    const std::vector<std::int64_t>& keys) const {
  const AttentionWithKvCacheTensors t = tensors();
  const std::vector<int> groups = ints_of(tensor("prefix_groups"));
  const std::vector<int> seqlens = ints_of(tensor("prefix_seqlens"));
  const std::vector<int> cu_seqlens =
      is_packed() ? ints_of(tensor("cu_seqlens_q")) : std::vector<int>();
  for (std::size_t g = 0; g < seqlens.size(); ++g) {
    const int shared = seqlens[g];
    for (int b = groups[g]; b < groups[g + 1]; ++b) {
      const auto at = static_cast<std::size_t>(b);
      const std::int64_t tokens =
          cu_seqlens.empty() ? t.q.shape[1] : cu_seqlens[at + 1] - cu_seqlens[at];
      const std::int64_t first_token = keys[at] - tokens;
      const bool is_seen = shared == 0 || tokens == 0 ||
                           ((!options_.causal || shared - 1 <= first_token) &&
                            (!t.tree_mask || shared <= first_token));
      if (shared < 0 || shared > cached[at] || !is_seen) {
        c.refuse_contents("prefix_seqlens");
      }
    }
  }
}

// Paddings, rows and pages in range, and no slot for two new rows.
void KvCacheCall::judge_slots(Contract& c, const std::vector<int>& cached,
                              const std::vector<std::int64_t>& keys) const {
  const auto is_in = [](int value, std::int64_t end) { return value >= 0 && value < end; };
  const std::int64_t entries = tensor("k_cache").shape[0];
  const std::int64_t page_size = tensor("k_cache").shape[1];
  const auto values_of = [&](const char* name) {
    return is_given(name) ? ints_of(tensor(name)) : std::vector<int>();
  };
  const std::vector<int> leftpad = values_of("leftpad_k");
  const std::vector<int> rows = values_of("cache_batch_idx");
  const AttentionWithKvCacheTensors t = tensors();
  std::set<int> written_rows;
  std::set<std::pair<std::int64_t, std::int64_t>> written;
  for (std::size_t b = 0; b < keys.size(); ++b) {
    if (!leftpad.empty() && !is_in(leftpad[b], keys[b] + 1)) {
      c.refuse_contents("leftpad_k");
    }
    const bool is_written = keys[b] > cached[b];
    if (!rows.empty() &&
        (!is_in(rows[b], entries) || (is_written && !written_rows.insert(rows[b]).second))) {
      c.refuse_contents("cache_batch_idx");
    }
    const auto sequence = static_cast<std::int64_t>(b);
    for (std::int64_t j = 0; is_given("block_table") && j < keys[b]; ++j) {
      if (reference::holder_of(t, sequence, j) != sequence) {
        continue;
      }
      const auto page = static_cast<int>(
          reference::load(tensor("block_table"), table_offset(sequence, j / page_size)));
      const bool is_new = j >= cached[b];
      if (!is_in(page, entries) || (is_new && !written.emplace(page, j % page_size).second)) {
        c.refuse_contents("block_table");
      }
    }
  }
}

}  // namespace tilewright::fuzz
