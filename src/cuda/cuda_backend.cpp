// The CUDA side's host code: devices.
#include "cuda/cuda_backend.hpp"

#include "cuda/common/error.hpp"

namespace tilewright::cuda {
namespace {

int attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

}  // namespace

std::string_view cpu_only_notice() { return ""; }

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // it is no error to have no device
    return 0;
  }
  return count;
}

DeviceInfo device_info(int index) {
  if (index < 0 || index >= device_count()) {
    throw Error(ErrorCode::no_device, "device",
                "is cuda:" + std::to_string(index) + ", this machine has " +
                    std::to_string(device_count()) + " CUDA devices");
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  DeviceInfo info;
  info.device = {DeviceKind::cuda, index};
  info.name = properties.name;
  info.compute_capability = 10 * properties.major + properties.minor;
  info.multiprocessors = properties.multiProcessorCount;
  info.memory_bytes = properties.totalGlobalMem;
  info.l2_bytes = static_cast<std::size_t>(properties.l2CacheSize);
  info.smem_per_block_bytes =
      static_cast<std::size_t>(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, index));
  return info;
}

DeviceScope::DeviceScope(int device) : device_(device) {
  check(cudaGetDevice(&previous_), "cudaGetDevice");
  if (device_ != previous_) {
    check(cudaSetDevice(device_), "cudaSetDevice");
  }
}

DeviceScope::~DeviceScope() {
  if (device_ != previous_) {
    cudaSetDevice(previous_);
  }
}

void synchronize(int device, Stream stream) {
  const DeviceScope scope(device);
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void copy_to_host(void* to, const void* from, std::size_t bytes, int device, Stream stream) {
  const DeviceScope scope(device);
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
  synchronize(device, stream);
}

}  // namespace tilewright::cuda
