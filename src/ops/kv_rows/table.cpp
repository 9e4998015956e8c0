// The tables of the kernels that quantise KV rows and dequantise them.
#include "cpu/cpu_kv_rows.hpp"
#include "ops/kernel_table.hpp"
#include "ops/kv_rows/kernels.hpp"

namespace tilewright {
namespace {

template <class Op, void (*kCpu)(const typename Op::Params&, Stream),
          void (*kHopper)(const typename Op::Params&, Stream)>
std::vector<Kernel<Op>> make_table() {
  const std::vector<DType> dtypes = {DType::fp32, DType::bf16};
  return finished<Op>({
      {.info = {.name = "cpu",
                .summary = "rows on all cores",
                .device = DeviceKind::cpu,
                .dtypes = dtypes,
                .alignment_bytes = 1,
                .doc = "docs/kv-rows.md"},
       .launch = without_plan<Op, kCpu>()},
      {.info = {.name = "hopper",
                .summary = "a warp for each row, vectors of 16 bytes",
                .device = DeviceKind::cuda,
                .architectures = {90},
                .dtypes = dtypes,
                .alignment_bytes = 16,
                .doc = "docs/kv-rows.md"},
       .launch = built_without_plan<Op, kHopper>()},
  });
}

}  // namespace

std::vector<Limit> limits_of(const KvRowsFacts&) { return {}; }

template <class Op>
std::optional<Reason> facts_reason(const Kernel<Op>& kernel, const KvRowsProblem& problem) {
  if (auto reason = size_range_reason({{"rows", problem.rows}})) {
    return reason;
  }
  return dtype_reason(kernel.info, kernel.info.dtypes, Op::kArgument, problem.dtype);
}

template <>
std::span<const Kernel<QuantizeKvRows>> Table<QuantizeKvRows>::rows() {
  static const auto& table =
      kept(make_table<QuantizeKvRows, cpu::quantize_kv_rows, cuda::launch_quantize_kv_rows>());
  return table;
}

template struct Table<QuantizeKvRows>;
template Selection<QuantizeKvRows> select_kernel(std::string_view, const KvRowsProblem&,
                                                 DeviceArgument);

template <>
std::span<const Kernel<DequantizeKvRows>> Table<DequantizeKvRows>::rows() {
  static const auto& table = kept(
      make_table<DequantizeKvRows, cpu::dequantize_kv_rows, cuda::launch_dequantize_kv_rows>());
  return table;
}

template struct Table<DequantizeKvRows>;
template Selection<DequantizeKvRows> select_kernel(std::string_view, const KvRowsProblem&,
                                                   DeviceArgument);

}  // namespace tilewright
