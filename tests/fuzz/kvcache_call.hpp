// attention_with_kvcache() as the fuzzer calls it: kvcache_call.cpp makes the call,
// kvcache_contract.cpp says what the header says of it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/attention_parts.hpp"
#include "fuzz/call.hpp"
#include "tilewright/attention_with_kvcache.hpp"

namespace tilewright::fuzz {

class KvCacheCall final : public Call {
 public:
  KvCacheCall(Choices& choices, Arena& arena);

  void judge(Contract& c) const override;
  void fill() override;
  void judge_contents(Contract& c) const override;
  std::optional<std::size_t> workspace_bytes() const override;
  void make(Workspace workspace) const override;
  bool has_one_result() const override;
  void check_results() const override;

 private:
  using Sizes = std::array<std::int64_t, 4>;

  void choose_sizes();
  void choose_options();
  void add_rows();
  void add_places();
  void add_others();
  void choose_prefixes(const std::vector<int>& cached);
  void choose_contents();  // mostly right: a page of new rows may be two sequences'
  void update_outputs() override;
  void spoil_options() override;

  // ---- The contract

  bool is_packed() const { return is_given("cu_seqlens_q"); }
  double scale() const { return scale_of(options_.scale, tensor("q")); }

  // ([batch,] length, heads, dim) where the rank is right; all open elsewhere.
  Sizes row_sizes(std::string_view name) const;
  Sizes cache_sizes(std::string_view name) const;
  std::int64_t batch() const;

  // Open where a size is.
  std::int64_t capacity() const;

  void has_row_shape(Contract& c, std::string_view name, const Sizes& s) const;
  void judge_rows(Contract& c) const;
  void judge_places(Contract& c) const;
  void judge_prefixes(Contract& c) const;
  void judge_new_rows(Contract& c) const;
  void judge_q_descale(Contract& c) const;
  void judge_descale(Contract& c, const char* name) const;

  // Of o.
  static DType output_dtype(DType q, bool is_unnormalized);
  void refuse_window(Contract& c, std::string_view name) const;
  void judge_tree_mask(Contract& c) const;
  void judge_statistics(Contract& c) const;
  void judge_shared_keys(Contract& c, const std::vector<int>& cached,
                         const std::vector<std::int64_t>& keys) const;
  void judge_slots(Contract& c, const std::vector<int>& cached,
                   const std::vector<std::int64_t>& keys) const;

  // ---- Help

  AttentionWithKvCacheTensors tensors() const;
  std::int64_t table_offset(std::int64_t b, std::int64_t page) const;
  double largest_value() const;
  void check_caches(const AttentionWithKvCacheTensors& t) const;

  DType dtype_ = DType::fp32, cache_dtype_ = DType::fp32;
  std::int64_t batch_ = 1, q_len_ = 1, added_ = 1, heads_ = 1, kv_heads_ = 1;
  std::int64_t page_size_ = 1, max_pages_ = 1, cache_rows_ = 1;
  std::int64_t head_dim_ = 1, value_dim_ = 1, groups_ = 1;
  bool is_packed_ = false, is_paged_ = false, appends_ = false, has_rows_idx_ = false;
  bool is_unnormalized_ = false, has_tree_ = false, has_prefixes_ = false;
  std::vector<std::pair<const char*, std::vector<int>>> contents_;  // of vectors, by their names
  std::vector<int> table_;
  std::vector<double> k_before_, v_before_;  // the caches' elements before the call
  AttentionWithKvCacheOptions options_;
};

}  // namespace tilewright::fuzz
