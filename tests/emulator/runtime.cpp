// Devices and errors of the stand-in for the CUDA runtime.
#include "emulator/runtime.hpp"

#include <cuda.h>

#include <cstring>
#include <unordered_map>

#include "emulator/tma.hpp"

namespace tilewright::emulator {
namespace {

thread_local cudaError_t last_error = cudaSuccess;

constexpr std::size_t kMemory_bytes = std::size_t{16} << 30;
constexpr int kSharedPerSm_bytes = 228 * 1024;
constexpr int kSharedPerBlock_bytes = 227 * 1024;
constexpr int kL2_bytes = 50 << 20;

struct ErrorText {
  const char* name;
  const char* text;
};

ErrorText text_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return {"cudaSuccess", "no error"};
    case cudaErrorInvalidValue:
      return {"cudaErrorInvalidValue", "invalid argument"};
    case cudaErrorMemoryAllocation:
      return {"cudaErrorMemoryAllocation", "out of memory"};
    case cudaErrorInvalidConfiguration:
      return {"cudaErrorInvalidConfiguration", "invalid configuration argument"};
    case cudaErrorInvalidDevice:
      return {"cudaErrorInvalidDevice", "invalid device ordinal"};
    case cudaErrorInvalidDeviceFunction:
      return {"cudaErrorInvalidDeviceFunction", "invalid device function"};
    case cudaErrorLaunchFailure:
      return {"cudaErrorLaunchFailure", "unspecified launch failure"};
    case cudaErrorLaunchOutOfResources:
      return {"cudaErrorLaunchOutOfResources", "too many resources requested for launch"};
    case cudaErrorInvalidClusterSize:
      return {"cudaErrorInvalidClusterSize", "cluster misconfiguration"};
    case cudaErrorNotSupported:
      return {"cudaErrorNotSupported", "operation not supported"};
    default:
      return {"cudaErrorUnknown", "unknown error"};
  }
}

}  // namespace

cudaError_t fail(cudaError_t error) {
  last_error = error;
  return error;
}

std::recursive_mutex& runtime_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace tilewright::emulator

using namespace tilewright::emulator;

extern "C" {

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return last_error; }
const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return text_of(error).text; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : fail(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDeviceReset() { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) {
    return fail(cudaErrorInvalidDevice);
  }
  *properties = {};
  std::strcpy(properties->name, "emulated sm_90a");
  properties->major = 9;
  properties->minor = 0;
  properties->multiProcessorCount = settings().multiprocessors;
  properties->totalGlobalMem = kMemory_bytes;
  properties->l2CacheSize = kL2_bytes;
  properties->sharedMemPerBlock = 48 * 1024;
  properties->sharedMemPerBlockOptin = kSharedPerBlock_bytes;
  properties->sharedMemPerMultiprocessor = kSharedPerSm_bytes;
  properties->reservedSharedMemPerBlock = kReservedShared_bytes;
  properties->warpSize = kWarpLanes;
  properties->maxThreadsPerBlock = 1024;
  properties->maxThreadsPerMultiProcessor = 2048;
  properties->regsPerBlock = 65536;
  properties->regsPerMultiprocessor = 65536;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device != 0) {
    return fail(cudaErrorInvalidDevice);
  }
  static const std::unordered_map<int, int> kValues = {
      {cudaDevAttrComputeCapabilityMajor, 9},
      {cudaDevAttrComputeCapabilityMinor, 0},
      {cudaDevAttrMaxSharedMemoryPerBlockOptin, kSharedPerBlock_bytes},
      {cudaDevAttrMaxSharedMemoryPerBlock, 48 * 1024},
      {cudaDevAttrMaxSharedMemoryPerMultiprocessor, kSharedPerSm_bytes},
      {cudaDevAttrMultiProcessorCount, settings().multiprocessors},
      {cudaDevAttrL2CacheSize, kL2_bytes},
      {cudaDevAttrMaxThreadsPerBlock, 1024},
      {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
      {cudaDevAttrWarpSize, kWarpLanes},
      {cudaDevAttrClockRate, 1'980'000},
      {cudaDevAttrMemoryClockRate, 3'201'000},
      {cudaDevAttrGlobalMemoryBusWidth, 6144}};
  const auto found = kValues.find(attribute);
  if (found == kValues.end()) {
    return fail(cudaErrorInvalidValue);
  }
  *value = found->second;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int) {
  std::strncpy(id, "0000:00:00.0", static_cast<std::size_t>(bytes));
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::scoped_lock lock(runtime_mutex());
  *total = kMemory_bytes;
  *free = kMemory_bytes - std::min(kMemory_bytes, device_memory().used_bytes());
  return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool is_encode = std::strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
  *function = is_encode ? reinterpret_cast<void*>(&encode_tensor_map) : nullptr;
  if (found != nullptr) {
    *found = is_encode ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  }
  return cudaSuccess;
}

}  // extern "C"
