// Calls that need a workspace, for the Python layer.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>
#include <utility>

#include "native_tensor.hpp"

namespace tilewright {

// A call's tensors and options, put together once for the workspace query and the call itself. It
// keeps the tensors alive, and the kernel's name, where the options have one.
template <class Op, auto* kWorkspaceBytes, auto* kRun>
class NativeCall {
 public:
  NativeCall(nb::dict owners, const typename Op::Tensors& tensors,
             const typename Op::Options& options)
      : owners_(std::move(owners)), tensors_(tensors), options_(options) {
    if constexpr (requires { options_.kernel; }) {
      kernel_name_ = options_.kernel;
    }
  }

  std::size_t workspace_bytes() const { return kWorkspaceBytes(tensors_, options()); }

  void run(const Tensor* workspace, std::uintptr_t stream) const {
    const nb::gil_scoped_release released;
    kRun(tensors_, options(), to_workspace(workspace), to_stream(stream));
  }

 private:
  typename Op::Options options() const {
    typename Op::Options options = options_;
    if constexpr (requires { options.kernel; }) {
      options.kernel = kernel_name_;
    }
    return options;
  }

  nb::dict owners_;
  std::string kernel_name_;
  typename Op::Tensors tensors_;
  typename Op::Options options_;
};

// Adds a class with a NativeCall's methods. `make` returns one from the constructor's arguments,
// whose names follow.
template <class Call, typename Make, typename... Extra>
void bind_call(nb::module_& m, const char* name, Make make, const Extra&... extra) {
  nb::class_<Call>(m, name)
      .def(nb::new_(make), nb::arg("tensors"), nb::kw_only(), extra...)
      .def("workspace_bytes", &Call::workspace_bytes)
      .def("run", &Call::run, nb::arg("workspace").none(), nb::arg("stream"));
}

}  // namespace tilewright
