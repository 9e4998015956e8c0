// The kernels of all operations together.
#include "tilewright/registry.hpp"

#include "tilewright/attention_kernels.hpp"
#include "tilewright/gemm_kernels.hpp"
#include "tilewright/nvfp4_kernels.hpp"

namespace tilewright {
namespace {

template <class... Ops>
std::vector<const KernelInfo*> all_kernels() {
  std::vector<const KernelInfo*> all;
  const auto add = [&](const auto& rows) {
    for (const auto& kernel : rows) {
      all.push_back(&kernel.info);
    }
  };
  (add(kernels<Ops>()), ...);
  return all;
}

}  // namespace

std::span<const KernelInfo* const> kernels() {
  static const auto all =
      all_kernels<Attention, GemmBf16, GemmNvfp4, QuantizeNvfp4, DequantizeNvfp4, ConvertScales,
                  PrepackNvfp4Weight, UnpackNvfp4Weight>();
  return all;
}

}  // namespace tilewright
