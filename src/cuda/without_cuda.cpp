// The CUDA side of a build without CUDA.
#include "cuda/cuda_backend.hpp"

namespace tilewright::cuda {

std::string_view cpu_only_notice() {
  return "this is a CPU-only build of Tilewright. Build it again where CUDA 13's nvcc is on PATH";
}

int device_count() { return 0; }

DeviceInfo device_info(int index) {
  throw Error(ErrorCode::no_device, "device",
              "is cuda:" + std::to_string(index) + ", but " + std::string(cpu_only_notice()));
}

DeviceScope::DeviceScope(int device) : device_(device) { device_info(device); }

DeviceScope::~DeviceScope() = default;

void synchronize(int device, Stream) { device_info(device); }

void copy_to_host(void*, const void*, std::size_t, int device, Stream) { device_info(device); }

}  // namespace tilewright::cuda
