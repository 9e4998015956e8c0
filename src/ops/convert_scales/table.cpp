// The table of the kernels of swizzle_scales and unswizzle_scales.
#include "cpu/cpu_nvfp4.hpp"
#include "ops/conversion_table.hpp"
#include "ops/convert_scales/params.hpp"

namespace tilewright {

namespace cuda {
// Queues the kernel on the current device. Its arguments have been checked.
void launch_convert_scales(const ConvertScalesParams& params, Stream stream);
}  // namespace cuda

template <>
std::span<const Kernel<ConvertScales>> Table<ConvertScales>::rows() {
  static const auto& table =
      kept(conversion_table<ConvertScales, cpu::convert_scales, cuda::launch_convert_scales>(
          "block scales from one layout to the other", {DType::e4m3, DType::e8m0}, 1));
  return table;
}

template struct Table<ConvertScales>;
template Selection<ConvertScales> select_kernel(std::string_view, const ConversionProblem&,
                                                DeviceArgument);

}  // namespace tilewright
