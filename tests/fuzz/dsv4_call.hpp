// dsv4_attention() as the fuzzer calls it: dsv4_call.cpp makes the call, dsv4_contract.cpp says
// what the header says of it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/call.hpp"
#include "fuzz/rows.hpp"
#include "tilewright/dsv4_attention.hpp"

namespace tilewright::fuzz {

// What a scope's arguments are called.
struct Dsv4Names {
  const char* rows;
  const char* range_end;
  const char* range_begin;
  const char* block_table;
  const char* ring;
  const char* most_keys;
  const char* indices;
  const char* list_lengths;
};

inline constexpr std::array<Dsv4Names, 2> kDsv4Names = {
    {{"window.rows", "window.range_end", "window.range_begin", "window.block_table", "window.ring",
      "window.most_keys", "window.indices", "window.list_lengths"},
     {"compressed.rows", "compressed.range_end", "compressed.range_begin", "compressed.block_table",
      "compressed.ring", "compressed.most_keys", "compressed.indices", "compressed.list_lengths"}}};

class Dsv4Call final : public Call {
 public:
  Dsv4Call(Choices& choices, Arena& arena);

  void judge(Contract& c) const override;
  void fill() override;
  void judge_contents(Contract& c) const override;
  std::optional<std::size_t> workspace_bytes() const override;
  void make(Workspace workspace) const override;
  bool has_one_result() const override;
  void check_results() const override;

 private:
  using Numbers = std::vector<std::int64_t>;
  using TokenSizes = std::array<std::int64_t, 2>;  // (requests, tokens)

  // What a scope has beside its tensors.
  struct ScopeNumbers {
    std::int64_t ring = 0;
    std::int64_t most_keys = 0;
  };

  // A new token, and its number in tensors of tokens that are dense.
  struct Token {
    std::size_t request;
    std::size_t row;
  };

  void add_queries();
  void add_scope(std::size_t scope);
  void add_others();
  void choose_range(const Dsv4Names& names, ScopeNumbers& numbers, std::int64_t capacity);
  void fill_rows(const char* name, std::uint64_t seed);
  void update_outputs() override;
  void spoil_options() override;

  // Adds a tensor with something for each token.
  void add_of_tokens(std::string_view name, DType dtype, std::vector<std::int64_t> sizes,
                     Strides strides, bool is_output, bool is_given);

  // ---- The contract

  bool is_packed() const { return is_given("cu_seqlens_q"); }
  double scale() const;
  TokenSizes token_sizes() const;
  std::int64_t heads() const;
  std::int64_t batch() const;
  std::int64_t capacity(const Dsv4Names& names) const;

  bool has_token_shape(Contract& c, std::string_view name, std::vector<std::int64_t> sizes) const;
  void judge_ints(Contract& c, std::string_view name, std::vector<std::int64_t> sizes) const;
  void judge_rows(Contract& c) const;
  void judge_scope(Contract& c, std::size_t scope) const;
  void judge_range(Contract& c, const Dsv4Names& names, const ScopeNumbers& numbers) const;
  void judge_list(Contract& c, const Dsv4Names& names, const ScopeNumbers& numbers) const;
  void judge_results(Contract& c) const;
  void judge_rotation(Contract& c) const;

  std::optional<std::vector<Token>> tokens(Contract& c) const;
  void judge_ranges(Contract& c, std::size_t scope, const std::vector<Token>& tokens) const;
  void judge_lists(Contract& c, std::size_t scope, const std::vector<Token>& tokens) const;
  void judge_scales(Contract& c, std::size_t scope, const Numbers& slots) const;

  // ---- Help

  // A tensor's values; none if it is not given.
  Numbers integers(std::string_view name) const {
    return is_given(name) ? integers_of(tensor(name)) : Numbers();
  }
  std::optional<Dsv4Scope> scope_of(std::size_t scope) const;
  double value_bound(const Dsv4AttentionTensors& t) const;
  void check_quantized(const Dsv4AttentionTensors& t, const std::vector<double>& exact,
                       double bound) const;
  Dsv4AttentionTensors tensors() const;

  DType dtype_ = DType::fp32;
  std::int64_t batch_ = 1, tokens_ = 1, heads_ = 1;
  bool is_packed_ = false, is_unnormalized_ = false, is_quantized_ = false;
  std::array<ScopeNumbers, 2> numbers_;
  std::vector<std::pair<const char*, Numbers>> contents_;
  double largest_value_ = 0;  // of caches and fresh rows
  Dsv4AttentionOptions options_;
};

}  // namespace tilewright::fuzz
