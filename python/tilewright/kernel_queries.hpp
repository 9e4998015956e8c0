// What Python may ask of an operation's kernels and a problem.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <optional>
#include <string>
#include <string_view>

#include "native_tensor.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

inline std::optional<std::string> text_of(const std::optional<Reason>& reason) {
  return reason ? std::optional(reason->argument + ": " + reason->message) : std::nullopt;
}

inline DType parse_dtype(std::string_view text) {
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16, DType::e2m1x2, DType::e4m3}) {
    if (text == name(dtype)) {
      return dtype;
    }
  }
  fail("dtype", "is '" + std::string(text) + "', must be fp32, fp16, bf16, e2m1x2 or e4m3");
}

template <class Op>
const Kernel<Op>& kernel_named(std::string_view kernel_name) {
  const Kernel<Op>* const kernel = find_kernel<Op>(kernel_name);
  if (kernel == nullptr) {
    fail("kernel", "is '" + std::string(kernel_name) + "', must be one of kernels()");
  }
  return *kernel;
}

// Why a kernel cannot run a problem on a device of its kind; nothing if it can.
template <class Op>
std::optional<std::string> why_not(std::string_view kernel_name,
                                   const typename Op::Problem& problem, int device_index) {
  const Kernel<Op>& kernel = kernel_named<Op>(kernel_name);
  try {
    return text_of(can_run(kernel, problem, device_info({kernel.info.device, device_index})));
  } catch (const Error& error) {  // there is no such device
    return error.what();
  }
}

// The variant in which a kernel runs a problem on a GPU with `multiprocessors` SMs.
template <class Op>
std::string variant_name(std::string_view kernel_name, const typename Op::Problem& problem,
                         int multiprocessors) {
  DeviceInfo device;
  device.multiprocessors = multiprocessors;
  const Kernel<Op>* const variant = variant_of(kernel_named<Op>(kernel_name), problem, device);
  if (variant == nullptr) {
    fail("problem", "is none that kernel " + std::string(kernel_name) + " takes");
  }
  return variant->info.name;
}

// Adds both for an operation.
template <class Op>
void bind_queries(nb::module_& m) {
  m.def("why_not", &why_not<Op>, nb::arg("kernel"), nb::arg("problem"), nb::kw_only(),
        nb::arg("device_index") = 0);
  m.def("variant_of", &variant_name<Op>, nb::arg("kernel"), nb::arg("problem"), nb::kw_only(),
        nb::arg("multiprocessors"));
}

}  // namespace tilewright
