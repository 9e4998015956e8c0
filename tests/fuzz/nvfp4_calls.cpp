// quantize_nvfp4(), dequantize_nvfp4(), swizzle_scales() and unswizzle_scales() against their
// contracts.
#include <array>
#include <bit>
#include <cstring>

#include "fuzz/call.hpp"
#include "fuzz/check.hpp"
#include "fuzz/matrices.hpp"
#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::array kFloats = {DType::fp32, DType::fp16, DType::bf16};
constexpr std::array<std::int64_t, 4> kRows = {1, 3, 5, 130};
constexpr std::array<std::int64_t, 4> kBlocks = {2, 1, 3, 5};
constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;  // docs/nvfp4.md

// The byte of a matrix of bytes.
int byte_at(const ConstTensorView& matrix, std::int64_t row, std::int64_t column) {
  return static_cast<int>(
      reference::load(matrix, row * matrix.stride[0] + column * matrix.stride[1]));
}

// Where the scale of a block is.
int scale_at(const ConstTensorView& scales, ScaleLayout layout, std::int64_t row,
             std::int64_t block, std::int64_t blocks) {
  return layout == ScaleLayout::linear
             ? byte_at(scales, row, block)
             : static_cast<int>(
                   reference::load(scales, reference::swizzled_index(row, block, blocks)));
}

// What these calls share: matrices of (M, K), blocks and scales.
class MatrixCall : public Call {
 public:
  MatrixCall(Choices& choices, Arena& arena) : Call(choices, arena) {
    rows_ = choices_.one_of(kRows);
    blocks_ = choices_.one_of(kBlocks);
    layout_ = choices_.one_in(4) ? ScaleLayout::swizzled : ScaleLayout::linear;
    if (!choices_.one_in(16)) {
      kind_ = choices_.coin() ? GlobalScale::decode : GlobalScale::encode;
    }
  }

 protected:
  void add_scales(std::string_view name, DType dtype, ScaleLayout layout, bool is_output) {
    if (layout == ScaleLayout::linear) {
      add(name, dtype, {rows_, blocks_}, Strides::rows, is_output);
    } else {
      const auto [rows, blocks] = padded_scale_shape(rows_, blocks_);
      add(name, dtype, {rows, blocks}, Strides::contiguous, is_output);
    }
  }

  void spoil_options() override {
    layout_ = layout_ == ScaleLayout::linear ? ScaleLayout::swizzled : ScaleLayout::linear;
  }

  static void judge_block_count(Contract& c, std::string_view name, std::int64_t rows,
                                std::int64_t blocks) {
    if (rows != kAny && blocks != kAny) {
      const auto [padded_rows, padded_blocks] = padded_scale_shape(rows, blocks);
      if (Wide{padded_rows} * padded_blocks > kMostBlocks) {
        c.refuse(name);
      }
    }
  }

  void judge_one_scale(Contract& c, std::string_view name) const {
    if (is_given(name)) {
      c.has_shape((*this)[name], {1});
      c.has_dtype((*this)[name], {DType::fp32});
    }
  }

  std::int64_t rows_, blocks_;
  ScaleLayout layout_;
  std::optional<GlobalScale> kind_;
};

class QuantizeCall final : public MatrixCall {
 public:
  QuantizeCall(Choices& choices, Arena& arena) : MatrixCall(choices, arena) {
    const bool is_computed = choices_.coin();
    add("x", choices_.one_of(kFloats), {rows_, 16 * blocks_}, Strides::rows, false);
    add("codes", DType::e2m1x2, {rows_, 8 * blocks_}, Strides::rows, true);
    add_scales("scales", DType::e4m3, layout_, true);
    add_optional("global_scale", DType::fp32, {1}, Strides::any, false, !is_computed);
    add_optional("computed_global_scale", DType::fp32, {1}, Strides::any, true, is_computed);
  }

  void judge(Contract& c) const override {
    c.has_dtype((*this)["x"], {DType::fp32, DType::fp16, DType::bf16});
    const Sizes x = judge_matrix(c, (*this)["x"], false, {});
    if (x.columns != kAny && x.columns % 16 != 0) {
      c.refuse("x");
    }
    judge_block_count(c, "x", x.rows, x.columns == kAny ? kAny : x.columns / 16);
    c.has_dtype((*this)["codes"], {DType::e2m1x2});
    judge_matrix(c, (*this)["codes"], false,
                 {.rows = x.rows, .columns = x.columns == kAny ? kAny : x.columns / 2});
    c.has_dtype((*this)["scales"], {DType::e4m3});
    judge_scales(c, (*this)["scales"], false, layout_, x, 16);
    if (is_given("global_scale") == is_given("computed_global_scale")) {
      c.refuse("computed_global_scale");
      c.refuse("global_scale");
    }
    judge_one_scale(c, "global_scale");
    judge_one_scale(c, "computed_global_scale");
    if (!kind_) {
      c.refuse("global_scale_kind");
    }
    c.on_one_device(arguments());
    c.outputs_are_apart(arguments());
  }

