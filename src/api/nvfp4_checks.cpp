#include "nvfp4_checks.hpp"

#include <array>
#include <limits>

#include "common/nvfp4_recipe.hpp"
#include "cuda/cuda_backend.hpp"
#include "matrix_checks.hpp"
#include "overlap.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {
namespace {

constexpr std::array kOne = {"1"};
constexpr int kX_alignment_bytes = 16;
constexpr int kCodes_alignment_bytes = 8;

void check_is_float(const char* argument, const ConstTensorView& tensor) {
  if (tensor.dtype != DType::fp32 && tensor.dtype != DType::fp16 && tensor.dtype != DType::bf16) {
    fail(argument, "has dtype " + std::string(name(tensor.dtype)) + ", must be fp32, fp16 or bf16");
  }
}

// A call's first matrix.
void check_matrix(const char* argument, const ConstTensorView& tensor) {
  check_tensor(argument, tensor, kMatrixDims);
  check_last_dim_is_contiguous(argument, tensor, "must be");
}

void check_global_scale(const char* argument, const ConstTensorView& scale, Device device,
                        const char* like) {
  check_tensor(argument, scale, kOne);
  check_dtype(argument, scale, DType::fp32);
  check_device(argument, scale, device, like);
  check_same(argument, "size", scale.shape[0], "a matrix's one scale,", 1);
  check_is_aligned(argument, scale.data, static_cast<int>(size_bytes(scale.dtype)));
}

// Threads count blocks, padding included, in 32 bits.
void check_block_count(const char* argument, std::int64_t rows, std::int64_t blocks) {
  const auto [padded_rows, padded_blocks] = swizzled_scale_shape(rows, blocks);
  if (padded_rows > std::numeric_limits<int>::max() / padded_blocks) {
    throw Error(ErrorCode::unsupported, argument,
                "has " + std::to_string(rows) + " rows of " + std::to_string(blocks) +
                    " blocks, must have fewer than 2^31 blocks in all");
  }
}

void check_either_global_scale(const QuantizeNvfp4Tensors& t) {
  if (t.global_scale && t.computed_global_scale) {
    fail("computed_global_scale", "is given, must be absent where global_scale is given");
  }
  if (!t.global_scale && !t.computed_global_scale) {
    fail("computed_global_scale", "is absent, must be given where global_scale is absent");
  }
  if (t.global_scale) {
    check_global_scale("global_scale", *t.global_scale, t.x.device, "x");
  } else {
    check_global_scale("computed_global_scale", *t.computed_global_scale, t.x.device, "x");
  }
}

void check_outputs_are_apart(const QuantizeNvfp4Tensors& t) {
  const OtherTensor x{"x", t.x};
  const OtherTensor given{"global_scale", t.global_scale};
  const OtherTensor computed{"computed_global_scale", t.computed_global_scale};
  check_is_apart("codes", t.codes, {x, given, {"scales", t.scales}, computed});
  check_is_apart("scales", t.scales, {x, given, computed});
  if (t.computed_global_scale) {
    check_is_apart("computed_global_scale", *t.computed_global_scale, {x});
  }
}

}  // namespace

int alignment_of(Device device, int gpu_bytes) {
  return device.kind == DeviceKind::cuda ? gpu_bytes : 1;
}

void check_device_is_supported(const char* argument, Device device) {
  constexpr int kHopper = 90;
  const DeviceInfo& info = device_info(device);
  if (device.kind == DeviceKind::cuda && info.compute_capability != kHopper) {
    throw Error(ErrorCode::unsupported, argument,
                "is on " + info.name + " of compute capability " +
                    std::to_string(info.compute_capability / 10) + "." +
                    std::to_string(info.compute_capability % 10) +
                    ", the kernels are built for 9.0");
  }
}

