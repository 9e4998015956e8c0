// Launching a kernel: the shared-memory limit, the launch, the error check.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <utility>

#include "cuda/common/error.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cuda {

// Raises the kernel's dynamic shared-memory limit, once per device.
template <auto kKernel>
void allow_smem(std::size_t smem_bytes) {
  constexpr int kMaxDevices = 64;
  static std::array<std::atomic<bool>, kMaxDevices> done{};
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  if (!done[device % kMaxDevices].load(std::memory_order_acquire) || device >= kMaxDevices) {
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(smem_bytes)),
          "cudaFuncSetAttribute");
    done[device % kMaxDevices].store(true, std::memory_order_release);
  }
}

struct LaunchOptions {
  int cluster = 1;               // blocks
  bool may_start_early = false;  // while the launch before runs; the kernel then waits for its end
};

// Queues one launch with the kernel's parameters as arguments. It checks the launch's own status:
// the thread's last error may come from another call.
template <auto kKernel, typename... Args>
void launch_with(const LaunchOptions& options, dim3 grid, int threads, std::size_t smem_bytes,
                 Stream stream, const Args&... args) {
  constexpr std::size_t kDefaultLimit_bytes = 48 * 1024;
  if (smem_bytes > kDefaultLimit_bytes) {
    allow_smem<kKernel>(smem_bytes);
  }
  std::array<cudaLaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (options.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count].val.clusterDim = {static_cast<unsigned>(options.cluster), 1, 1};
    ++count;
  }
  if (options.may_start_early) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count].val.programmaticStreamSerializationAllowed = 1;
    ++count;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = smem_bytes;
  config.stream = stream;
  config.attrs = attributes.data();
  config.numAttrs = count;
  check(cudaLaunchKernelEx(&config, kKernel, args...), "kernel launch");
}

// The same without options.
template <auto kKernel, typename... Args>
void launch(dim3 grid, int threads, std::size_t smem_bytes, Stream stream, const Args&... args) {
  launch_with<kKernel>({}, grid, threads, smem_bytes, stream, args...);
}

// Calls f.template operator()<D>() for the D of the list that equals head_dim.
template <int... kHeadDims, typename F>
void dispatch_head_dim(int head_dim, F&& f) {
  ((head_dim == kHeadDims ? (f.template operator()<kHeadDims>(), true) : false) || ...);
}

}  // namespace tilewright::cuda
