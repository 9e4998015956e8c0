// append_kv() as the fuzzer calls it: append_call.cpp makes the call, append_contract.cpp says what
// the header says of it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "fuzz/call.hpp"
#include "fuzz/rows.hpp"
#include "tilewright/append_kv.hpp"

namespace tilewright::fuzz {

class AppendCall final : public Call {
 public:
  AppendCall(Choices& choices, Arena& arena);

  void judge(Contract& c) const override;
  void fill() override;
  void judge_contents(Contract& c) const override;
  void make(Workspace) const override;
  void check_results() const override;

 private:
  using Numbers = std::vector<std::int64_t>;
  using FourSizes = std::array<std::int64_t, 4>;  // (sequences, tokens, heads, head_dim)

  void choose_sizes();
  void add_rows();
  void add_places();
  void add_rotation();
  void add_descales();
  void choose_contents();
  void spoil_options() override;

  // ---- The contract

  bool has_slots() const { return is_given("slot_mapping"); }
  bool is_packed() const { return has_slots() || is_given("cu_seqlens_new"); }

  FourSizes row_sizes(std::string_view name) const {
    const auto [tokens, heads, dim] = open_sizes<3>(tensor(name));
    return is_packed() ? FourSizes{kAny, tokens, heads, dim} : open_sizes<4>(tensor(name));
  }

  void has_row_shape(Contract& c, std::string_view name, const FourSizes& s) const;
  std::int64_t sequences() const {
    return is_given("cache_seqlens") ? open_sizes<1>(tensor("cache_seqlens"))[0] : kAny;
  }
  void judge_rows(Contract& c) const;
  void judge_ways(Contract& c) const;
  void judge_places(Contract& c) const;
  void judge_rotation(Contract& c) const;
  void judge_queries(Contract& c) const;
  void judge_descale(Contract& c, const char* given, const char* computed) const;
  void judge_lengths(Contract& c, const Numbers& starts) const;
  void judge_positions(Contract& c, const std::vector<bool>& is_looked_at) const;

  // ---- Help

  // A tensor's values; none if it is not given.
  Numbers integers(std::string_view name) const {
    return is_given(name) ? integers_of(tensor(name)) : Numbers();
  }
  AppendKvTensors tensors() const;

  // Adds rows, or queries.
  void add_of_tokens(std::string_view name, DType dtype, std::int64_t heads, std::int64_t dim,
                     bool is_output, bool is_given);

  DType dtype_ = DType::fp32, cache_dtype_ = DType::fp32;
  std::int64_t sequences_ = 1, tokens_ = 1, kv_heads_ = 1, head_dim_ = 1, value_dim_ = 1;
  std::int64_t pages_ = 1, page_size_ = 1, max_pages_ = 1, positions_ = 1;
  bool has_slots_ = false, is_packed_ = false, has_table_ = false, has_idx_ = false;
  bool rotates_ = false;
  std::vector<std::pair<const char*, Numbers>> contents_;
  std::vector<std::optional<reference::HostTensor>> before_;  // of kOutputs
  AppendKvOptions options_;
};

}  // namespace tilewright::fuzz
