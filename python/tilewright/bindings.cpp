// tilewright._native: the C++ API for the Python layer. Tensors come as DLPack capsules or NumPy
// arrays and become views; the library itself checks all else about an argument.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "native_tensor.hpp"
#include "tilewright/attention.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/version.hpp"

namespace nb = nanobind;

namespace tilewright {
namespace {

// One side of a window. Python has -1 for a side without a limit.
std::optional<std::int64_t> to_window_side(std::int64_t keys) {
  return keys == -1 ? std::nullopt : std::optional(keys);
}

// A call's tensors and options, put together once for the workspace query and the call itself.
class AttentionCall {
 public:
  // `tensors` has a Tensor for each argument that is given, under its Python name.
  AttentionCall(const nb::dict& tensors, std::optional<double> softmax_scale, bool causal,
                std::int64_t window_size_left, std::int64_t window_size_right, double softcap,
                bool batch_invariant, bool check_lengths, std::string kernel_name)
      : owners_(tensors), kernel_name_(std::move(kernel_name)) {
    tensors_ = {.q = view("q"),
                .k = view("k"),
                .v = view("v"),
                .o = view("out"),
                .lse = find("lse"),
                .sinks = find("sinks"),
                .cu_seqlens_q = find("cu_seqlens_q"),
                .cu_seqlens_k = find("cu_seqlens_k"),
                .seqused_k = find("seqused_k"),
                .row_max = find("row_max"),
                .row_sum = find("row_sum")};
    options_ = {.causal = causal,
                .window = {.left = to_window_side(window_size_left),
                           .right = to_window_side(window_size_right)},
                .softcap = static_cast<float>(softcap),
                .batch_invariant = batch_invariant,
                .check_lengths = check_lengths,
                .kernel = kernel_name_};
    if (softmax_scale) {
      options_.scale = static_cast<float>(*softmax_scale);
    }
  }
  AttentionCall(const AttentionCall&) = delete;  // options_.kernel views kernel_name_
  AttentionCall& operator=(const AttentionCall&) = delete;

  std::size_t workspace_bytes() const { return attention_workspace_bytes(tensors_, options_); }

  void run(const Tensor* workspace, std::uintptr_t stream) const {
    const nb::gil_scoped_release released;
    attention(tensors_, options_, to_workspace(workspace), reinterpret_cast<Stream>(stream));
  }

 private:
  const TensorView& view(const char* argument) const {
    return nb::cast<const Tensor&>(owners_[argument]).view();
  }

  std::optional<TensorView> find(const char* argument) const {
    return owners_.contains(argument) ? std::optional(view(argument)) : std::nullopt;
  }

  nb::dict owners_;
  std::string kernel_name_;
  AttentionTensors tensors_;
  AttentionOptions options_;
};

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

  nb::class_<AttentionCall>(m, "AttentionCall")
      .def(nb::init<const nb::dict&, std::optional<double>, bool, std::int64_t, std::int64_t,
                    double, bool, bool, std::string>(),
           nb::arg("tensors"), nb::kw_only(), nb::arg("softmax_scale").none(), nb::arg("causal"),
           nb::arg("window_size_left"), nb::arg("window_size_right"), nb::arg("softcap"),
           nb::arg("batch_invariant"), nb::arg("check_lengths"), nb::arg("kernel_name"))
      .def("workspace_bytes", &AttentionCall::workspace_bytes)
      .def("run", &AttentionCall::run, nb::arg("workspace").none(), nb::arg("stream"));

  m.def(
      "synchronize",
      [](int device_index, std::uintptr_t stream) {
        const nb::gil_scoped_release released;
        synchronize({DeviceKind::cuda, device_index}, reinterpret_cast<Stream>(stream));
      },
      nb::arg("device_index"), nb::arg("stream"));

  bind_nvfp4(m);
  bind_gemm(m);
  bind_kernels(m);

  m.attr("version") = nb::str(kVersion.data(), kVersion.size());
  m.attr("commit") = nb::str(kCommit.data(), kCommit.size());
}
