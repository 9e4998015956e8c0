// The calls of gemm_bf16() for the Python layer.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "kernel_queries.hpp"
#include "native_tensor.hpp"
#include "tilewright/gemm_bf16_kernels.hpp"

namespace tilewright {
namespace {

void py_gemm_bf16(const nb::dict& tensors, const std::string& kernel_name, std::uintptr_t stream) {
  const GemmBf16Tensors t{
      .a = view(tensors, "a"), .b = view(tensors, "b"), .c = view(tensors, "c")};
  const nb::gil_scoped_release released;
  gemm_bf16(t, {.kernel = kernel_name}, to_stream(stream));
}

GemmBf16Problem make_problem(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.m = m, .n = n, .k = k};
}

}  // namespace

void bind_gemm_bf16(nb::module_& m) {
  m.def("gemm_bf16", &py_gemm_bf16, nb::arg("tensors"), nb::kw_only(), nb::arg("kernel_name"),
        nb::arg("stream"));
  nb::class_<GemmBf16Problem>(m, "GemmBf16Problem")
      .def(nb::new_(&make_problem), nb::kw_only(), nb::arg("m"), nb::arg("n"), nb::arg("k"));
  bind_queries<GemmBf16>(m);
}

}  // namespace tilewright
