// The kernel that runs a call, of all operations.
#pragma once

#include <optional>
#include <ranges>
#include <string>
#include <string_view>

#include "registry/reasons.hpp"
#include "tensor_checks.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// Throws where the operation has none of that name; `more` ends the list of those it has.
inline const KernelInfo& named_kernel(std::string_view operation, std::string_view kernel_name,
                                      const std::string& more = "") {
  if (const KernelInfo* kernel = find_kernel(operation, kernel_name)) {
    return *kernel;
  }
  std::string known = "auto";
  for (const KernelInfo& kernel : kernels(operation)) {
    known += ", " + std::string(kernel.name);
  }
  fail("kernel", "is '" + std::string(kernel_name) + "', must be one of " + known + more);
}

// The last of the operation's table that can run the problem, since the table ascends in speed.
template <typename Problem>
const KernelInfo& fastest_kernel(std::string_view operation, const Problem& problem,
                                 Device device) {
  const DeviceInfo& info = device_info(device);
  std::optional<Reason> first_reason;
  for (const KernelInfo& kernel : kernels(operation) | std::views::reverse) {
    if (kernel.device != device.kind) {
      continue;
    }
    const std::optional<Reason> reason = can_run(kernel, problem, info);
    if (!reason) {
      return kernel;
    }
    if (!first_reason) {
      first_reason = reason;
    }
  }
  throw_if(first_reason);
  throw Error(ErrorCode::unsupported, "kernel", "no kernel takes tensors on " + name(device));
}

// `kernel`, where it can run the problem. `argument` is a tensor on `device`.
template <typename Problem>
const KernelInfo& checked_kernel(const KernelInfo& kernel, const Problem& problem, Device device,
                                 const char* argument) {
  if (kernel.device != device.kind) {
    const std::string_view notice = kernel.device == DeviceKind::cuda ? cpu_only_notice() : "";
    fail(argument, "is on " + name(device) + ", kernel " + std::string(kernel.name) +
                       " takes tensors on " +
                       (kernel.device == DeviceKind::cpu ? "the cpu" : "cuda") +
                       (notice.empty() ? "" : ", but " + std::string(notice)));
  }
  throw_if(can_run(kernel, problem, device_info(device)));
  return kernel;
}

}  // namespace tilewright