  void fill() override {
    fill_normal(input("x"), choices_.below(1000));
    fill_positive(input("global_scale"));
  }

  std::optional<std::size_t> workspace_bytes() const override {
    return quantize_nvfp4_workspace_bytes(tensors(), options());
  }

  void make(Workspace workspace) const override { quantize_nvfp4(tensors(), options(), workspace); }

  void check_results() const override {
    const QuantizeNvfp4Tensors t = tensors();
    std::optional<float> given;
    if (t.global_scale) {
      given = static_cast<float>(reference::load(*t.global_scale, 0));
    }
    const auto expected = reference::quantize_nvfp4(t.x, given, *kind_);
    const std::int64_t rows = t.x.shape[0];
    const std::int64_t blocks = t.x.shape[1] / 16;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t block = 0; block < blocks; ++block) {
        check(scale_at(t.scales, layout_, row, block, blocks) ==
                  expected.scales[static_cast<std::size_t>(row * blocks + block)],
              "a scale is not the model's");
      }
      for (std::int64_t i = 0; i < 8 * blocks; ++i) {
        check(byte_at(t.codes, row, i) ==
                  expected.codes[static_cast<std::size_t>(row * 8 * blocks + i)],
              "a code is not the model's");
      }
    }
    if (t.computed_global_scale) {
      check(
          static_cast<float>(reference::load(*t.computed_global_scale, 0)) == expected.global_scale,
          "the global scale is not the model's");
    }
  }

 private:
  QuantizeNvfp4Options options() const {
    return {.scale_layout = layout_, .global_scale_kind = kind_};
  }

  QuantizeNvfp4Tensors tensors() const {
    return {.x = tensor("x"),
            .codes = tensor("codes"),
            .scales = tensor("scales"),
            .global_scale = input("global_scale"),
            .computed_global_scale = output("computed_global_scale")};
  }
};

class DequantizeCall final : public MatrixCall {
 public:
  DequantizeCall(Choices& choices, Arena& arena) : MatrixCall(choices, arena) {
    const bool is_mxfp4 = choices_.one_in(4);
    const std::int64_t block = is_mxfp4 ? 32 : 16;
    add("codes", DType::e2m1x2, {rows_, block / 2 * blocks_}, Strides::rows, false);
    add_scales("scales", is_mxfp4 ? DType::e8m0 : DType::e4m3, layout_, false);
    add("out", choices_.one_of(kFloats), {rows_, block * blocks_}, Strides::rows, true);
    add_optional("global_scale", DType::fp32, {1}, Strides::any, false,
                 !is_mxfp4 && choices_.coin());
  }

  void judge(Contract& c) const override {
    c.has_dtype((*this)["codes"], {DType::e2m1x2});
    c.has_dtype((*this)["scales"], {DType::e4m3, DType::e8m0});
    const std::int64_t block = block_size();
    const Sizes codes = judge_matrix(c, (*this)["codes"], false, {});
    const std::int64_t columns = codes.columns == kAny ? kAny : 2 * codes.columns;
    if (columns != kAny && columns % block != 0) {
      c.refuse("codes");
    }
    judge_block_count(c, "codes", codes.rows, columns == kAny ? kAny : columns / block);
    judge_scales(c, (*this)["scales"], false, layout_, {.rows = codes.rows, .columns = columns},
                 block);
    c.has_dtype((*this)["out"], {DType::fp32, DType::fp16, DType::bf16});
    judge_matrix(c, (*this)["out"], false, {.rows = codes.rows, .columns = columns});
    if (is_given("global_scale") && tensor("scales").dtype == DType::e8m0) {
      c.refuse("global_scale");
    }
    judge_one_scale(c, "global_scale");
    if (is_given("global_scale") && !kind_) {
      c.refuse("global_scale_kind");
    }
    c.on_one_device(arguments());
    c.outputs_are_apart(arguments());
  }

  void fill() override {
    const std::uint64_t seed = choices_.below(1000);
    fill_bytes(input("codes"), seed, 0, 255);
    fill_bytes(input("scales"), seed + 1, 0, 255);
    fill_positive(input("global_scale"));
  }

