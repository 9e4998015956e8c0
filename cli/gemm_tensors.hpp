// The tensors of a gemm_nvfp4 case: in host memory, and their copies on a machine.
#pragma once

#include <optional>

#include "cli/check.hpp"
#include "cli/device_memory.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/gemm_bf16_kernels.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"

namespace tilewright::cli {

// An operand in NVFP4: matrices (l, rows, k) with scales, which are linear at first, and a global
// scale, (1) or (l, rows).
struct Nvfp4Operand {
  reference::HostTensor codes;
  reference::HostTensor scales;
  reference::HostTensor global_scale;
  GlobalScale kind = GlobalScale::encode;
};

// An operand of normally distributed values, quantised.
Nvfp4Operand random_operand(std::int64_t l, std::int64_t rows, std::int64_t k, std::uint64_t seed);

struct GemmCase {
  GemmNvfp4Problem problem;
  bool bias = false;
  bool residual = false;
  ScaleLayout scale_layout = ScaleLayout::linear;  // of both operands' scales
  bool prepack = false;                            // of the weight, also for the CPU's kernel
  std::uint64_t seed = 0;
};

double flops(const GemmCase& c);

// Whether a kernel gets the weight packed: because the case asks for it, or the kernel needs it.
bool takes_packed_weight(const KernelInfo& kernel, const GemmCase& c);

// Whether a kernel is one of the steps that lead to NVFP4 weights. A step gets codes times scales
// in BF16, which is exact, and no global scale.
bool is_bf16_step(const KernelInfo& kernel);

class GemmTensors {
 public:
  // All tensors but the weight are random and depend on the case's seed.
  GemmTensors(const GemmCase& c, Nvfp4Operand weight, Machine& machine);

  // The bytes that a GEMM with an NVFP4 weight must read and write.
  double bytes() const;

  Launch launch(const KernelInfo& kernel);

  // Runs a kernel once and compares: the relative Frobenius error may exceed that of rounding to
  // c's dtype by 1e-6; NaN and infinities must be in place, and something must be finite.
  CheckResult check(const KernelInfo& kernel);

 private:
  GemmNvfp4Options options(const KernelInfo& kernel) const;
  GemmNvfp4Tensors tensors_for(const KernelInfo& kernel);
  GemmBf16Tensors bf16_tensors();
  TensorView packed_weight();
  TensorView bf16_weight();

  GemmCase case_;
  bool is_w4a4_;
  Nvfp4Operand a_;
  Nvfp4Operand b_;
  reference::HostTensor values_, bias_, residual_, c_;
  Machine& machine_;
  DeviceMemory memory_;
  GemmNvfp4Tensors host_, device_;
  std::optional<TensorView> packed_, bf16_;  // made once a kernel needs it
};

}  // namespace tilewright::cli
