// The seam between host code and the CUDA side. A build without CUDA links without_cuda.cpp, which
// answers that there are no devices and no kernels.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "attention_params.hpp"
#include "gemm_params.hpp"
#include "nvfp4_params.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::cuda {

// What a build without CUDA says of itself; empty where the library was compiled with nvcc.
std::string_view cpu_only_notice();

int device_count();

// Throws no_device where there is no such device.
DeviceInfo device_info(int index);

// Queues the attention kernel of that name, of a CUDA row of kernels() or of flash_rows(), on a
// device's stream.
void run_attention(std::string_view kernel, const AttentionParams& params, int device,
                   Stream stream);

// Queue the matrix product of that name, of a CUDA row of kernels() or of nvfp4_rows(), on a
// device's stream.
void run_gemm_bf16(std::string_view kernel, const GemmBf16Params& params, int device,
                   Stream stream);
void run_gemm_nvfp4(std::string_view kernel, const GemmNvfp4Params& params, int device,
                    Stream stream);

// Queue the kernels of tilewright/nvfp4.hpp and nvfp4_weight.hpp on a device's stream.
void run_quantize_nvfp4(const QuantizeNvfp4Params& params, int device, Stream stream);
void run_dequantize_nvfp4(const DequantizeNvfp4Params& params, int device, Stream stream);
void run_convert_scales(const ConvertScalesParams& params, int device, Stream stream);
void run_prepack_nvfp4_weight(const PrepackWeightParams& params, int device, Stream stream);
void run_unpack_nvfp4_weight(const UnpackWeightParams& params, int device, Stream stream);

// Copies integers from a device, behind the stream's work, and waits for them.
std::vector<int> read_ints(const int* data, std::size_t count, int device, Stream stream);

}  // namespace tilewright::cuda
