// attention() against its contract.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "fuzz/attention_parts.hpp"
#include "fuzz/call.hpp"
#include "fuzz/check.hpp"
#include "reference/attention.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/attention.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::array<std::int64_t, 5> kWindows = {0, 1, 3, 1 << 20,
                                                  std::numeric_limits<std::int64_t>::max()};

class AttentionCall final : public Call {
 public:
  AttentionCall(Choices& choices, Arena& arena) : Call(choices, arena) {
    choose_sizes();
    choose_options();
    add_rows();
    add_statistics();
    add_lengths();
  }

  void judge(Contract& contract) const override {
    judge_rows(contract);
    judge_statistics(contract);
    judge_lengths(contract);
    judge_options(contract);
    contract.on_one_device(arguments());
    contract.outputs_are_apart(arguments());
  }

  void fill() override {
    for (const char* const name : {"q", "k", "v", "sinks"}) {
      fill_normal(input(name), choices_.below(1000));
    }
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    put_somewhere("q", {kNaN});
    put_somewhere("k", {kNaN});
    put_somewhere("sinks", {kNaN, kInfinity, -kInfinity});
    fill_lengths("cu_seqlens_q", cu_seqlens_q_);
    fill_lengths("cu_seqlens_k", cu_seqlens_k_);
    fill_lengths("seqused_k", seqused_k_);
  }

  void judge_contents(Contract& contract) const override {
    std::vector<int> of_keys;
    if (is_given("cu_seqlens_q")) {
      judge_boundaries(contract, "cu_seqlens_q", tensor("q").shape[0]);
    }
    if (is_given("cu_seqlens_k")) {
      judge_boundaries(contract, "cu_seqlens_k", tensor("k").shape[0]);
      of_keys = values_of("cu_seqlens_k");
    }
    const std::vector<int> used =
        is_given("seqused_k") ? values_of("seqused_k") : std::vector<int>{};
    for (std::size_t b = 0; b < used.size(); ++b) {
      const std::int64_t length =
          of_keys.empty() ? tensor("k").shape[1] : std::int64_t{of_keys[b + 1]} - of_keys[b];
      if (used[b] < 0 || used[b] > length) {
        contract.refuse_contents("seqused_k");
      }
    }
  }

  std::optional<std::size_t> workspace_bytes() const override {
    return attention_workspace_bytes(tensors(), options_);
  }

  void make(Workspace workspace) const override { attention(tensors(), options_, workspace); }

  // With extreme options scores overflow in FP32, and not in float64.
  bool has_one_result() const override {
    return scale() < 1e3 && options_.softcap < 1e3 &&
           (options_.softcap == 0 || options_.softcap > 1e-3);
  }

  void check_results() const override {
    const AttentionTensors t = tensors();
    reference::AttentionResult exact = reference::attention(t, options_);
    expect_unwritten(t.o, exact.o);
    check_near(t.o, exact.o, output_bounds(t), "o");
    const auto check_statistic = [&](const std::optional<TensorView>& statistic,
                                     std::vector<double>& expected, const char* name) {
      if (statistic) {
        expect_unwritten(*statistic, expected);
        check_near(*statistic, expected, statistic_bounds(expected), name);
      }
    };
    check_statistic(t.lse, exact.lse, "lse");
    check_statistic(t.row_max, exact.row_max, "row_max");
    check_statistic(t.row_sum, exact.row_sum, "row_sum");
  }

 private:
  void choose_sizes() {
    dtype_ = choices_.one_of(kFloats);
    batch_ = choices_.between(1, 3);
    q_len_ = choices_.between(1, 6);
    kv_len_ = choices_.between(1, 8);
    kv_heads_ = choices_.between(1, 2);
    heads_ = kv_heads_ * choices_.between(1, 2);
    head_dim_ = choices_.one_of(kHeadDims);
    value_dim_ = choices_.coin() ? head_dim_ : choices_.one_of(kHeadDims);
    packs_queries_ = choices_.one_in(4);
    packs_keys_ = choices_.one_in(4);
    is_unnormalized_ = choices_.one_in(4);
  }