  void make(Workspace) const override {
    dequantize_nvfp4({.codes = tensor("codes"),
                      .scales = tensor("scales"),
                      .out = tensor("out"),
                      .global_scale = input("global_scale")},
                     {.scale_layout = layout_, .global_scale_kind = kind_});
  }

  void check_results() const override {
    const TensorView out = tensor("out");
    const float global = is_given("global_scale")
                             ? static_cast<float>(reference::load(tensor("global_scale"), 0))
                             : 1.0f;
    reference::HostTensor rounded(out.dtype, {1});
    for (std::int64_t row = 0; row < out.shape[0]; ++row) {
      for (std::int64_t k = 0; k < out.shape[1]; ++k) {
        const int byte = byte_at(tensor("codes"), row, k / 2);
        const int scale =
            scale_at(tensor("scales"), layout_, row, k / block_size(), out.shape[1] / block_size());
        reference::store(
            rounded.view(), 0,
            reference::dequantize_nvfp4(k % 2 == 0 ? byte % 16 : byte / 16, tensor("scales").dtype,
                                        scale, global, kind_.value_or(GlobalScale::encode)));
        const auto* const actual = static_cast<const std::byte*>(out.data) +
                                   (row * out.stride[0] + k * out.stride[1]) *
                                       static_cast<std::int64_t>(size_bytes(out.dtype));
        check(std::memcmp(actual, rounded.data(), rounded.bytes()) == 0,
              "a value is not the model's");
      }
    }
  }

 private:
  std::int64_t block_size() const { return tensor("scales").dtype == DType::e8m0 ? 32 : 16; }
};

// Between the layouts of scales, in both directions.
class ConversionCall final : public MatrixCall {
 public:
  ConversionCall(Choices& choices, Arena& arena, bool swizzles)
      : MatrixCall(choices, arena), swizzles_(swizzles) {
    const DType dtype = choices_.coin() ? DType::e4m3 : DType::e8m0;
    add_scales("linear", dtype, ScaleLayout::linear, !swizzles);
    add_scales("swizzled", dtype, ScaleLayout::swizzled, swizzles);
  }

  void judge(Contract& c) const override {
    c.has_dtype((*this)["linear"], {DType::e4m3, DType::e8m0});
    const Sizes linear = judge_matrix(c, (*this)["linear"], false, {});
    judge_block_count(c, "linear", linear.rows, linear.columns);
    c.has_dtype((*this)["swizzled"], {tensor("linear").dtype});
    judge_scales(c, (*this)["swizzled"], false, ScaleLayout::swizzled, linear, 1);
    c.on_one_device(arguments());
    c.outputs_are_apart(arguments());
  }

  void fill() override {
    fill_bytes(input(swizzles_ ? "linear" : "swizzled"), choices_.below(1000), 0, 255);
  }

  void make(Workspace) const override {
    if (swizzles_) {
      swizzle_scales(tensor("linear"), tensor("swizzled"));
    } else {
      unswizzle_scales(tensor("swizzled"), tensor("linear"));
    }
  }

  void check_results() const override {
    const ConstTensorView linear = tensor("linear");
    const ConstTensorView swizzled = tensor("swizzled");
    std::int64_t sum = 0;
    for (std::int64_t row = 0; row < linear.shape[0]; ++row) {
      for (std::int64_t block = 0; block < linear.shape[1]; ++block) {
        const int scale = byte_at(linear, row, block);
        check(scale == scale_at(swizzled, ScaleLayout::swizzled, row, block, linear.shape[1]),
              "a scale is in the wrong place");
        sum += scale;
      }
    }
    for (std::int64_t i = 0; swizzles_ && i < swizzled.shape[0] * swizzled.shape[1]; ++i) {
      sum -= static_cast<std::int64_t>(reference::load(swizzled, i));
    }
    check(!swizzles_ || sum == 0, "a byte of no block is not 0");
  }

 private:
  bool swizzles_;
};

}  // namespace

std::unique_ptr<Call> make_quantize(Choices& choices, Arena& arena) {
  return std::make_unique<QuantizeCall>(choices, arena);
}

std::unique_ptr<Call> make_dequantize(Choices& choices, Arena& arena) {
  return std::make_unique<DequantizeCall>(choices, arena);
}

std::unique_ptr<Call> make_swizzle(Choices& choices, Arena& arena) {
  return std::make_unique<ConversionCall>(choices, arena, true);
}

std::unique_ptr<Call> make_unswizzle(Choices& choices, Arena& arena) {
  return std::make_unique<ConversionCall>(choices, arena, false);
}

}  // namespace tilewright::fuzz
