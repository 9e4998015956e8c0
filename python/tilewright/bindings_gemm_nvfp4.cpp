// The calls of gemm_nvfp4() for the Python layer.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "kernel_queries.hpp"
#include "native_call.hpp"
#include "nvfp4_options.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"

namespace tilewright {
namespace {

using GemmNvfp4Call = NativeCall<GemmNvfp4, gemm_nvfp4_workspace_bytes, gemm_nvfp4>;

GemmNvfp4Call make_call(const nb::dict& tensors, bool sfa_swizzled, bool sfb_swizzled,
                        std::optional<bool> decode_a, std::optional<bool> decode_b,
                        bool b_is_constant, bool batch_invariant, const std::string& kernel_name) {
  return {tensors,
          {.a = view(tensors, "a"),
           .b = view(tensors, "b"),
           .sfb = find(tensors, "sfb"),
           .c = view(tensors, "c"),
           .sfa = find(tensors, "sfa"),
           .global_scale_a = find(tensors, "global_scale_a"),
           .global_scale_b = find(tensors, "global_scale_b"),
           .bias = find(tensors, "bias"),
           .residual = find(tensors, "residual")},
          {.sfa_layout = to_layout(sfa_swizzled),
           .sfb_layout = to_layout(sfb_swizzled),
           .global_scale_a_kind = to_kind(decode_a),
           .global_scale_b_kind = to_kind(decode_b),
           .b_is_constant = b_is_constant,
           .batch_invariant = batch_invariant,
           .kernel = kernel_name}};
}

GemmNvfp4Problem make_problem(std::string_view a_dtype, std::string_view c_dtype, std::int64_t m,
                              std::int64_t n, std::int64_t k, std::int64_t l, bool b_is_packed,
                              bool batch_invariant) {
  return {.a_dtype = parse_dtype(a_dtype),
          .c_dtype = parse_dtype(c_dtype),
          .m = m,
          .n = n,
          .k = k,
          .l = l,
          .b_is_packed = b_is_packed,
          .batch_invariant = batch_invariant};
}

}  // namespace

void bind_gemm_nvfp4(nb::module_& m) {
  bind_call<GemmNvfp4Call>(m, "GemmNvfp4Call", make_call, nb::arg("sfa_swizzled"),
                           nb::arg("sfb_swizzled"), nb::arg("decode_a").none(),
                           nb::arg("decode_b").none(), nb::arg("b_is_constant"),
                           nb::arg("batch_invariant"), nb::arg("kernel_name"));
  nb::class_<GemmNvfp4Problem>(m, "GemmNvfp4Problem")
      .def(nb::new_(&make_problem), nb::kw_only(), nb::arg("a_dtype"), nb::arg("c_dtype"),
           nb::arg("m"), nb::arg("n"), nb::arg("k"), nb::arg("l"), nb::arg("b_is_packed"),
           nb::arg("batch_invariant"));
  bind_queries<GemmNvfp4>(m);
}

}  // namespace tilewright
