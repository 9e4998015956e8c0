// The calls of tilewright/gemm.hpp for the Python layer.
#include <nanobind/stl/string.h>

#include <string>

#include "nvfp4_arguments.hpp"
#include "tilewright/gemm.hpp"

namespace tilewright {
namespace {

// A call's tensors and options, put together once for the workspace query and the call itself.
class GemmNvfp4Call {
 public:
  GemmNvfp4Call(const nb::dict& tensors, bool sfa_swizzled, bool sfb_swizzled,
                std::optional<bool> decode_a, std::optional<bool> decode_b, bool b_is_constant,
                bool batch_invariant, std::string kernel_name)
      : owners_(tensors),
        kernel_name_(std::move(kernel_name)),
        tensors_{.a = view(tensors, "a"),
                 .b = view(tensors, "b"),
                 .sfb = find(tensors, "sfb"),
                 .c = view(tensors, "c"),
                 .sfa = find(tensors, "sfa"),
                 .global_scale_a = find(tensors, "global_scale_a"),
                 .global_scale_b = find(tensors, "global_scale_b"),
                 .bias = find(tensors, "bias"),
                 .residual = find(tensors, "residual")},
        options_{.sfa_layout = to_layout(sfa_swizzled),
                 .sfb_layout = to_layout(sfb_swizzled),
                 .global_scale_a_kind = to_kind(decode_a),
                 .global_scale_b_kind = to_kind(decode_b),
                 .b_is_constant = b_is_constant,
                 .batch_invariant = batch_invariant,
                 .kernel = kernel_name_} {}
  GemmNvfp4Call(const GemmNvfp4Call&) = delete;  // options_ refers to kernel_name_

  std::size_t workspace_bytes() const { return gemm_nvfp4_workspace_bytes(tensors_, options_); }

  void run(const Tensor* workspace, std::uintptr_t stream) const {
    const nb::gil_scoped_release released;
    gemm_nvfp4(tensors_, options_, to_workspace(workspace), to_stream(stream));
  }

 private:
  nb::dict owners_;
  std::string kernel_name_;
  GemmNvfp4Tensors tensors_;
  GemmNvfp4Options options_;
};

void py_gemm_bf16(const nb::dict& tensors, const std::string& kernel_name, std::uintptr_t stream) {
  const GemmBf16Tensors t{
      .a = view(tensors, "a"), .b = view(tensors, "b"), .c = view(tensors, "c")};
  const nb::gil_scoped_release released;
  gemm_bf16(t, {.kernel = kernel_name}, to_stream(stream));
}

}  // namespace

void bind_gemm(nb::module_& m) {
  nb::class_<GemmNvfp4Call>(m, "GemmNvfp4Call")
      .def(nb::init<const nb::dict&, bool, bool, std::optional<bool>, std::optional<bool>, bool,
                    bool, std::string>(),
           nb::arg("tensors"), nb::kw_only(), nb::arg("sfa_swizzled"), nb::arg("sfb_swizzled"),
           nb::arg("decode_a").none(), nb::arg("decode_b").none(), nb::arg("b_is_constant"),
           nb::arg("batch_invariant"), nb::arg("kernel_name"))
      .def("workspace_bytes", &GemmNvfp4Call::workspace_bytes)
      .def("run", &GemmNvfp4Call::run, nb::arg("workspace").none(), nb::arg("stream"));
  m.def("gemm_bf16", &py_gemm_bf16, nb::arg("tensors"), nb::kw_only(), nb::arg("kernel_name"),
        nb::arg("stream"));
}

}  // namespace tilewright
