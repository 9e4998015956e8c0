// tilewright._native: the C++ API for the Python layer. Tensors come as DLPack capsules or NumPy
// arrays and become views; the library itself checks all else about an argument.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "native_tensor.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/version.hpp"

namespace nb = nanobind;

namespace tilewright {

// Each adds an operation's functions and what its kernels may be asked, and the last the tables.
void bind_append_kv(nb::module_& m);
void bind_attention(nb::module_& m);
void bind_attention_fp8(nb::module_& m);
void bind_attention_with_kvcache(nb::module_& m);
void bind_dsv4_attention(nb::module_& m);
void bind_gemm_bf16(nb::module_& m);
void bind_gemm_nvfp4(nb::module_& m);
void bind_kv_rows(nb::module_& m);
void bind_merge_states(nb::module_& m);
void bind_nvfp4(nb::module_& m);
void bind_rope(nb::module_& m);
void bind_rotate_quantize(nb::module_& m);
void bind_kernels(nb::module_& m);

namespace {

// Raises tilewright::Error as the Python class of its code.
void translate_error(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const std::string_view code = name(error.code());
    const std::string message = std::string(error.what()).substr(error.argument().size() + 2);
    const nb::object exception =
        nb::module_::import_("tilewright._errors").attr("make")(code, error.argument(), message);
    PyErr_SetObject(exception.type().ptr(), exception.ptr());
  }
}

}  // namespace
}  // namespace tilewright

NB_MODULE(_native, m) {
  using namespace tilewright;
  nb::register_exception_translator(translate_error);

  nb::class_<Tensor>(m, "Tensor")
      .def(nb::init<const std::string&, nb::handle, std::optional<std::string>, const std::string&,
                    bool>(),
           nb::arg("argument"), nb::arg("source"), nb::arg("held").none(), nb::arg("takes"),
           nb::arg("is_output"));

  m.def(
      "synchronize",
      [](int device_index, std::uintptr_t stream) {
        const nb::gil_scoped_release released;
        synchronize({DeviceKind::cuda, device_index}, reinterpret_cast<Stream>(stream));
      },
      nb::arg("device_index"), nb::arg("stream"));

  bind_append_kv(m);
  bind_attention(m);
  bind_attention_fp8(m);
  bind_attention_with_kvcache(m);
  bind_dsv4_attention(m);
  bind_gemm_bf16(m);
  bind_gemm_nvfp4(m);
  bind_kv_rows(m);
  bind_merge_states(m);
  bind_nvfp4(m);
  bind_rope(m);
  bind_rotate_quantize(m);
  bind_kernels(m);

  m.attr("version") = nb::str(kVersion.data(), kVersion.size());
  m.attr("commit") = nb::str(kCommit.data(), kCommit.size());
}
