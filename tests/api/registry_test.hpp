// Devices that need not exist here, and kernels by name.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "tilewright/operations.hpp"

namespace tilewright {

inline DeviceInfo gpu(const char* name, int compute_capability, double gigabytes) {
  DeviceInfo info;
  info.device = {DeviceKind::cuda, 0};
  info.name = name;
  info.compute_capability = compute_capability;
  info.multiprocessors = 132;
  info.memory_bytes = static_cast<std::size_t>(gigabytes * 1e9);
  return info;
}

inline const DeviceInfo kH200 = gpu("NVIDIA H200", 90, 141);

template <class Op>
const Kernel<Op>& named(std::string_view name) {
  const Kernel<Op>* const found = find_kernel<Op>(name);
  if (found == nullptr) {
    throw std::out_of_range(std::string(name));
  }
  return *found;
}

inline const Kernel<GemmNvfp4>& gemm(std::string_view name) { return named<GemmNvfp4>(name); }

}  // namespace tilewright
