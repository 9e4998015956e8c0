#include "registry/reasons.hpp"

#include <algorithm>

namespace tilewright {
namespace {

std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

}  // namespace

std::optional<Reason> size_range_reason(std::initializer_list<ProblemSize> sizes) {
  constexpr std::int64_t kEnd = std::int64_t{1} << 30;
  for (const auto& [name, value] : sizes) {
    if (value < 1 || value >= kEnd) {
      return Reason{ErrorCode::invalid_argument, name,
                    "is " + std::to_string(value) + ", must be at least 1 and less than 2^30"};
    }
  }
  return std::nullopt;
}

Reason takes_reason(const KernelInfo& kernel, const char* argument, const std::string& what,
                    const std::string& takes) {
  return {ErrorCode::unsupported, argument,
          "has " + what + ", kernel " + std::string(kernel.name) + " takes " + takes};
}

std::optional<Reason> dtype_reason(const KernelInfo& kernel, std::span<const DType> takes,
                                   const char* argument, DType dtype) {
  if (std::ranges::find(takes, dtype) != takes.end()) {
    return std::nullopt;
  }
  std::string all;
  for (const DType each : takes) {
    all += (all.empty() ? "" : ", ") + std::string(name(each));
  }
  return takes_reason(kernel, argument, "dtype " + std::string(name(dtype)), all);
}

std::optional<Reason> can_run(const KernelInfo& kernel, const DeviceInfo& device) {
  if (kernel.device == DeviceKind::cuda && !cpu_only_notice().empty()) {
    return Reason{ErrorCode::no_device, "kernel",
                  std::string(kernel.name) + " needs CUDA, but " + std::string(cpu_only_notice())};
  }
  if (kernel.device != device.device.kind) {
    return Reason{ErrorCode::unsupported, "device",
                  "is " + name(device.device) + ", kernel " + std::string(kernel.name) +
                      " runs on " + (kernel.device == DeviceKind::cpu ? "the cpu" : "cuda")};
  }
  if (kernel.compute_capability != device.compute_capability) {
    return Reason{ErrorCode::unsupported, "device",
                  "is " + device.name + " of compute capability " +
                      capability_text(device.compute_capability) + ", kernel " +
                      std::string(kernel.name) + " is built for " +
                      capability_text(kernel.compute_capability)};
  }
  return std::nullopt;
}

}  // namespace tilewright
