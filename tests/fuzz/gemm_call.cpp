// gemm_nvfp4() against its contract.
#include <array>
#include <cmath>

#include "fuzz/call.hpp"
#include "fuzz/check.hpp"
#include "fuzz/matrices.hpp"
#include "reference/gemm.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/gemm_nvfp4.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::array kADTypes = {DType::bf16, DType::fp16, DType::e2m1x2};
constexpr std::array kCDTypes = {DType::fp32, DType::fp16, DType::bf16};
constexpr std::array<std::int64_t, 5> kN = {16, 1, 3, 17, 65};
constexpr std::array<std::int64_t, 4> kK = {32, 16, 48, 144};

class GemmCall final : public Call {
 public:
  GemmCall(Choices& choices, Arena& arena) : Call(choices, arena) {
    choose();
    add_operand("a", "sfa", m_, a_dtype_ == DType::e2m1x2, options_.sfa_layout);
    add_b();
    add_global_scale("global_scale_a", m_, a_dtype_ == DType::e2m1x2 && choices_.coin());
    add_global_scale("global_scale_b", n_, choices_.coin());
    add_matrix("c", c_dtype_, m_, n_, Strides::rows, true);
    add_optional_matrix("residual", c_dtype_, m_, n_, Strides::rows, choices_.one_in(4));
    add_optional("bias", c_dtype_, {n_}, Strides::any, false, choices_.one_in(4));
  }

  void judge(Contract& c) const override {
    const bool is_batched = tensor("a").rank == 3;
    const bool is_nvfp4 = tensor("a").dtype == DType::e2m1x2;
    c.has_dtype((*this)["a"], {DType::bf16, DType::fp16, DType::e2m1x2});
    const Sizes a = judge_matrix(c, (*this)["a"], is_batched, {});
    const std::int64_t k = a.columns == kAny || !is_nvfp4 ? a.columns : 2 * a.columns;
    if (k != kAny && k % 16 != 0) {
      c.refuse("a");
    }
    judge_scales_of_a(c, is_batched, is_nvfp4, {.batch = a.batch, .rows = a.rows, .columns = k});
    const std::int64_t n = judge_b(c, is_batched, a.batch, k);
    judge_global_scale(c, "global_scale_a", is_batched, a.batch, a.rows);
    judge_global_scale(c, "global_scale_b", is_batched, a.batch, n);
    judge_kind(c, "global_scale_a", "global_scale_a_kind", options_.global_scale_a_kind);
    judge_kind(c, "global_scale_b", "global_scale_b_kind", options_.global_scale_b_kind);
    judge_results(c, is_batched, {.batch = a.batch, .rows = a.rows, .columns = n});
    if (options_.kernel != "auto" && options_.kernel != "cpu") {
      c.refuse("kernel");
      c.refuse("a");  // it is on no device of that kernel's
    }
    c.on_one_device(arguments());
    c.outputs_are_apart(arguments(), residual_that_is_the_result(c));
  }

  void fill() override {
    const std::uint64_t seed = choices_.below(1000);
    fill_operand("a", "sfa", seed);
    if (tensor("b").dtype == DType::u8) {
      fill_packed_weight(seed);
    } else {
      fill_operand("b", "sfb", seed + 1);
    }
    fill_positive(input("global_scale_a"));
    fill_positive(input("global_scale_b"));
    fill_normal(input("bias"), seed + 2);
    fill_normal(input("residual"), seed + 3);
    if (is_given("residual")) {  // it may be the result
      residual_ = dense_values(tensor("residual"));
    }
  }

  std::optional<std::size_t> workspace_bytes() const override {
    return gemm_nvfp4_workspace_bytes(tensors(), options_);
  }

  void make(Workspace workspace) const override { gemm_nvfp4(tensors(), options_, workspace); }

  bool has_one_result() const override {
    return tensor("b").dtype != DType::u8 || !lie_across(tensor("b"));
  }

  // Element by element the bound of sums in FP32, and of rounding once.
  void check_results() const override {
    GemmNvfp4Tensors t = tensors();
    t.residual.reset();
    if (codes_) {
      t.b = codes_->view();
      t.sfb = scales_->view();
    }
    GemmNvfp4Options options = options_;
    options.sfb_layout = codes_ ? ScaleLayout::linear : options_.sfb_layout;
    reference::GemmResult expected = reference::gemm_nvfp4(t, options);
    std::vector<double> bounds;
    for (std::size_t i = 0; i < expected.c.size(); ++i) {
      const double residual = is_given("residual") ? residual_[i] : 0;
      expected.c[i] += residual;
      const double magnitude = expected.magnitude[i] + std::abs(residual);
      bounds.push_back(rounding_of(t.c.dtype, expected.c[i]) * 1.01 +
                       static_cast<double>(kMostTerms) * 0x1p-24 * magnitude);
    }
    check_near(t.c, expected.c, bounds, "c");
  }

 private:
  static constexpr int kMostTerms = 160;

