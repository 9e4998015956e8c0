// A call whose arguments are checked and whose kernel is selected and planned, each once.
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

// A kernel that can run a problem, and its plan for that.
template <class Op>
struct Selection {
  const Kernel<Op>* kernel;
  Plan plan;
};

// The kernel with that name or, for "auto", the fastest that can run the problem. `argument` is a
// tensor on `device`. Throws if there is no such kernel.
template <class Op>
Selection<Op> select_kernel(std::string_view kernel_name, const typename Op::Problem& problem,
                            Device device, const char* argument);

template <class Op>
struct Call {
  Selection<Op> selection;
  typename Op::Params params;
  Device device;

  std::size_t workspace_bytes() const { return selection.plan.workspace_bytes; }

  // Throws if the workspace is too small.
  void check(Workspace workspace) const {
    check_workspace(workspace, workspace_bytes(), selection.kernel->info.name);
  }

  // Launches the kernel. The workspace has passed check().
  void launch(Workspace workspace, Stream stream) {
    if constexpr (requires { params.workspace; }) {
      params.workspace = static_cast<decltype(params.workspace)>(workspace.data);
    }
    if (device.kind == DeviceKind::cuda) {
      const cuda::DeviceScope scope(device.index);
      selection.kernel->launch(params, selection.plan, stream);
    } else {
      selection.kernel->launch(params, selection.plan, stream);
    }
  }
};

}  // namespace tilewright
