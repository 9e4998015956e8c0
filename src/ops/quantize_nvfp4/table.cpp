// The table of quantize_nvfp4's kernels.
#include "cpu/cpu_nvfp4.hpp"
#include "ops/conversion_table.hpp"
#include "ops/quantize_nvfp4/params.hpp"

namespace tilewright {

namespace cuda {
// Queues the kernel on the current device. Its arguments have been checked.
void launch_quantize_nvfp4(const QuantizeNvfp4Params& params, Stream stream);
}  // namespace cuda

namespace {

// The workspace has the matrix's partial maxima, if the global scale is computed from them.
Plan plan_hopper(const QuantizeNvfp4Problem& problem, const DeviceInfo&) {
  return Plan(problem.computes_global_scale ? kMaxPartials * sizeof(std::uint32_t) : 0);
}

std::vector<Kernel<QuantizeNvfp4>> make_table() {
  auto table = conversion_table<QuantizeNvfp4, cpu::quantize_nvfp4, cuda::launch_quantize_nvfp4>(
      "FP32, FP16 and BF16 to NVFP4", {DType::fp32, DType::fp16, DType::bf16}, 16);
  table.back().plan = plan_hopper;
  return table;
}

}  // namespace

template <>
std::span<const Kernel<QuantizeNvfp4>> Table<QuantizeNvfp4>::rows() {
  static const auto& table = kept(make_table());
  return table;
}

template struct Table<QuantizeNvfp4>;
template Selection<QuantizeNvfp4> select_kernel(std::string_view, const QuantizeNvfp4Problem&,
                                                DeviceArgument);

}  // namespace tilewright