  void choose() {
    a_dtype_ = choices_.one_of(kADTypes);
    c_dtype_ = choices_.one_of(kCDTypes);
    m_ = choices_.between(1, 4);
    n_ = choices_.one_of(kN);
    k_ = choices_.one_of(kK);
    is_batched_ = choices_.one_in(4);
    l_ = is_batched_ ? choices_.between(1, 2) : 1;
    packs_b_ = choices_.one_in(4);
    const auto layout = [&] {
      return choices_.one_in(4) ? ScaleLayout::swizzled : ScaleLayout::linear;
    };
    const auto kind = [&]() -> std::optional<GlobalScale> {
      if (choices_.one_in(16)) {
        return std::nullopt;
      }
      return choices_.coin() ? GlobalScale::decode : GlobalScale::encode;
    };
    options_ = {.sfa_layout = layout(),
                .sfb_layout = layout(),
                .global_scale_a_kind = kind(),
                .global_scale_b_kind = kind(),
                .b_is_constant = choices_.one_in(4),
                .batch_invariant = choices_.one_in(4),
                .kernel = choices_.coin() ? "cpu" : "auto"};
  }

  void add_matrix(std::string_view name, DType dtype, std::int64_t rows, std::int64_t columns,
                  Strides strides, bool is_output) {
    if (is_batched_) {
      add(name, dtype, {l_, rows, columns}, strides, is_output);
    } else {
      add(name, dtype, {rows, columns}, strides, is_output);
    }
  }

  void add_optional_matrix(std::string_view name, DType dtype, std::int64_t rows,
                           std::int64_t columns, Strides strides, bool is_given) {
    if (is_batched_) {
      add_optional(name, dtype, {l_, rows, columns}, strides, false, is_given);
    } else {
      add_optional(name, dtype, {rows, columns}, strides, false, is_given);
    }
  }

  void add_operand(std::string_view name, std::string_view scales, std::int64_t rows, bool is_nvfp4,
                   ScaleLayout layout) {
    add_matrix(name, is_nvfp4 ? DType::e2m1x2 : a_dtype_, rows, is_nvfp4 ? k_ / 2 : k_,
               Strides::rows, false);
    add_scales(scales, rows, layout, is_nvfp4);
  }

  void add_scales(std::string_view name, std::int64_t rows, ScaleLayout layout, bool is_given) {
    const bool is_linear = layout == ScaleLayout::linear;
    const auto [scale_rows, blocks] =
        is_linear ? std::array{rows, k_ / 16} : padded_scale_shape(rows, k_ / 16);
    add_optional_matrix(name, DType::e4m3, scale_rows, blocks,
                        is_linear ? Strides::rows : Strides::contiguous, is_given);
  }

  void add_b() {
    if (packs_b_) {
      const auto [row_tiles, row_bytes] = packed_shape(n_, k_);
      add_matrix("b", DType::u8, row_tiles, row_bytes, Strides::contiguous, false);
      add_scales("sfb", n_, options_.sfb_layout, false);
    } else {
      add_operand("b", "sfb", n_, true, options_.sfb_layout);
    }
  }

  void add_global_scale(std::string_view name, std::int64_t rows, bool is_given) {
    if (choices_.coin()) {
      add_optional(name, DType::fp32, {1}, Strides::any, false, is_given);
    } else if (is_batched_) {
      add_optional(name, DType::fp32, {l_, rows}, Strides::any, false, is_given);
    } else {
      add_optional(name, DType::fp32, {rows}, Strides::any, false, is_given);
    }
  }

  void spoil_options() override {
    constexpr std::array kNames = {"", "nvfp4", "nvfp4_simple", "nobody", "gemm_naive", "nvfp4/0"};
    switch (choices_.below(4)) {
      case 0:
        options_.kernel = choices_.one_of(kNames);
        break;
      case 1:
        options_.sfa_layout = ScaleLayout::swizzled;
        break;
      case 2:
        options_.sfb_layout = ScaleLayout::swizzled;
        break;
      default:
        replace("residual", tensor("c"));
    }
  }

  // ---- The contract

  void judge_scales_of_a(Contract& c, bool is_batched, bool is_nvfp4, const Sizes& a) const {
    if (is_given("sfa") != is_nvfp4) {
      c.refuse("sfa");
    } else if (is_nvfp4) {
      judge_scales(c, (*this)["sfa"], is_batched, options_.sfa_layout, a, 16);
      c.has_dtype((*this)["sfa"], {DType::e4m3});
    }
    if (is_given("global_scale_a") && !is_nvfp4) {
      c.refuse("global_scale_a");
    }
  }

