// The tables of the kernels that pack NVFP4 weights and unpack them.
#include "cpu/cpu_nvfp4.hpp"
#include "ops/conversion_table.hpp"
#include "ops/nvfp4_weight/kernels.hpp"

namespace tilewright {

template <>
std::span<const Kernel<PrepackNvfp4Weight>> Table<PrepackNvfp4Weight>::rows() {
  static const auto& table = kept(conversion_table<PrepackNvfp4Weight, cpu::prepack_nvfp4_weight,
                                                   cuda::launch_prepack_nvfp4_weight>(
      "NVFP4 weights into the order in which gemm_nvfp4 reads them", {DType::e2m1x2}, 16));
  return table;
}

template struct Table<PrepackNvfp4Weight>;
template Selection<PrepackNvfp4Weight> select_kernel(std::string_view, const ConversionProblem&,
                                                     DeviceArgument);

template <>
std::span<const Kernel<UnpackNvfp4Weight>> Table<UnpackNvfp4Weight>::rows() {
  static const auto& table =
      kept(conversion_table<UnpackNvfp4Weight, cpu::unpack_nvfp4_weight,
                            cuda::launch_unpack_nvfp4_weight>("the inverse", {DType::e2m1x2}, 16));
  return table;
}

template struct Table<UnpackNvfp4Weight>;
template Selection<UnpackNvfp4Weight> select_kernel(std::string_view, const ConversionProblem&,
                                                    DeviceArgument);

}  // namespace tilewright
