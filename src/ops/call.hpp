// The way of a call from its arguments to the launch, which all operations share. An operation's
// call.cpp defines these functions, for its own Tensors and Options:
//
//   void check_arguments(const Tensors&, const Options&)
//         checks all that can be checked before a kernel is selected; reads no data
//   DeviceArgument device_of(const Tensors&)
//         the argument that decides where the call runs
//   Problem problem_of(const Tensors&, const Options&)
//         what decides which kernel runs, and how
//   void check_alignment(const Tensors&, const KernelInfo&)
//         checks addresses and strides, as the kernel's loads and stores need them
//   Params params_of(const Tensors&, const Options&, const Problem&)
//         the call as kernels receive it
//
// Its public functions are then prepare<Op>(tensors, options).workspace_bytes() and
// prepare<Op>(tensors, options).launch(workspace, stream).
#pragma once

#include <optional>
#include <string_view>

#include "cuda/cuda_backend.hpp"
#include "ops/plan.hpp"
#include "ops/tensor_checks.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// The data of an optional tensor; null where it is absent.
template <typename T, typename View>
T* data_of(const std::optional<View>& tensor) {
  return tensor ? static_cast<T*>(tensor->data) : nullptr;
}

// A tensor of a call, as far as it says where the call runs.
struct DeviceArgument {
  const char* name;
  Device device;
};

// A kernel that can run a problem, and its plan for that.
template <class Op>
struct Selection {
  const Kernel<Op>* kernel;
  Plan plan;
};

// The kernel with that name or, for "auto", the fastest that can run the problem where `argument`
// is. Throws if there is no such kernel.
template <class Op>
Selection<Op> select_kernel(std::string_view kernel_name, const typename Op::Problem& problem,
                            DeviceArgument argument);

// A call whose arguments are checked and whose kernel is selected and planned.
template <class Op>
class Call {
 public:
  Call(const Selection<Op>& selection, const typename Op::Params& params, Device device)
      : selection_(selection), params_(params), device_(device) {}

  std::size_t workspace_bytes() const { return selection_.plan.workspace_bytes; }

  // Launches the kernel. Throws if the workspace is too small.
  void launch(Workspace workspace, Stream stream) {
    check_workspace(workspace, workspace_bytes(), selection_.kernel->info.name);
    if constexpr (requires { params_.workspace; }) {
      params_.workspace = static_cast<decltype(params_.workspace)>(workspace.data);
    }
    std::optional<cuda::DeviceScope> scope;
    if (device_.kind == DeviceKind::cuda) {
      scope.emplace(device_.index);
    }
    selection_.kernel->launch(params_, selection_.plan, stream);
  }

 private:
  Selection<Op> selection_;
  typename Op::Params params_;
  Device device_;
};

// The kernel that the options name, if the operation has such an option.
template <class Options>
std::string_view kernel_name_of(const Options& options) {
  if constexpr (requires { options.kernel; }) {
    return options.kernel;
  } else {
    return "auto";
  }
}

// Checks a call, selects its kernel and plans it.
template <class Op>
Call<Op> prepare(const typename Op::Tensors& tensors, const typename Op::Options& options) {
  check_arguments(tensors, options);
  const typename Op::Problem problem = problem_of(tensors, options);
  const DeviceArgument argument = device_of(tensors);
  const Selection<Op> selection = select_kernel<Op>(kernel_name_of(options), problem, argument);
  check_alignment(tensors, selection.kernel->info);
  return {selection, params_of(tensors, options, problem), argument.device};
}

}  // namespace tilewright
