// rope(), quantize_kv_rows() and dequantize_kv_rows() against their contracts.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "fuzz/attention_parts.hpp"
#include "fuzz/call.hpp"
#include "fuzz/rows.hpp"
#include "reference/kv_rows.hpp"
#include "reference/rope.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::array<std::int64_t, 4> kWildLongs = {-1, -2, 1 << 20,
                                                    std::numeric_limits<std::int64_t>::max()};

// What these calls share: rows with a number each, and a kernel's name.
class RowCall : public Call {
 public:
  RowCall(Choices& choices, Arena& arena, const char* numbers)
      : Call(choices, arena), numbers_(numbers) {
    rows_ = choices_.between(1, 5);
    kernel_ = choices_.coin() ? "cpu" : "auto";
  }

 protected:
  // Adds the numbers: random ones below `end`, each of them once if they must differ.
  void add_numbers(std::int64_t end, bool must_differ) {
    add(numbers_, DType::int64, {rows_}, Strides::contiguous, false);
    const std::int64_t first = choices_.between(0, end - 1);
    for (std::int64_t i = 0; i < rows_; ++i) {
      const bool is_none = must_differ && (i >= end || choices_.one_in(6));
      values_.push_back(is_none ? -1 : (first + i) % end);
    }
  }

  void fill_numbers() const { store_integers(tensor(numbers_), values_); }
  std::vector<std::int64_t> numbers() const { return integers_of(tensor(numbers_)); }

  void judge_numbers(Contract& c, std::int64_t rows) const {
    if (c.has_shape((*this)[numbers_], {rows})) {
      c.has_strides((*this)[numbers_], Strides::contiguous);
    }
    c.has_dtype((*this)[numbers_], {DType::int64});
  }

  void judge_kernel(Contract& c, std::string_view of_device) const {
    if (kernel_ != "auto" && kernel_ != "cpu") {
      c.refuse("kernel");
      c.refuse(of_device);  // it is on no device of that kernel's
    }
  }

  void spoil_options() override {
    constexpr std::array kNames = {"", "flash", "hopper", "cpu "};
    if (choices_.coin()) {
      kernel_ = choices_.one_of(kNames);
    } else {
      values_[choices_.below(values_.size())] = choices_.one_of(kWildLongs);
    }
  }

  std::int64_t rows_ = 1;
  std::string_view kernel_;

 private:
  const char* numbers_;
  std::vector<std::int64_t> values_;
};

// ---- Rotations

constexpr std::pair<std::string_view, std::string_view> kOutAndX = {"out", "x"};

class RopeCall final : public RowCall {
 public:
  RopeCall(Choices& choices, Arena& arena) : RowCall(choices, arena, "positions") {
    const DType dtype = choices_.one_of(kFloats);
    const std::int64_t dim = choices_.between(2, 24);
    const std::int64_t positions = choices_.between(1, 9);
    const std::int64_t pairs = choices_.between(1, dim / 2);
    const std::int64_t heads = choices_.between(0, 3);
    for (const auto& [name, is_output] : {std::pair{"x", false}, {"out", true}}) {
      if (heads == 0) {
        add(name, dtype, {rows_, dim}, Strides::rows, is_output);
      } else {
        add(name, dtype, {rows_, heads, dim}, Strides::rows, is_output);
      }
    }
    const DType table_dtype = choices_.coin() ? DType::fp32 : dtype;
    add("rotary_cos", table_dtype, {positions, pairs}, Strides::rows, false);
    add("rotary_sin", table_dtype, {positions, pairs}, Strides::rows, false);
    add_numbers(positions, false);
    if (choices_.one_in(3)) {
      replace("x", tensor("out"));
    }
    options_ = {.interleaved = choices_.coin(),
                .rotates_last = choices_.coin(),
                .inverse = choices_.coin(),
                .check_values = choices_.coin()};
  }