void check_arguments(const QuantizeNvfp4Tensors& t, const QuantizeNvfp4Options& options) {
  check_matrix("x", t.x);
  check_is_float("x", t.x);
  check_columns_are_multiple("x", t.x.shape[1], nvfp4::kBlock, ", the block");
  const std::int64_t rows = t.x.shape[0];
  const std::int64_t blocks = t.x.shape[1] / nvfp4::kBlock;
  check_block_count("x", rows, blocks);

  check_matrix("codes", t.codes, t.x, "x");
  check_dtype("codes", t.codes, DType::e2m1x2);
  check_same("codes", "rows", t.codes.shape[0], "x's", rows);
  check_same("codes", "columns", t.codes.shape[1], "half of x's,", t.x.shape[1] / 2);
  check_no_overlap("codes", t.codes);

  check_block_scales("scales", t.scales, options.scale_layout, rows, blocks, t.x, "x");
  check_dtype("scales", t.scales, DType::e4m3);
  check_no_overlap("scales", t.scales);
  check_either_global_scale(t);
  check_outputs_are_apart(t);
  check_global_scale_kind("global_scale_kind", options.global_scale_kind);

  check_device_is_supported("x", t.x.device);
  check_rows_are_aligned("x", t.x, alignment_of(t.x.device, kX_alignment_bytes));
  check_rows_are_aligned("codes", t.codes, alignment_of(t.x.device, kCodes_alignment_bytes));
}

void check_arguments(const DequantizeNvfp4Tensors& t, const DequantizeNvfp4Options& options) {
  check_matrix("codes", t.codes);
  check_dtype("codes", t.codes, DType::e2m1x2);
  const bool is_mxfp4 = t.scales.dtype == DType::e8m0;
  if (!is_mxfp4) {
    check_dtype("scales", t.scales, DType::e4m3, ", or e8m0 of MXFP4");
  }
  const int block_bytes = (is_mxfp4 ? nvfp4::kMxBlock : nvfp4::kBlock) / 2;
  check_columns_are_multiple("codes", t.codes.shape[1], block_bytes, ", the bytes of a block");
  const std::int64_t rows = t.codes.shape[0];
  const std::int64_t blocks = t.codes.shape[1] / block_bytes;
  check_block_count("codes", rows, blocks);
  check_block_scales("scales", t.scales, options.scale_layout, rows, blocks, t.codes, "codes");

  check_matrix("out", t.out, t.codes, "codes");
  check_is_float("out", t.out);
  check_same("out", "rows", t.out.shape[0], "codes'", rows);
  check_same("out", "columns", t.out.shape[1], "twice codes',", 2 * t.codes.shape[1]);
  check_no_overlap("out", t.out);
  if (t.global_scale) {
    if (is_mxfp4) {
      fail("global_scale", "is given, must be absent: MXFP4 has none");
    }
    check_global_scale("global_scale", *t.global_scale, t.codes.device, "codes");
    check_global_scale_kind("global_scale_kind", options.global_scale_kind);
  }
  check_is_apart("out", t.out,
                 {{"codes", t.codes}, {"scales", t.scales}, {"global_scale", t.global_scale}});

  check_device_is_supported("codes", t.codes.device);
  check_rows_are_aligned("codes", t.codes, alignment_of(t.codes.device, kCodes_alignment_bytes));
  check_rows_are_aligned("out", t.out, alignment_of(t.codes.device, kX_alignment_bytes));
}

void check_conversion(const ConstTensorView& linear, const ConstTensorView& swizzled) {
  check_matrix("linear", linear);
  if (linear.dtype != DType::e8m0) {
    check_dtype("linear", linear, DType::e4m3, " or e8m0");
  }
  check_block_count("linear", linear.shape[0], linear.shape[1]);
  check_block_scales("swizzled", swizzled, ScaleLayout::swizzled, linear.shape[0], linear.shape[1],
                     linear, "linear");
  check_dtype("swizzled", swizzled, linear.dtype, ", the dtype of linear");
  check_device_is_supported("linear", linear.device);
}

}  // namespace tilewright
