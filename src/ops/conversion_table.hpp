// What the tables of tilewright/nvfp4_kernels.hpp's operations share: each has a CPU kernel and one
// for Hopper, and a problem's dtype alone decides whether they can run it.
#pragma once

#include <string_view>
#include <vector>

#include "ops/kernel_table.hpp"
#include "tilewright/nvfp4_kernels.hpp"

namespace tilewright {

inline std::vector<Limit> limits_of(const ConversionFacts&) { return {}; }

template <class Op>
std::optional<Reason> facts_reason(const Kernel<Op>& kernel, const typename Op::Problem& problem) {
  return dtype_reason(kernel.info, kernel.info.dtypes, Op::kArgument, problem.dtype);
}

template <class Op, void (*kCpu)(const typename Op::Params&, Stream),
          void (*kHopper)(const typename Op::Params&, Stream)>
std::vector<Kernel<Op>> conversion_table(std::string_view summary, const std::vector<DType>& dtypes,
                                         int alignment_bytes) {
  return finished<Op>({
      {.info = {.name = "cpu",
                .summary = summary,
                .device = DeviceKind::cpu,
                .dtypes = dtypes,
                .alignment_bytes = 1,
                .doc = "docs/nvfp4.md"},
       .launch = without_plan<Op, kCpu>()},
      {.info = {.name = "hopper",
                .summary = summary,
                .device = DeviceKind::cuda,
                .architectures = {90},
                .dtypes = dtypes,
                .alignment_bytes = alignment_bytes,
                .doc = "docs/nvfp4.md"},
       .launch = built_without_plan<Op, kHopper>()},
  });
}

}  // namespace tilewright