  void judge(Contract& c) const override {
    const TensorView& x = tensor("x");
    const TensorView& out = tensor("out");
    const bool has_heads = x.rank != 2;
    const auto [rows, heads, dim] = open_sizes<3>(x);
    const auto [rows_of_one, dim_of_one] = open_sizes<2>(x);
    for (const char* const name : {"x", "out"}) {
      const bool is_right = has_heads ? c.has_shape((*this)[name], {rows, heads, dim})
                                      : c.has_shape((*this)[name], {rows_of_one, dim_of_one});
      if (is_right) {
        c.has_strides((*this)[name], Strides::rows);
      }
    }
    c.has_dtype((*this)["x"], {DType::fp32, DType::fp16, DType::bf16});
    c.has_dtype((*this)["out"], {x.dtype});
    judge_rotary_tables(c, (*this)["rotary_cos"], (*this)["rotary_sin"],
                        has_heads ? dim : dim_of_one, x.dtype);
    judge_numbers(c, has_heads ? rows : rows_of_one);
    judge_kernel(c, "x");
    c.on_one_device(arguments());
    const bool is_in_place = out.data == x.data && is_x(c);
    c.outputs_are_apart(arguments(), is_in_place ? std::optional(kOutAndX) : std::nullopt);
  }

  void fill() override {
    const std::uint64_t seed = choices_.below(1000);
    fill_normal(input("x"), seed);
    fill_normal(input("rotary_cos"), seed + 1);
    fill_normal(input("rotary_sin"), seed + 2);
    fill_numbers();
    x_before_ = dense_copy(tensor("x"));
  }

  void judge_contents(Contract& c) const override {
    for (const std::int64_t position : numbers()) {
      if (position < 0 || position >= tensor("rotary_cos").shape[0]) {
        c.refuse_contents("positions");
      }
    }
  }

  void make(Workspace) const override {
    RopeOptions options = options_;
    options.kernel = kernel_;
    rope(tensors(), options);
  }

  void check_results() const override {
    RopeTensors t = tensors();
    reference::HostTensor out = dense_copy(t.out);
    t.x = x_before_->view();
    t.out = out.view();
    reference::rope(t, options_);
    check_same_bits(tensor("out"), out, "out");
  }

 private:
  // Whether out, whose data are x's, is x; dimensions of size 1 may differ in strides, which are
  // then doubtful.
  bool is_x(Contract& c) const {
    const TensorView& x = tensor("x");
    const TensorView& out = tensor("out");
    bool is_same = x.rank == out.rank && x.dtype == out.dtype;
    for (int i = 0; is_same && i < std::clamp(x.rank, 0, kMaxRank); ++i) {
      is_same = x.shape[i] == out.shape[i] && (x.stride[i] == out.stride[i] || x.shape[i] == 1);
      if (is_same && x.stride[i] != out.stride[i]) {
        c.doubt("out");
        c.doubt("x");
      }
    }
    return is_same;
  }

  RopeTensors tensors() const {
    return {.x = tensor("x"),
            .out = tensor("out"),
            .rotary_cos = tensor("rotary_cos"),
            .rotary_sin = tensor("rotary_sin"),
            .positions = tensor("positions")};
  }

  RopeOptions options_;
  std::optional<reference::HostTensor> x_before_;
};

// ---- KV rows

// Quantising, or dequantising.
class KvRowsCall final : public RowCall {
 public:
  KvRowsCall(Choices& choices, Arena& arena, bool quantizes)
      : RowCall(choices, arena, "slot_mapping"), quantizes_(quantizes) {
    constexpr std::array kFormats = {KvRowFormat::bf16, KvRowFormat::e4m3_bf16, KvRowFormat::e4m3,
                                     KvRowFormat::e2m1};
    const KvRowFormat format = choices_.one_of(kFormats);
    const std::int64_t pages = choices_.between(1, 4);
    const std::int64_t page_size = choices_.between(1, 4);
    const DType dtype = choices_.coin() ? DType::fp32 : DType::bf16;
    const auto add_vectors = [&] {
      add(vectors(), dtype, {rows_, kKvRowDims}, Strides::rows, !quantizes);
    };
    if (quantizes) {
      add_vectors();
    }
    const bool is_bf16 = format == KvRowFormat::bf16;
    add("rows", is_bf16 ? DType::bf16 : DType::u8,
        {pages, page_size, is_bf16 ? std::int64_t{kKvRowDims} : kv_row_bytes(format)},
        format == KvRowFormat::e4m3_bf16 ? Strides::contiguous : Strides::rows, quantizes);
    if (!quantizes) {
      add_vectors();
    }
    add_numbers(pages * page_size, quantizes);
    check_values_ = choices_.coin();
  }

