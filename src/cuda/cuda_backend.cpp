// The CUDA side's host code: devices, and the kernel names' launchers.
#include "cuda/cuda_backend.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "cuda/attention/flash/launch.hpp"
#include "cuda/attention/launchers.hpp"
#include "cuda/common/error.hpp"
#include "cuda/gemm/launchers.hpp"
#include "cuda/gemm/nvfp4/launch.hpp"
#include "cuda/nvfp4/launchers.hpp"

namespace tilewright::cuda {
namespace {

// Launchers by the names of their kernels.
template <typename Params, std::size_t kCount>
using Launchers = std::array<std::pair<std::string_view, void (*)(const Params&, Stream)>, kCount>;

constexpr Launchers<AttentionParams, 12> kAttentionLaunchers = {{
    {"k1", launch_k1},
    {"k2", launch_k2},
    {"k3_1", launch_k3_1},
    {"k3_2", launch_k3_2},
    {"k3_3", launch_k3_3},
    {"k4_qk", launch_k4_qk},
    {"k4", launch_k4},
    {"k5", launch_k5},
    {"k6_pingpong", launch_k6_pingpong},
    {"k6_overlap", launch_k6_overlap},
    {"k6", launch_k6},
    {"flash", launch_flash},
}};

constexpr Launchers<GemmBf16Params, 3> kGemmBf16Launchers = {{
    {"gemm_naive", launch_gemm_naive},
    {"gemm_tiled", launch_gemm_tiled},
    {"gemm_swizzled", launch_gemm_swizzled},
}};

constexpr Launchers<GemmNvfp4Params, 2> kGemmNvfp4Launchers = {{
    {"nvfp4_simple", launch_nvfp4_simple},
    {"nvfp4", launch_nvfp4},
}};

// Of a name that the table has.
auto launcher_of(const auto& launchers, std::string_view kernel) {
  return std::ranges::find(launchers, kernel, [](const auto& entry) { return entry.first; })
      ->second;
}

int attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}

// Makes a device current for its lifetime.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    check(cudaGetDevice(&previous_), "cudaGetDevice");
    if (device_ != previous_) {
      check(cudaSetDevice(device_), "cudaSetDevice");
    }
  }
  ~DeviceGuard() {
    if (device_ != previous_) {
      cudaSetDevice(previous_);
    }
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int device_;
  int previous_ = 0;
};

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

void run_attention(std::string_view kernel, const AttentionParams& params, int device,
                   Stream stream) {
  const DeviceGuard guard(device);
  if (const std::optional<int> row = flash_row_named(kernel)) {
    return launch_flash_row(*row, params, stream);
  }
  launcher_of(kAttentionLaunchers, kernel)(params, stream);
}

void run_gemm_bf16(std::string_view kernel, const GemmBf16Params& params, int device,
                   Stream stream) {
  const DeviceGuard guard(device);
  launcher_of(kGemmBf16Launchers, kernel)(params, stream);
}

void run_gemm_nvfp4(std::string_view kernel, const GemmNvfp4Params& params, int device,
                    Stream stream) {
  const DeviceGuard guard(device);
  if (const std::optional<int> row = nvfp4_row_named(kernel)) {
    return launch_nvfp4_row(*row, params, stream);
  }
  launcher_of(kGemmNvfp4Launchers, kernel)(params, stream);
}

void run_quantize_nvfp4(const QuantizeNvfp4Params& params, int device, Stream stream) {
  const DeviceGuard guard(device);
  launch_quantize_nvfp4(params, stream);
}

void run_dequantize_nvfp4(const DequantizeNvfp4Params& params, int device, Stream stream) {
  const DeviceGuard guard(device);
  launch_dequantize_nvfp4(params, stream);
}

void run_convert_scales(const ConvertScalesParams& params, int device, Stream stream) {
  const DeviceGuard guard(device);
  launch_convert_scales(params, stream);
}

void run_prepack_nvfp4_weight(const PrepackWeightParams& params, int device, Stream stream) {
  const DeviceGuard guard(device);
  launch_prepack_nvfp4_weight(params, stream);
}

void run_unpack_nvfp4_weight(const UnpackWeightParams& params, int device, Stream stream) {
  const DeviceGuard guard(device);
  launch_unpack_nvfp4_weight(params, stream);
}

std::vector<int> read_ints(const int* data, std::size_t count, int device, Stream stream) {
  const DeviceGuard guard(device);
  std::vector<int> values(count);
  check(cudaMemcpyAsync(values.data(), data, count * sizeof(int), cudaMemcpyDeviceToHost, stream),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  return values;
}

}  // namespace tilewright::cuda
