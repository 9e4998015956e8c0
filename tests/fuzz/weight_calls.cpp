// prepack_nvfp4_weight() and unpack_nvfp4_weight() against their contracts.
#include <array>

#include "fuzz/call.hpp"
#include "fuzz/check.hpp"
#include "fuzz/matrices.hpp"
#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"
#include "tilewright/nvfp4_weight.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::array<std::int64_t, 5> kRows = {3, 1, 17, 64, 65};
constexpr std::array<std::int64_t, 4> kBlocks = {2, 1, 9, 3};

// A code and its scale.
struct Element {
  int code;
  int scale;

  friend bool operator==(const Element&, const Element&) = default;
};

// As a packed weight gives it back: the sign of a scale is its codes', a scale of zero has none.
Element canonical(Element e) {
  const int magnitude = e.scale & 0x7f;
  const int code = magnitude == 0 ? e.code & 8 : e.code;
  return {.code = e.scale >= 0x80 ? code ^ 8 : code, .scale = magnitude};
}

// A weight's codes and scales, of which any may be asked for.
struct Weight {
  Element at(std::int64_t batch, std::int64_t row, std::int64_t k) const {
    const int byte = static_cast<int>(reference::load(codes, offset(codes, batch, row) + k / 2));
    const std::int64_t scale =
        layout == ScaleLayout::linear
            ? offset(scales, batch, row) + k / 16
            : offset(scales, batch, 0) +
                  reference::swizzled_index(row, k / 16, 2 * sizes_of(codes).columns / 16);
    return {.code = k % 2 == 0 ? byte % 16 : byte / 16,
            .scale = static_cast<int>(reference::load(scales, scale))};
  }

  static std::int64_t offset(const ConstTensorView& t, std::int64_t batch, std::int64_t row) {
    return (t.rank == 3 ? batch * t.stride[0] : 0) + row * t.stride[t.rank - 2];
  }

  ConstTensorView codes;
  ConstTensorView scales;
  ScaleLayout layout;
};

void check_unpacked(const Weight& original, const Weight& unpacked) {
  const Sizes sizes = sizes_of(original.codes);
  for (std::int64_t batch = 0; batch < sizes.batch; ++batch) {
    for (std::int64_t row = 0; row < sizes.rows; ++row) {
      for (std::int64_t k = 0; k < 2 * sizes.columns; ++k) {
        check(unpacked.at(batch, row, k) == canonical(original.at(batch, row, k)),
              "an element is another after it was packed and unpacked");
      }
    }
  }
}

class WeightCall final : public Call {
 public:
  WeightCall(Choices& choices, Arena& arena, bool packs) : Call(choices, arena), packs_(packs) {
    rows_ = choices_.one_of(kRows);
    blocks_ = choices_.one_of(kBlocks);
    is_batched_ = choices_.one_in(4);
    batch_ = is_batched_ ? choices_.between(1, 2) : 1;
    layout_ = choices_.one_in(4) ? ScaleLayout::swizzled : ScaleLayout::linear;
    const bool is_linear = layout_ == ScaleLayout::linear;
    const auto [scale_rows, scale_blocks] =
        is_linear ? std::array{rows_, blocks_} : padded_scale_shape(rows_, blocks_);
    const auto [row_tiles, row_bytes] = packed_shape(rows_, 16 * blocks_);
    add_matrix("codes", DType::e2m1x2, rows_, 8 * blocks_, Strides::rows, !packs);
    add_matrix("scales", DType::e4m3, scale_rows, scale_blocks,
               is_linear ? Strides::rows : Strides::contiguous, !packs);
    add_matrix("packed", DType::u8, row_tiles, row_bytes, Strides::contiguous, packs);
  }