  void judge(Contract& c) const override {
    const TensorView& rows = tensor("rows");
    const auto [count, dims] = open_sizes<2>(tensor(vectors()));
    if (c.has_shape((*this)[vectors()], {kAny, kKvRowDims})) {
      c.has_strides((*this)[vectors()], Strides::rows);
    }
    c.has_dtype((*this)[vectors()], {DType::fp32, DType::bf16});
    if (c.has_shape((*this)["rows"], {kAny, kAny, kAny})) {
      const auto format = kv_row_format(rows.dtype, rows.shape[2]);
      if (!format) {
        c.refuse("rows");
      }
      c.has_strides((*this)["rows"],
                    format == KvRowFormat::e4m3_bf16 ? Strides::contiguous : Strides::rows);
    }
    judge_numbers(c, count);
    judge_kernel(c, quantizes_ ? "x" : "rows");
    c.on_one_device(arguments());
    c.outputs_are_apart(arguments());
  }

  void fill() override {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const std::uint64_t seed = choices_.below(1000);
    if (quantizes_) {
      fill_normal(input("x"), seed);
      put_somewhere("x", {kNaN, kInfinity, -kInfinity, 1e30f, 0.0f});
    } else if (tensor("rows").dtype == DType::u8) {
      fill_bytes(input("rows"), seed, 0, 255);
    } else {
      fill_normal(input("rows"), seed);
    }
    fill_numbers();
    before_ = dense_copy(tensor(quantizes_ ? "rows" : "out"));
  }

  void judge_contents(Contract& c) const override {
    const TensorView& rows = tensor("rows");
    std::set<std::int64_t> taken;
    for (const std::int64_t slot : numbers()) {
      const bool is_free = slot < 0 || taken.insert(slot).second || !quantizes_;
      if (slot < -1 || slot >= rows.shape[0] * rows.shape[1] || !is_free) {
        c.refuse_contents("slot_mapping");
      }
    }
  }

  void make(Workspace) const override {
    const KvRowsOptions options{.check_values = check_values_, .kernel = kernel_};
    if (quantizes_) {
      quantize_kv_rows(
          {.x = tensor("x"), .rows = tensor("rows"), .slot_mapping = tensor("slot_mapping")},
          options);
    } else {
      dequantize_kv_rows(
          {.rows = tensor("rows"), .out = tensor("out"), .slot_mapping = tensor("slot_mapping")},
          options);
    }
  }

  void check_results() const override {
    reference::HostTensor expected = *before_;
    if (quantizes_) {
      reference::quantize_kv_rows(
          {.x = tensor("x"), .rows = expected.view(), .slot_mapping = tensor("slot_mapping")});
      check_same_bits(tensor("rows"), expected, "rows");
    } else {
      reference::dequantize_kv_rows(
          {.rows = tensor("rows"), .out = expected.view(), .slot_mapping = tensor("slot_mapping")});
      check_same_bits(tensor("out"), expected, "out");
    }
  }

 private:
  const char* vectors() const { return quantizes_ ? "x" : "out"; }

  bool quantizes_;
  bool check_values_ = false;
  std::optional<reference::HostTensor> before_;  // the output
};

}  // namespace

std::unique_ptr<Call> make_rope(Choices& choices, Arena& arena) {
  return std::make_unique<RopeCall>(choices, arena);
}

std::unique_ptr<Call> make_quantize_kv_rows(Choices& choices, Arena& arena) {
  return std::make_unique<KvRowsCall>(choices, arena, true);
}

std::unique_ptr<Call> make_dequantize_kv_rows(Choices& choices, Arena& arena) {
  return std::make_unique<KvRowsCall>(choices, arena, false);
}

}  // namespace tilewright::fuzz
