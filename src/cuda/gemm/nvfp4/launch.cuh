// One shape of the kernel nvfp4, compiled and launched.
#pragma once

#include <array>

#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/gemm/nvfp4/launch.hpp"
#include "cuda/gemm/nvfp4/nvfp4.cuh"

namespace tilewright::cuda {
namespace nvfp4_gemm {

// The tokens (K, M) as steps of 64 columns, of which a copy brings so many. Where K is no multiple
// of 64, as one step of all columns, of which a copy brings 64.
inline TensorMapSpec token_map_spec(const GemmNvfp4Params& gemm, int tokens, int steps) {
  constexpr std::uint64_t kElement_bytes = 2;
  constexpr std::uint32_t kColumns = WeightTile::kColumns;
  const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const bool whole_steps = gemm.k % WeightTile::kColumns == 0;
  const std::uint64_t row_bytes = size(gemm.k) * kElement_bytes;  // stands in where there is one
  return {.size = {whole_steps ? kColumns : size(gemm.k), size(gemm.m),
                   whole_steps ? size(gemm.k) / kColumns : 1, size(gemm.l)},
          .stride_bytes = {gemm.m > 1 ? size(gemm.a_stride.row) * kElement_bytes : row_bytes,
                           kColumns * kElement_bytes,
                           gemm.l > 1 ? size(gemm.a_stride.batch) * kElement_bytes : row_bytes},
          .box = {kColumns, static_cast<std::uint32_t>(tokens),
                  whole_steps ? static_cast<std::uint32_t>(steps) : 1, 1},
          .swizzle = TmaSwizzle::b128};
}

// C as (N, M), which consumers write 64 rows of the weight and some tokens at a time.
inline TensorMapSpec output_map_spec(const GemmNvfp4Params& gemm) {
  constexpr std::uint64_t kElement_bytes = 2;
  const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t row_bytes = size(gemm.n) * kElement_bytes;  // stands in where there is one
  const std::uint64_t stride = gemm.m > 1 ? size(gemm.c_stride.row) * kElement_bytes : row_bytes;
  return {.size = {size(gemm.n), size(gemm.m), 1, size(gemm.l)},
          .stride_bytes = {stride, stride,
                           gemm.l > 1 ? size(gemm.c_stride.batch) * kElement_bytes : row_bytes},
          .box = {TileStore::kRows, TileStore::kPassTokens, 1, 1},
          .swizzle = TmaSwizzle::b128};
}

// Packed weight tiles as the copy engine sees them: lines of 256 bytes, kTileLines of them a tile;
// rows of tiles; products. One copy brings a chunk. What is beyond the weight comes as zeros.
inline TensorMapSpec weight_map_spec(const GemmNvfp4Params& gemm, const Nvfp4Choice& choice) {
  constexpr std::uint64_t kLine_bytes = 256;
  const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t lines = size(weight_column_tiles(gemm.k)) * kTileLines;
  const std::uint64_t row_bytes = lines * kLine_bytes;
  return {
      .size = {kLine_bytes / 2, lines, size(weight_row_tiles(gemm.n)), size(gemm.l)},
      .stride_bytes = {kLine_bytes, row_bytes, gemm.l > 1 ? size(gemm.b_stride.batch) : row_bytes},
      .box = {kLine_bytes / 2,
              static_cast<std::uint32_t>(choice.columns() / WeightTile::kColumns * kTileLines),
              static_cast<std::uint32_t>(choice.row_consumers), 1},
      .swizzle = TmaSwizzle::none};
}

template <int kIndex, typename Element>
void launch_shape(const GemmNvfp4Params& gemm, const Nvfp4Plan& plan, const PartialSums& partial,
                  bool a_is_being_made, Stream stream) {
  using S = Shape<kIndex, Element>;
  constexpr Nvfp4Choice C = S::C;
  const CUtensorMap map_a =
      encode_tensor_map(gemm.a, token_map_spec(gemm, S::kShareTokens, S::kShareSteps));
  const CUtensorMap map_b = encode_tensor_map(gemm.b, weight_map_spec(gemm, C));
  const EpilogueAccess access = epilogue_access(gemm);
  const CUtensorMap map_c = C.is_large() && access.in_tiles
                                ? encode_tensor_map(gemm.c, output_map_spec(gemm))
                                : CUtensorMap{};
  const KernelParams p{.schedule = plan.schedule,
                       .order = plan.order,
                       .gemm = gemm,
                       .partial = partial,
                       .access = access,
                       .k_is_whole_steps = gemm.k % WeightTile::kColumns == 0};
  constexpr auto kKernel = nvfp4<kIndex, Element>;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(plan.schedule.workers * C.cluster);
  config.blockDim = dim3(S::kThreads);
  config.dynamicSmemBytes = sizeof(SharedStorage<kIndex, Element>);
  config.stream = stream;
  std::array<cudaLaunchAttribute, 2> attributes{};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = C.cluster;
  attributes[0].val.clusterDim.y = 1;
  attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes.data();
  config.numAttrs = a_is_being_made ? 2 : 1;
  allow_smem<kKernel>(config.dynamicSmemBytes);
  check(cudaLaunchKernelEx(&config, kKernel, p, map_a, map_b, map_c), "kernel launch");
}

}  // namespace nvfp4_gemm

template <int kIndex>
void launch_nvfp4_choice(const GemmNvfp4Params& p, const Nvfp4Plan& plan,
                         const PartialSums& partial, bool a_is_being_made, Stream stream) {
  if (p.a_dtype == DType::fp16) {
    nvfp4_gemm::launch_shape<kIndex, cute::half_t>(p, plan, partial, a_is_being_made, stream);
  } else {
    nvfp4_gemm::launch_shape<kIndex, cute::bfloat16_t>(p, plan, partial, a_is_being_made, stream);
  }
}

}  // namespace tilewright::cuda
