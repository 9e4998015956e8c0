// The seam between host code and CUDA's runtime. A build without CUDA links without_cuda.cpp, which
// answers that there are no devices.
#pragma once

#include <cstddef>
#include <string_view>

#include "tilewright/registry.hpp"

namespace tilewright::cuda {

// What a build without CUDA says of itself; empty where the library was compiled with nvcc.
std::string_view cpu_only_notice();

int device_count();

// Throws no_device where there is no such device.
DeviceInfo device_info(int index);

// Makes a device current for its lifetime.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  [[maybe_unused]] int device_;
  [[maybe_unused]] int previous_ = 0;
};

void synchronize(int device, Stream stream);

// Copies bytes from a device, behind the stream's work, and waits for them.
void copy_to_host(void* to, const void* from, std::size_t bytes, int device, Stream stream);

}  // namespace tilewright::cuda
