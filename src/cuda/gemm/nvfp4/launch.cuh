// One shape of the kernel nvfp4, compiled and launched.
#pragma once

#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/gemm/nvfp4/launch.hpp"
#include "cuda/gemm/nvfp4/nvfp4.cuh"

namespace tilewright::cuda {
namespace nvfp4_gemm {

template <int kIndex, typename Element>
void launch_shape(const GemmNvfp4Params& gemm, const Nvfp4Plan& plan, const PartialSums& partial,
                  Stream stream) {
  using S = Shape<kIndex, Element>;
  constexpr Nvfp4Choice C = S::C;
  const OuterStrides stride{.batch = gemm.a_stride.batch, .seq = gemm.a_stride.row, .head = 0};
  const CUtensorMap map_a = encode_tensor_map(
      gemm.a,
      tile_map_spec(gemm.l, gemm.m, 1, gemm.k, stride, C.tokens / C.cluster, TmaSwizzle::b128));
  const KernelParams p{.schedule = plan.schedule,
                       .order = plan.order,
                       .gemm = gemm,
                       .partial = partial,
                       .access = epilogue_access(gemm)};
  const int grid = plan.schedule.workers * C.cluster;
  constexpr std::size_t kSmem_bytes = sizeof(SharedStorage<kIndex, Element>);
  if constexpr (C.cluster == 1) {
    launch<nvfp4<kIndex, Element>>(grid, S::kThreads, kSmem_bytes, stream, p, map_a);
  } else {
    launch_clusters<nvfp4<kIndex, Element>>(C.cluster, grid, S::kThreads, kSmem_bytes, stream, p,
                                            map_a);
  }
}

}  // namespace nvfp4_gemm

template <int kIndex>
void launch_nvfp4_choice(const GemmNvfp4Params& p, const Nvfp4Plan& plan,
                         const PartialSums& partial, Stream stream) {
  if (p.a_dtype == DType::fp16) {
    nvfp4_gemm::launch_shape<kIndex, cute::half_t>(p, plan, partial, stream);
  } else {
    nvfp4_gemm::launch_shape<kIndex, cute::bfloat16_t>(p, plan, partial, stream);
  }
}

}  // namespace tilewright::cuda
