#include "ops/nvfp4_checks.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace tilewright {
namespace {

constexpr std::array kOne = {"1"};

}  // namespace

void check_values_are_aligned(const char* argument, const ConstTensorView& values,
                              const KernelInfo& kernel) {
  check_rows_are_aligned(argument, values, kernel.alignment_bytes);
}

void check_codes_are_aligned(const char* argument, const ConstTensorView& codes,
                             const KernelInfo& kernel) {
  check_rows_are_aligned(argument, codes, std::max(kernel.alignment_bytes / 2, 1));
}

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

void check_block_count(const char* argument, std::int64_t rows, std::int64_t blocks) {
  const auto [padded_rows, padded_blocks] = swizzled_scale_shape(rows, blocks);
  if (padded_rows > std::numeric_limits<int>::max() / padded_blocks) {
    throw Error(ErrorCode::unsupported, argument,
                "has " + std::to_string(rows) + " rows of " + std::to_string(blocks) +
                    " blocks, must have fewer than 2^31 blocks in all");
  }
}

}  // namespace tilewright
