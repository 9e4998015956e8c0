// Memory of the stand-in for the CUDA runtime.
#include <cstdlib>
#include <cstring>

#include "emulator/runtime.hpp"

namespace tilewright::emulator {
namespace {

constexpr std::size_t kMost_bytes = std::size_t{16} << 30;

cudaError_t copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  return enqueue(stream, cudaGraphNodeTypeMemcpy, [to, from, bytes] {
    std::memmove(to, from, bytes);
    return cudaSuccess;
  });
}

cudaError_t set(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return enqueue(stream, cudaGraphNodeTypeMemset, [to, value, bytes] {
    if (bytes != 0 && !device_memory().holds(to, bytes)) {
      return fail(cudaErrorInvalidValue);
    }
    std::memset(to, value, bytes);
    return cudaSuccess;
  });
}

// The place of a variable, or null.
std::byte* place_of(const void* symbol, std::size_t* bytes) {
  RegisteredVariable* const variable = find_variable(symbol);
  return variable == nullptr ? nullptr : variable->module->get().variable(variable->name, bytes);
}

}  // namespace
}  // namespace tilewright::emulator

using namespace tilewright::emulator;

extern "C" {

cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  const std::scoped_lock lock(runtime_mutex());
  *address = nullptr;
  if (bytes == 0) {
    return cudaSuccess;
  }
  if (bytes <= kMost_bytes - std::min(kMost_bytes, device_memory().used_bytes())) {
    *address = device_memory().allocate(bytes);
  }
  return *address == nullptr ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFree(void* address) {
  const std::scoped_lock lock(runtime_mutex());
  return address == nullptr || device_memory().free(address) ? cudaSuccess
                                                             : fail(cudaErrorInvalidValue);
}

cudaError_t cudaMallocAsync(void** address, std::size_t bytes, cudaStream_t) {
  return cudaMalloc(address, bytes);
}
cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }
cudaError_t cudaMallocHost(void** address, std::size_t bytes) { return cudaMalloc(address, bytes); }
cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  return cudaMalloc(address, bytes);
}
cudaError_t cudaFreeHost(void* address) { return cudaFree(address); }
cudaError_t cudaMallocManaged(void** address, std::size_t bytes, unsigned) {
  return cudaMalloc(address, bytes);
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, nullptr);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return set(to, value, bytes, nullptr);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return set(to, value, bytes, stream);
}

cudaError_t cudaGetSymbolAddress(void** address, const void* symbol) {
  std::size_t bytes = 0;
  *address = place_of(symbol, &bytes);
  return *address == nullptr ? fail(cudaErrorInvalidSymbol) : cudaSuccess;
}

cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes,
                               std::size_t offset, cudaMemcpyKind) {
  std::size_t size = 0;
  std::byte* const place = place_of(symbol, &size);
  if (place == nullptr || offset > size || bytes > size - offset) {
    return fail(place == nullptr ? cudaErrorInvalidSymbol : cudaErrorInvalidValue);
  }
  return copy(place + offset, from, bytes, nullptr);
}

cudaError_t cudaMemcpyFromSymbol(void* to, const void* symbol, std::size_t bytes,
                                 std::size_t offset, cudaMemcpyKind) {
  std::size_t size = 0;
  std::byte* const place = place_of(symbol, &size);
  if (place == nullptr || offset > size || bytes > size - offset) {
    return fail(place == nullptr ? cudaErrorInvalidSymbol : cudaErrorInvalidValue);
  }
  return copy(to, place + offset, bytes, nullptr);
}

}  // extern "C"