  void judge(Contract& c) const override {
    const bool is_batched = tensor("codes").rank == 3;
    c.has_dtype((*this)["codes"], {DType::e2m1x2});
    const Sizes codes = judge_matrix(c, (*this)["codes"], is_batched, {});
    const Sizes weight{.batch = codes.batch,
                       .rows = codes.rows,
                       .columns = codes.columns == kAny ? kAny : 2 * codes.columns};
    if (weight.columns != kAny && weight.columns % 16 != 0) {
      c.refuse("codes");
    }
    c.has_dtype((*this)["scales"], {DType::e4m3});
    judge_scales(c, (*this)["scales"], is_batched, layout_, weight, 16);
    judge_packed(c, (*this)["packed"], is_batched, weight);
    c.on_one_device(arguments());
    c.outputs_are_apart(arguments());
  }

  void fill() override {
    const std::uint64_t seed = choices_.below(1000);
    if (packs_) {
      fill_bytes(input("codes"), seed, 0, 255);
      fill_bytes(input("scales"), seed + 1, 0, 255);
      return;
    }
    const Sizes sizes = sizes_of(tensor("codes"));
    host_codes_.emplace(DType::e2m1x2, shape_of(sizes.rows, sizes.columns));
    host_scales_.emplace(DType::e4m3, shape_of(sizes.rows, sizes.columns / 8));
    fill_bytes(host_codes_->view(), seed, 0, 255);
    fill_bytes(host_scales_->view(), seed + 1, 0, 255);
    pack(*host_codes_, *host_scales_, tensor("packed"));
  }

  void make(Workspace) const override {
    if (packs_) {
      prepack_nvfp4_weight(
          {.codes = tensor("codes"), .scales = tensor("scales"), .packed = tensor("packed")},
          layout_);
    } else {
      unpack_nvfp4_weight(
          {.packed = tensor("packed"), .codes = tensor("codes"), .scales = tensor("scales")},
          layout_);
    }
  }

  bool has_one_result() const override { return packs_ || !lie_across(tensor("packed")); }

  void check_results() const override {
    const Weight here{.codes = tensor("codes"), .scales = tensor("scales"), .layout = layout_};
    if (!packs_) {
      check_unpacked({.codes = host_codes_->view(),
                      .scales = host_scales_->view(),
                      .layout = ScaleLayout::linear},
                     here);
      return;
    }
    const Sizes sizes = sizes_of(tensor("codes"));
    reference::HostTensor codes(DType::e2m1x2, shape_of(sizes.rows, sizes.columns));
    reference::HostTensor scales(DType::e4m3, shape_of(sizes.rows, sizes.columns / 8));
    unpack_nvfp4_weight(
        {.packed = tensor("packed"), .codes = codes.view(), .scales = scales.view()});
    check_unpacked(here,
                   {.codes = codes.view(), .scales = scales.view(), .layout = ScaleLayout::linear});
  }

 private:
  void add_matrix(std::string_view name, DType dtype, std::int64_t rows, std::int64_t columns,
                  Strides strides, bool is_output) {
    if (is_batched_) {
      add(name, dtype, {batch_, rows, columns}, strides, is_output);
    } else {
      add(name, dtype, {rows, columns}, strides, is_output);
    }
  }

  void spoil_options() override {
    layout_ = layout_ == ScaleLayout::linear ? ScaleLayout::swizzled : ScaleLayout::linear;
  }

  std::vector<std::int64_t> shape_of(std::int64_t rows, std::int64_t columns) const {
    return tensor("codes").rank == 3 ? std::vector{tensor("codes").shape[0], rows, columns}
                                     : std::vector{rows, columns};
  }

  bool packs_;
  std::int64_t rows_, blocks_, batch_;
  bool is_batched_;
  ScaleLayout layout_;
  std::optional<reference::HostTensor> host_codes_, host_scales_;  // what was packed
};

}  // namespace

std::unique_ptr<Call> make_prepack(Choices& choices, Arena& arena) {
  return std::make_unique<WeightCall>(choices, arena, true);
}

std::unique_ptr<Call> make_unpack(Choices& choices, Arena& arena) {
  return std::make_unique<WeightCall>(choices, arena, false);
}

}  // namespace tilewright::fuzz
