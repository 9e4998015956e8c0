// Views of callers' tensors, which are DLPack capsules or NumPy arrays.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

namespace nb = nanobind;

[[noreturn]] inline void fail(const std::string& argument, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, argument, message);
}

inline std::string dtype_text(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const std::string bits = std::to_string(dtype.bits) + (dtype.lanes == 1 ? "" : " in vectors");
  switch (static_cast<Code>(dtype.code)) {
    case Code::Int:
      return "int" + bits;
    case Code::UInt:
      return "uint" + bits;
    case Code::Float:
      return "float" + bits;
    case Code::Complex:
      return "complex" + bits;
    case Code::Bool:
      return "bool";
    default:
      return "DLPack type " + std::to_string(dtype.code) + " of " + bits + " bits";
  }
}

// The dtype of an array of unsigned integers whose bits are something else: "bf16", "e4m3", ...
inline DType held_dtype(const std::string& argument, nb::dlpack::dtype dtype,
                        const std::string& held) {
  for (const DType each : {DType::bf16, DType::e2m1x2, DType::e4m3, DType::e8m0, DType::u8}) {
    const auto bits = static_cast<std::uint8_t>(8 * size_bytes(each));
    const nb::dlpack::dtype integers{static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt), bits,
                                     1};
    if (held == name(each) && dtype == integers) {
      return each;
    }
  }
  fail(argument, "has dtype " + dtype_text(dtype) + ", cannot hold " + held);
}

// `takes` says what the argument may have: "int32", "int64", or dtypes of numbers.
inline DType to_dtype(const std::string& argument, nb::dlpack::dtype dtype,
                      const std::string& takes) {
  if (dtype == nb::dtype<float>()) {
    return DType::fp32;
  }
  if (dtype.lanes == 1 && dtype.bits == 16) {
    if (dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float)) {
      return DType::fp16;
    }
    if (dtype.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat)) {
      return DType::bf16;
    }
  }
  if (takes == name(DType::int32) && dtype == nb::dtype<std::int32_t>()) {
    return DType::int32;
  }
  if (takes == name(DType::int64) && dtype == nb::dtype<std::int64_t>()) {
    return DType::int64;
  }
  fail(argument, "has dtype " + dtype_text(dtype) + ", must be " + takes);
}

inline Device to_device(const std::string& argument, int type, int index) {
  if (type == nb::device::cpu::value || type == nb::device::cuda_host::value) {
    return {DeviceKind::cpu, 0};
  }
  if (type == nb::device::cuda::value || type == nb::device::cuda_managed::value) {
    return {DeviceKind::cuda, index};
  }
  fail(argument,
       "is on a device of DLPack type " + std::to_string(type) + ", must be on the cpu or on cuda");
}

// A caller's tensor, kept alive for as long as this object is.
class Tensor {
 public:
  // `source` is a DLPack capsule or a NumPy array. If its unsigned integers are not numbers, `held`
  // is the dtype that they hold; otherwise `takes` says which dtypes the argument may have. Only
  // outputs must be writable.
  Tensor(const std::string& argument, nb::handle source, const std::optional<std::string>& held,
         const std::string& takes, bool is_output) {
    nb::ndarray<> writable;
    if (is_output && nb::try_cast(source, writable, /*convert=*/false)) {
      array_ = nb::ndarray<nb::ro>(writable);
    } else if (!nb::try_cast(source, array_, /*convert=*/false)) {
      fail(argument, "has a dtype or strides that DLPack cannot express");
    } else if (is_output) {
      fail(argument, "is read-only, must be writable");
    }
    if (array_.ndim() > kMaxRank) {
      fail(argument, "has rank " + std::to_string(array_.ndim()) + ", must have at most rank " +
                         std::to_string(kMaxRank));
    }
    view_.data = const_cast<void*>(array_.data());
    view_.dtype = held ? held_dtype(argument, array_.dtype(), *held)
                       : to_dtype(argument, array_.dtype(), takes);
    view_.device = to_device(argument, array_.device_type(), array_.device_id());
    view_.rank = static_cast<int>(array_.ndim());
    std::copy_n(array_.shape_ptr(), array_.ndim(), view_.shape.begin());
    std::copy_n(array_.stride_ptr(), array_.ndim(), view_.stride.begin());
  }

  const TensorView& view() const { return view_; }

 private:
  nb::ndarray<nb::ro> array_;
  TensorView view_;
};

// A Tensor of a dict that has one for each argument that is given.
inline const TensorView& view(const nb::dict& tensors, const char* argument) {
  return nb::cast<const Tensor&>(tensors[argument]).view();
}

inline std::optional<TensorView> find(const nb::dict& tensors, const char* argument) {
  return tensors.contains(argument) ? std::optional(view(tensors, argument)) : std::nullopt;
}

// The workspace is a dense tensor of rank 1.
inline Workspace to_workspace(const Tensor* tensor) {
  if (tensor == nullptr) {
    return {};
  }
  const TensorView& view = tensor->view();
  return {.data = view.data,
          .bytes = static_cast<std::size_t>(view.shape[0]) * size_bytes(view.dtype)};
}

inline Stream to_stream(std::uintptr_t stream) { return reinterpret_cast<Stream>(stream); }

}  // namespace tilewright