  void choose_options() {
    options_.causal = choices_.coin();
    options_.batch_invariant = choices_.one_in(4);
    options_.check_lengths = choices_.one_in(4);
    if (choices_.one_in(4)) {
      options_.window.left = choices_.one_of(kWindows);
    }
    if (choices_.one_in(4)) {
      options_.window.right = choices_.one_of(kWindows);
    }
    if (choices_.coin()) {
      options_.scale = 0.25f * static_cast<float>(choices_.below(5));
    }
    if (choices_.one_in(4)) {
      options_.softcap = 0.5f * static_cast<float>(choices_.below(5));
    }
    options_.kernel = choices_.coin() ? "cpu" : "auto";
  }

  void add_rows() {
    const DType o_dtype = is_unnormalized_ ? DType::fp32 : dtype_;
    const auto add_one = [&](std::string_view name, DType dtype, bool is_packed,
                             std::int64_t length, std::int64_t heads, std::int64_t dim,
                             bool is_output) {
      if (is_packed) {
        add(name, dtype, {length, heads, dim}, Strides::rows, is_output);
      } else {
        add(name, dtype, {batch_, length, heads, dim}, Strides::rows, is_output);
      }
    };
    add_one("q", dtype_, packs_queries_, q_len_, heads_, head_dim_, false);
    add_one("k", dtype_, packs_keys_, kv_len_, kv_heads_, head_dim_, false);
    add_one("v", dtype_, packs_keys_, kv_len_, kv_heads_, value_dim_, false);
    add_one("o", o_dtype, packs_queries_, q_len_, heads_, value_dim_, true);
  }

  void add_statistics() {
    const auto add_one = [&](std::string_view name, bool is_given) {
      if (packs_queries_) {
        add_optional(name, DType::fp32, {heads_, q_len_}, Strides::any, true, is_given);
      } else {
        add_optional(name, DType::fp32, {batch_, heads_, q_len_}, Strides::any, true, is_given);
      }
    };
    add_one("lse", choices_.coin());
    add_one("row_max", is_unnormalized_);
    add_one("row_sum", is_unnormalized_);
    add_optional("sinks", DType::fp32, {heads_}, Strides::any, false, choices_.one_in(4));
  }

  void add_lengths() {
    add_optional("cu_seqlens_q", DType::int32, {batch_ + 1}, Strides::contiguous, false,
                 packs_queries_);
    add_optional("cu_seqlens_k", DType::int32, {batch_ + 1}, Strides::contiguous, false,
                 packs_keys_);
    add_optional("seqused_k", DType::int32, {batch_}, Strides::contiguous, false,
                 choices_.one_in(4));
    cu_seqlens_q_ = boundaries(q_len_);
    cu_seqlens_k_ = boundaries(kv_len_);
    for (std::size_t b = 0; b < static_cast<std::size_t>(batch_); ++b) {
      const std::int64_t length = packs_keys_ ? cu_seqlens_k_[b + 1] - cu_seqlens_k_[b] : kv_len_;
      seqused_k_.push_back(static_cast<int>(choices_.between(0, length)));
    }
  }

  // From 0, ascending, up to `rows` at most.
  std::vector<int> boundaries(std::int64_t rows) {
    std::vector<int> values = {0};
    for (std::int64_t b = 0; b < batch_; ++b) {
      values.push_back(static_cast<int>(choices_.between(values.back(), rows)));
    }
    return values;
  }

  void spoil_options() override {
    switch (choices_.below(6)) {
      case 0:
        options_.scale = choices_.one_of(kExtremeOptions);
        break;
      case 1:
        options_.softcap = choices_.one_of(kExtremeOptions);
        break;
      case 2:
        options_.window.left = choices_.coin() ? -1 : std::numeric_limits<std::int64_t>::min();
        break;
      case 3:
        options_.window.right = choices_.coin() ? -1 : std::numeric_limits<std::int64_t>::min();
        break;
      case 4: {
        constexpr std::array kNames = {"", "flash", "k1", "nobody", "cpu ", "flash/0"};
        options_.kernel = choices_.one_of(kNames);
        break;
      }
      default: {
        std::vector<int>& values = choices_.coin()   ? cu_seqlens_q_
                                   : choices_.coin() ? cu_seqlens_k_
                                                     : seqused_k_;
        constexpr std::array kValues = {-1, 1, 100, std::numeric_limits<int>::max(),
                                        std::numeric_limits<int>::min()};
        values[choices_.below(values.size())] = choices_.one_of(kValues);
      }
    }
  }