  // Returns N.
  std::int64_t judge_b(Contract& c, bool is_batched, std::int64_t batch, std::int64_t k) const {
    const bool is_packed = tensor("b").dtype == DType::u8;
    if (is_given("sfb") == is_packed) {
      c.refuse("sfb");
    }
    if (is_packed) {
      const bool has_n = tensor("c").rank == (is_batched ? 3 : 2);
      const std::int64_t n = has_n ? tensor("c").shape[is_batched ? 2 : 1] : kAny;
      judge_packed(c, (*this)["b"], is_batched, {.batch = batch, .rows = n, .columns = k});
      return n;
    }
    c.has_dtype((*this)["b"], {DType::e2m1x2});
    const Sizes b = judge_matrix(c, (*this)["b"], is_batched,
                                 {.batch = batch, .columns = k == kAny ? kAny : k / 2});
    if (is_given("sfb")) {
      judge_scales(c, (*this)["sfb"], is_batched, options_.sfb_layout,
                   {.batch = batch, .rows = b.rows, .columns = k}, 16);
      c.has_dtype((*this)["sfb"], {DType::e4m3});
    }
    return b.rows;
  }

  void judge_global_scale(Contract& c, std::string_view name, bool is_batched, std::int64_t batch,
                          std::int64_t rows) const {
    if (!is_given(name)) {
      return;
    }
    const Argument& scale = (*this)[name];
    c.has_dtype(scale, {DType::fp32});
    if (scale.tensor.rank == 1 && scale.tensor.shape[0] == 1) {
      c.has_shape(scale, {1});
    } else if (is_batched) {
      c.has_shape(scale, {batch, rows});
    } else {
      c.has_shape(scale, {rows});
    }
  }

  void judge_kind(Contract& c, std::string_view scale, std::string_view name,
                  std::optional<GlobalScale> kind) const {
    if (is_given(scale) && !kind) {
      c.refuse(name);
    }
  }

  void judge_results(Contract& c, bool is_batched, const Sizes& sizes) const {
    c.has_dtype((*this)["c"], {DType::fp32, DType::fp16, DType::bf16});
    judge_matrix(c, (*this)["c"], is_batched, sizes);
    if (is_given("residual")) {
      judge_matrix(c, (*this)["residual"], is_batched, sizes);
      c.has_dtype((*this)["residual"], {tensor("c").dtype});
    }
    if (is_given("bias")) {
      c.has_shape((*this)["bias"], {sizes.columns});
      c.has_dtype((*this)["bias"], {tensor("c").dtype});
    }
  }

  // The pair that may be one, where it is: the same address, the same strides.
  std::optional<std::pair<std::string_view, std::string_view>> residual_that_is_the_result(
      Contract& c) const {
    if (!is_given("residual") || tensor("residual").data != tensor("c").data ||
        tensor("c").rank > kMaxRank) {
      return std::nullopt;
    }
    for (int i = 0; i < tensor("c").rank; ++i) {
      if (tensor("residual").stride[i] != tensor("c").stride[i]) {
        if (tensor("c").shape[i] > 1) {
          return std::nullopt;
        }
        c.doubt("c");  // the stride of a single element
      }
    }
    return std::pair("c", "residual");
  }

  // ---- Values

  void fill_operand(std::string_view name, std::string_view scales, std::uint64_t seed) const {
    if (tensor(name).dtype == DType::e2m1x2) {
      fill_bytes(input(name), seed, 0, 255);
      fill_bytes(input(scales), seed + 10, 0x20, 0x38);
    } else {
      fill_normal(input(name), seed);
    }
  }

  // From codes and scales that are kept for the reference.
  void fill_packed_weight(std::uint64_t seed) {
    const TensorView packed = tensor("b");
    const Sizes c = sizes_of(tensor("c"));
    const std::int64_t k =
        sizes_of(tensor("a")).columns * (tensor("a").dtype == DType::e2m1x2 ? 2 : 1);
    const auto shape = [&](std::int64_t columns) {
      return packed.rank == 3 ? std::vector{c.batch, c.columns, columns}
                              : std::vector{c.columns, columns};
    };
    codes_.emplace(DType::e2m1x2, shape(k / 2));
    scales_.emplace(DType::e4m3, shape(k / 16));
    fill_bytes(codes_->view(), seed + 1, 0, 255);
    fill_bytes(scales_->view(), seed + 11, 0x20, 0x38);
    pack(*codes_, *scales_, packed);
  }

  GemmNvfp4Tensors tensors() const {
    return {.a = tensor("a"),
            .b = tensor("b"),
            .sfb = input("sfb"),
            .c = tensor("c"),
            .sfa = input("sfa"),
            .global_scale_a = input("global_scale_a"),
            .global_scale_b = input("global_scale_b"),
            .bias = input("bias"),
            .residual = input("residual")};
  }

  DType a_dtype_ = DType::bf16, c_dtype_ = DType::fp32;
  std::int64_t m_ = 1, n_ = 1, k_ = 16, l_ = 1;
  bool is_batched_ = false, packs_b_ = false;
  GemmNvfp4Options options_;
  std::optional<reference::HostTensor> codes_, scales_;  // of a packed weight
  std::vector<double> residual_;                         // before the call
};

}  // namespace

std::unique_ptr<Call> make_gemm(Choices& choices, Arena& arena) {
  return std::make_unique<GemmCall>(choices, arena);
}

}  // namespace tilewright::fuzz
