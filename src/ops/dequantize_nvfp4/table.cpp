// The table of dequantize_nvfp4's kernels.
#include "cpu/cpu_nvfp4.hpp"
#include "ops/conversion_table.hpp"
#include "ops/dequantize_nvfp4/kernels.hpp"

namespace tilewright {

template <>
std::span<const Kernel<DequantizeNvfp4>> Table<DequantizeNvfp4>::rows() {
  static const auto& table =
      kept(conversion_table<DequantizeNvfp4, cpu::dequantize_nvfp4, cuda::launch_dequantize_nvfp4>(
          "NVFP4 and MXFP4 to FP32, FP16 and BF16", {DType::fp32, DType::fp16, DType::bf16}, 16));
  return table;
}

template struct Table<DequantizeNvfp4>;
template Selection<DequantizeNvfp4> select_kernel(std::string_view, const ConversionProblem&,
                                                  DeviceArgument);

}  // namespace tilewright