  // ---- The contract

  void judge_rows(Contract& c) const {
    const bool packs_q = is_given("cu_seqlens_q");
    const bool packs_k = is_given("cu_seqlens_k");
    const auto has_shape = [&](std::string_view name, bool is_packed,
                               const std::array<std::int64_t, 4>& s) {
      const Argument& argument = (*this)[name];
      const bool is_right = is_packed ? c.has_shape(argument, {s[1], s[2], s[3]})
                                      : c.has_shape(argument, {s[0], s[1], s[2], s[3]});
      if (is_right) {
        c.has_strides(argument, Strides::rows);
      }
      return is_right;
    };
    const bool has_q = has_shape("q", packs_q, {kAny, kAny, kAny, kAny});
    const auto q = has_q ? sizes("q", packs_q) : std::array{kAny, kAny, kAny, kAny};
    const std::int64_t batch = packs_q ? batch_of_lengths() : q[0];
    const bool has_k = has_shape("k", packs_k, {batch, kAny, kAny, q[3]});
    const auto k = has_k ? sizes("k", packs_k) : std::array{kAny, kAny, kAny, kAny};
    const bool has_v = has_shape("v", packs_k, {batch, k[1], k[2], kAny});
    const std::int64_t value_dim = has_v ? sizes("v", packs_k)[3] : kAny;
    has_shape("o", packs_q, {q[0], q[1], q[2], value_dim});
    if (q[3] > kMostHeadDim) {
      c.refuse("q");
    }
    if (value_dim > kMostHeadDim) {
      c.refuse("v");
      c.refuse("o");
    }
    if (q[2] != kAny && k[2] != kAny && q[2] % k[2] != 0) {
      c.refuse("k");
    }
    c.has_dtype((*this)["q"], {DType::fp32, DType::fp16, DType::bf16});
    c.has_dtype((*this)["k"], {tensor("q").dtype});
    c.has_dtype((*this)["v"], {tensor("q").dtype});
    c.has_dtype((*this)["o"], {is_given("row_max") ? DType::fp32 : tensor("q").dtype});
  }

  void judge_statistics(Contract& c) const {
    if (is_given("row_max") != is_given("row_sum")) {
      c.refuse("row_max");
      c.refuse("row_sum");
    }
    const bool packs_q = is_given("cu_seqlens_q");
    const auto q = tensor("q").rank == (packs_q ? 3 : 4) ? sizes("q", packs_q)
                                                         : std::array{kAny, kAny, kAny, kAny};
    for (const char* const name : {"lse", "row_max", "row_sum"}) {
      if (is_given(name)) {
        packs_q ? c.has_shape((*this)[name], {q[2], q[1]})
                : c.has_shape((*this)[name], {q[0], q[2], q[1]});
        c.has_dtype((*this)[name], {DType::fp32});
      }
    }
    if (is_given("sinks")) {
      c.has_shape((*this)["sinks"], {q[2]});
      c.has_dtype((*this)["sinks"], {DType::fp32});
    }
  }

  void judge_lengths(Contract& c) const {
    const std::int64_t batch = is_given("cu_seqlens_q") ? batch_of_lengths()
                               : tensor("q").rank == 4  ? known(tensor("q").shape[0])
                                                        : kAny;
    for (const char* const name : {"cu_seqlens_q", "cu_seqlens_k", "seqused_k"}) {
      if (is_given(name)) {
        const bool has_one_more = name != std::string_view("seqused_k");
        if (c.has_shape((*this)[name], {batch == kAny ? kAny : batch + (has_one_more ? 1 : 0)})) {
          c.has_strides((*this)[name], Strides::contiguous);
        }
        c.has_dtype((*this)[name], {DType::int32});
      }
    }
    if (is_given("cu_seqlens_q") && tensor("cu_seqlens_q").shape[0] < 2) {
      c.refuse("cu_seqlens_q");
    }
  }

