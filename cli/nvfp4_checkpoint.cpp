#include "cli/nvfp4_checkpoint.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstring>
#include <span>

#include "cli/commands.hpp"
#include "cli/safetensors.hpp"
#include "cli/text.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;
using reference::kBlock;

// Views a matrix as a batch of one.
HostTensor as_batch(const HostTensor& matrix) {
  const ConstTensorView view = matrix.view();
  HostTensor batch(view.dtype, {1, view.shape[0], view.shape[1]});
  std::memcpy(batch.data(), matrix.data(), matrix.bytes());
  return batch;
}

std::span<const std::int64_t> shape_of(const ConstTensorView& view) {
  return {view.shape.data(), static_cast<std::size_t>(view.rank)};
}

[[noreturn]] void refuse(const std::string& tensor, const std::string& what) {
  throw UsageError("--tensor", fmt::format("tensor '{}' {}", printable(tensor), what));
}

void check(const std::string& tensor, const HostTensor& value, DType dtype, int rank) {
  const ConstTensorView view = value.view();
  if (view.dtype != dtype || view.rank != rank) {
    refuse(tensor,
           fmt::format("is {} of rank {}, must be {} of rank {}", safetensors_name(view.dtype),
                       view.rank, safetensors_name(dtype), rank));
  }
  if (value.bytes() == 0) {
    refuse(tensor,
           fmt::format("has shape ({}), must have no size of 0", fmt::join(shape_of(view), ", ")));
  }
}

// Turns a checkpoint's global scale, (), (1), (N) or (N, 1), to (1) or to a batch of one, (1, N).
HostTensor as_global_scale(const std::string& tensor, const HostTensor& value, std::int64_t rows) {
  const ConstTensorView view = value.view();
  const std::int64_t count = view.shape[0];
  const bool is_single = view.rank == 1 && count == 1;
  const bool is_of_rows =
      count == rows && (view.rank == 1 || (view.rank == 2 && view.shape[1] == 1));
  if (view.dtype != DType::fp32 || (!is_single && !is_of_rows)) {
    refuse(tensor,
           fmt::format("is {0} of shape ({1}), must be F32 of shape (), (1), ({2}) or ({2}, 1)",
                       safetensors_name(view.dtype), fmt::join(shape_of(view), ", "), rows));
  }
  for (std::int64_t row = 0; row < count; ++row) {
    const double scale = reference::load(view, row);
    if (!(scale > 0) || !std::isfinite(scale)) {
      const std::string where = count == 1 ? "" : fmt::format(" in row {}", row);
      refuse(tensor, fmt::format("has the value {}{}, must be positive and finite", scale, where));
    }
  }
  HostTensor result(
      DType::fp32, count == 1 ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, count});
  std::memcpy(result.data(), value.data(), value.bytes());
  return result;
}

}  // namespace

Nvfp4Operand read_nvfp4_weight(const std::string& path, const std::string& layer) {
  SafetensorsFile file(path);
  const bool is_modelopt = !file.contains(layer + ".weight_packed");
  const std::string codes = layer + (is_modelopt ? ".weight" : ".weight_packed");
  const std::string scales = layer + ".weight_scale";
  const std::string global = layer + (is_modelopt ? ".weight_scale_2" : ".weight_global_scale");
  const HostTensor code_matrix = file.read(codes);
  const HostTensor scale_matrix = file.read(scales);
  const HostTensor global_scale = file.read(global);
  check(codes, code_matrix, DType::e2m1x2, 2);
  check(scales, scale_matrix, DType::e4m3, 2);
  const auto& code_shape = code_matrix.view().shape;
  const auto& scale_shape = scale_matrix.view().shape;
  if (code_shape[1] * 2 % kBlock != 0) {
    refuse(codes, fmt::format("is ({}, {}), must have rows of a multiple of {} bytes",
                              code_shape[0], code_shape[1], kBlock / 2));
  }
  if (scale_shape[0] != code_shape[0] || scale_shape[1] * kBlock != code_shape[1] * 2) {
    refuse(scales, fmt::format("is ({}, {}), must have a scale for every 8 bytes of '{}', ({}, {})",
                               scale_shape[0], scale_shape[1], printable(codes), code_shape[0],
                               code_shape[1]));
  }
  return {.codes = as_batch(code_matrix),
          .scales = as_batch(scale_matrix),
          .global_scale = as_global_scale(global, global_scale, code_shape[0]),
          .kind = is_modelopt ? GlobalScale::decode : GlobalScale::encode};
}

}  // namespace tilewright::cli
