#include "ops/tensor_checks.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace tilewright {
namespace {

constexpr std::size_t kWorkspaceAlignment_bytes = 256;

std::string text_of(Pieces pieces) {
  std::string text;
  for (const std::string_view piece : pieces) {
    text += piece;
  }
  return text;
}

std::string join(DimNames names) {
  std::string text;
  for (const char* const name : names) {
    text += (text.empty() ? "" : ", ") + std::string(name);
  }
  return text;
}

std::string shape_text(const ConstTensorView& tensor) {
  std::string text = "(";
  for (int i = 0; i < tensor.rank; ++i) {
    text += (i ? ", " : "") + std::to_string(tensor.shape[i]);
  }
  return text + ")";
}

// Strides of dimensions of size 1 do not matter. It counts in floating point, without overflow.
void check_span(const char* argument, const ConstTensorView& tensor) {
  double span_bytes = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    span_bytes += std::abs(static_cast<double>(tensor.stride[i])) *
                  static_cast<double>(tensor.shape[i] - 1) *
                  static_cast<double>(size_bytes(tensor.dtype));
    if (span_bytes > static_cast<double>(kMaxSpan_bytes)) {
      fail(argument, "has stride " + std::to_string(tensor.stride[i]) + " in dimension " +
                         std::to_string(i) + ", must not span more than 2^60 bytes");
    }
  }
}

}  // namespace

void fail(const std::string& argument, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, argument, message);
}

void check_tensor(const char* argument, const ConstTensorView& tensor, DimNames dims, Pieces why) {
  const auto rank = static_cast<int>(dims.size());
  if (tensor.rank != rank) {
    fail(argument, "has rank " + std::to_string(tensor.rank) + ", must have rank " +
                       std::to_string(rank) + " (" + join(dims) + ")" + text_of(why));
  }
  for (int i = 0; i < rank; ++i) {
    if (tensor.shape[i] < 1 || tensor.shape[i] > std::numeric_limits<int>::max() / 2) {
      fail(argument, "has shape " + shape_text(tensor) +
                         ", every size must be at least 1 and less than 2^30");
    }
  }
  check_span(argument, tensor);
  if (tensor.data == nullptr) {
    fail(argument, "has a null data pointer, must point to memory");
  }
}

void check_dtype(const char* argument, const ConstTensorView& tensor, DType dtype,
                 const char* why) {
  if (tensor.dtype != dtype) {
    fail(argument, "has dtype " + std::string(name(tensor.dtype)) + ", must be " +
                       std::string(name(dtype)) + why);
  }
}

void check_is_float(const char* argument, const ConstTensorView& tensor) {
  if (tensor.dtype != DType::fp32 && tensor.dtype != DType::fp16 && tensor.dtype != DType::bf16) {
    fail(argument, "has dtype " + std::string(name(tensor.dtype)) + ", must be fp32, fp16 or bf16");
  }
}

void check_device(const char* argument, const ConstTensorView& tensor, Device device,
                  const char* like) {
  if (tensor.device != device) {
    fail(argument,
         "is on " + name(tensor.device) + ", must be on " + name(device) + " like " + like);
  }
}

void check_last_dim_is_contiguous(const char* argument, const ConstTensorView& tensor,
                                  const char* must_be) {
  const int last = tensor.rank - 1;
  if (tensor.shape[last] > 1 && tensor.stride[last] != 1) {
    fail(argument, "has stride " + std::to_string(tensor.stride[last]) +
                       " in its last dimension, " + must_be + " contiguous (stride 1)");
  }
}

void check_same(const char* argument, const char* what, std::int64_t value, Pieces of,
                std::int64_t expected) {
  if (value != expected) {
    fail(argument, std::string(what) + " is " + std::to_string(value) + ", must equal " +
                       text_of(of) + " " + std::to_string(expected));
  }
}

void check_is_absent(const char* argument, bool is_given, Pieces where) {
  if (is_given) {
    fail(argument, "is given, must be absent where " + text_of(where));
  }
}

void check_is_given(const char* argument, bool is_given, Pieces where) {
  if (!is_given) {
    fail(argument, "is absent, must be given where " + text_of(where));
  }
}

void check_both_or_none(const char* first, bool has_first, const char* second, bool has_second) {
  if (has_first != has_second) {
    fail(has_first ? second : first,
         std::string("is absent, must be given where ") + (has_first ? first : second) + " is");
  }
}

// Sorted by stride, each dimension must step over all that lies below it.
void check_no_overlap(const char* argument, const TensorView& tensor) {
  std::array<std::pair<std::int64_t, std::int64_t>, kMaxRank> dims{};  // |stride|, size
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] > 1) {
      dims[i] = {std::abs(tensor.stride[i]), tensor.shape[i]};
    }
  }
  std::ranges::sort(dims);
  std::int64_t extent = 0;
  for (const auto& [stride, size] : dims) {
    if (size > 1 && stride <= extent) {
      fail(argument, "has a stride of " + std::to_string(stride) + " over a span of " +
                         std::to_string(extent + 1) +
                         " elements, an output's elements must not overlap");
    }
    extent += stride * (size - 1);
  }
}

void check_is_aligned(const char* argument, const void* data, int alignment_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (address % alignment_bytes != 0) {
    fail(argument, "starts " + std::to_string(address % alignment_bytes) + " bytes past a " +
                       std::to_string(alignment_bytes) + "-byte boundary, must be aligned to " +
                       std::to_string(alignment_bytes) + " bytes");
  }
}

void check_elements_are_aligned(const char* argument,
                                const std::optional<ConstTensorView>& tensor) {
  if (tensor) {
    check_is_aligned(argument, tensor->data, static_cast<int>(size_bytes(tensor->dtype)));
  }
}

void check_rows_are_aligned(const char* argument, const ConstTensorView& tensor,
                            int alignment_bytes) {
  const auto element_bytes = static_cast<int>(size_bytes(tensor.dtype));
  alignment_bytes = std::max(alignment_bytes, element_bytes);
  check_is_aligned(argument, tensor.data, alignment_bytes);
  const std::int64_t step = alignment_bytes / element_bytes;
  for (int i = 0; i + 1 < tensor.rank; ++i) {
    if (tensor.device.kind == DeviceKind::cuda && tensor.shape[i] > 1 &&
        (tensor.stride[i] < 0 || tensor.stride[i] % step != 0)) {
      fail(argument, "has stride " + std::to_string(tensor.stride[i]) + " in dimension " +
                         std::to_string(i) + ", must be a non-negative multiple of " +
                         std::to_string(step) + " elements");
    }
  }
}

void check_workspace(Workspace workspace, std::size_t needed_bytes, std::string_view kernel) {
  if (needed_bytes == 0) {
    return;
  }
  if (workspace.data == nullptr || workspace.bytes < needed_bytes) {
    throw Error(ErrorCode::workspace_too_small, "workspace",
                "has " + std::to_string(workspace.data ? workspace.bytes : 0) + " bytes, kernel " +
                    std::string(kernel) + " needs " + std::to_string(needed_bytes) +
                    " for this problem");
  }
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % kWorkspaceAlignment_bytes != 0) {
    fail("workspace", "must be aligned to " + std::to_string(kWorkspaceAlignment_bytes) + " bytes");
  }
}

}  // namespace tilewright
