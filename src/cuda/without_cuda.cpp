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

void run_attention(std::string_view, const AttentionParams&, int device, Stream) {
  device_info(device);
}

void run_gemm_bf16(std::string_view, const GemmBf16Params&, int device, Stream) {
  device_info(device);
}

void run_gemm_nvfp4(std::string_view, const GemmNvfp4Params&, int device, Stream) {
  device_info(device);
}

void run_quantize_nvfp4(const QuantizeNvfp4Params&, int device, Stream) { device_info(device); }

void run_dequantize_nvfp4(const DequantizeNvfp4Params&, int device, Stream) { device_info(device); }

void run_convert_scales(const ConvertScalesParams&, int device, Stream) { device_info(device); }

void run_prepack_nvfp4_weight(const PrepackWeightParams&, int device, Stream) {
  device_info(device);
}

void run_unpack_nvfp4_weight(const UnpackWeightParams&, int device, Stream) { device_info(device); }

std::vector<int> read_ints(const int*, std::size_t, int device, Stream) {
  device_info(device);
  return {};
}

}  // namespace tilewright::cuda