  void judge_options(Contract& c) const {
    judge_score_options(c, options_.scale, scale(), options_.softcap, options_.window);
    if (options_.kernel != "auto" && options_.kernel != "cpu") {
      c.refuse("kernel");
      c.refuse("q");  // it is on no device of that kernel's
    }
  }

  // From 0, ascending, up to `rows` at most.
  void judge_boundaries(Contract& c, std::string_view name, std::int64_t rows) const {
    if (!are_boundaries(values_of(name), rows)) {
      c.refuse_contents(name);
    }
  }

  // ---- Help

  double scale() const { return scale_of(options_.scale, tensor("q")); }

  std::vector<int> values_of(std::string_view name) const { return ints_of(tensor(name)); }

  std::int64_t batch_of_lengths() const {
    const std::int64_t boundaries = known(tensor("cu_seqlens_q").shape[0]);
    return boundaries == kAny ? kAny : known(boundaries - 1);
  }

  // Batch, length, heads and head dim of a tensor of the right rank; a packed one has any batch.
  std::array<std::int64_t, 4> sizes(std::string_view name, bool is_packed) const {
    const auto& s = tensor(name).shape;
    return is_packed ? std::array{kAny, known(s[0]), known(s[1]), known(s[2])}
                     : std::array{known(s[0]), known(s[1]), known(s[2]), known(s[3])};
  }

  // Sometimes one of the values is an element of the tensor.
  void fill_lengths(const char* name, const std::vector<int>& values) const {
    if (is_given(name)) {
      store_ints(tensor(name), values);
    }
  }

  AttentionTensors tensors() const {
    return {.q = tensor("q"),
            .k = tensor("k"),
            .v = tensor("v"),
            .o = tensor("o"),
            .lse = output("lse"),
            .sinks = input("sinks"),
            .cu_seqlens_q = input("cu_seqlens_q"),
            .cu_seqlens_k = input("cu_seqlens_k"),
            .seqused_k = input("seqused_k"),
            .row_max = output("row_max"),
            .row_sum = output("row_sum")};
  }

  void expect_unwritten(const ConstTensorView& t, std::vector<double>& expected) const {
    if (is_given("cu_seqlens_q")) {
      fuzz::expect_unwritten(t, tensor("q").shape[0], values_of("cu_seqlens_q").back(), expected);
    }
  }

  // By how much each element of o may be off: its error is one of rounding sums of |weight| |v|.
  std::vector<double> output_bounds(AttentionTensors t) const {
    reference::HostTensor magnitudes = magnitudes_of(t.v);
    t.v = magnitudes.view();
    std::vector<double> bounds = reference::attention(t, options_).o;
    for (double& bound : bounds) {
      bound = std::isnan(bound) ? 0 : bound * relative_error(t.q.dtype) + 0x1p-25;
    }
    return bounds;
  }

  static reference::HostTensor magnitudes_of(const ConstTensorView& v) {
    const std::vector<std::int64_t> shape(v.shape.begin(), v.shape.begin() + v.rank);
    reference::HostTensor result(v.dtype, shape);
    const auto element_bytes = static_cast<std::int64_t>(size_bytes(v.dtype));
    std::int64_t i = 0;
    for (const std::int64_t offset : byte_offsets(v)) {
      reference::store(result.view(), i++, std::abs(reference::load(v, offset / element_bytes)));
    }
    return result;
  }

  DType dtype_ = DType::fp32;
  std::int64_t batch_ = 1, q_len_ = 1, kv_len_ = 1, heads_ = 1, kv_heads_ = 1;
  std::int64_t head_dim_ = 1, value_dim_ = 1;
  bool packs_queries_ = false, packs_keys_ = false, is_unnormalized_ = false;
  std::vector<int> cu_seqlens_q_, cu_seqlens_k_, seqused_k_;
  AttentionOptions options_;
};

}  // namespace

std::unique_ptr<Call> make_attention(Choices& choices, Arena& arena) {
  return std::make_unique<AttentionCall>(choices, arena);
}

}  // namespace tilewright::fuzz
