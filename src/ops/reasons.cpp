#include "ops/reasons.hpp"

#include <algorithm>

#include "ops/tensor_checks.hpp"

namespace tilewright {
namespace {

std::string capability_text(int capability) {
  return std::to_string(capability / 10) + "." + std::to_string(capability % 10);
}

std::string capability_texts(const std::vector<int>& capabilities) {
  std::string all;
  for (const int capability : capabilities) {
    all += (all.empty() ? "" : ", ") + capability_text(capability);
  }
  return all;
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
          "has " + what + ", kernel " + kernel.name + " takes " + takes};
}

std::optional<Reason> multiple_reason(const KernelInfo& kernel, const char* argument,
                                      const char* what, std::int64_t size, int multiple) {
  if (size % multiple == 0) {
    return std::nullopt;
  }
  return takes_reason(kernel, argument, std::string(what) + " " + std::to_string(size),
                      "multiples of " + std::to_string(multiple));
}

// The number of each tile's each chunk must fit 31 bits, for tiles of 64 x 8 and chunks of 128.
std::optional<Reason> gemm_size_reason(const KernelInfo& kernel, std::int64_t l, std::int64_t m,
                                       std::int64_t n, std::int64_t k) {
  constexpr double kMaxChunks = 0x1p31;
  const auto parts = [](std::int64_t size, std::int64_t of) {
    return static_cast<double>((size + of - 1) / of);
  };
  const double chunks = static_cast<double>(l) * parts(m, 8) * parts(n, 64) * parts(k, 128);
  if (kernel.device != DeviceKind::cuda || chunks < kMaxChunks) {
    return std::nullopt;
  }
  return takes_reason(kernel, "a",
                      "L x M x N x K of 2^47 or more, M, N and K up to multiples of 8, 64 and 128",
                      "less");
}

std::optional<Reason> memory_reason(const KernelInfo& kernel, std::size_t workspace_bytes,
                                    const DeviceInfo& device) {
  if (workspace_bytes <= device.memory_bytes) {
    return std::nullopt;
  }
  return Reason{ErrorCode::unsupported, "workspace",
                "kernel " + kernel.name + " needs " + std::to_string(workspace_bytes) +
                    " bytes for this problem, " + device.name + " has " +
                    std::to_string(device.memory_bytes)};
}

void check_device_kind(const KernelInfo& kernel, Device device, const char* argument) {
  if (kernel.device == device.kind) {
    return;
  }
  const std::string_view notice = kernel.device == DeviceKind::cuda ? cpu_only_notice() : "";
  fail(argument, "is on " + name(device) + ", kernel " + kernel.name + " takes tensors on " +
                     (kernel.device == DeviceKind::cpu ? "the cpu" : "cuda") +
                     (notice.empty() ? "" : ", but " + std::string(notice)));
}

std::optional<Reason> dtype_reason(const KernelInfo& kernel, std::span<const DType> takes,
                                   const char* argument, DType dtype) {
  if (std::ranges::find(takes, dtype) != takes.end()) {
    return std::nullopt;
  }
  return takes_reason(kernel, argument, "dtype " + std::string(name(dtype)), names_of(takes));
}

std::optional<Reason> can_run(const KernelInfo& kernel, const DeviceInfo& device) {
  if (kernel.device == DeviceKind::cuda && !cpu_only_notice().empty()) {
    return Reason{ErrorCode::no_device, "kernel",
                  kernel.name + " needs CUDA, but " + std::string(cpu_only_notice())};
  }
  if (!kernel.is_built) {
    return Reason{ErrorCode::unsupported, "kernel", kernel.name + " is not part of this build"};
  }
  if (kernel.device != device.device.kind) {
    return Reason{ErrorCode::unsupported, "device",
                  "is " + name(device.device) + ", kernel " + kernel.name + " runs on " +
                      (kernel.device == DeviceKind::cpu ? "the cpu" : "cuda")};
  }
  const bool is_right_gpu = std::ranges::find(kernel.architectures, device.compute_capability) !=
                            kernel.architectures.end();
  if (kernel.device == DeviceKind::cuda && !is_right_gpu) {
    return Reason{ErrorCode::unsupported, "device",
                  "is " + device.name + " of compute capability " +
                      capability_text(device.compute_capability) + ", kernel " + kernel.name +
                      " is built for " + capability_texts(kernel.architectures)};
  }
  return std::nullopt;
}

}  // namespace tilewright
