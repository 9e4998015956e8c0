// Compiles and launches one config of the kernel nvfp4.
#pragma once

#include "cuda/common/launch.cuh"
#include "cuda/common/tensor_map.hpp"
#include "cuda/gemm/nvfp4/launch.hpp"
#include "cuda/gemm/nvfp4/nvfp4.cuh"

namespace tilewright::cuda {
namespace nvfp4_gemm {

// The map of the tokens. Steps of 64 columns take the place of heads, and a TMA load brings `steps`
// of them; with steps = 0 there is one step of all columns, and a load brings 64 of these.
inline TensorMapSpec token_map_spec(const GemmNvfp4Params& gemm, int tokens, int steps) {
  constexpr int kColumns = WeightTile::kColumns;
  const OuterStrides stride{
      .batch = gemm.a_stride.batch, .seq = gemm.a_stride.row, .head = kColumns};
  if (steps == 0) {
    return tile_map_spec(gemm.l, gemm.m, 1, gemm.k, stride, tokens, TmaSwizzle::b128);
  }
  TensorMapSpec spec =
      tile_map_spec(gemm.l, gemm.m, gemm.k / kColumns, kColumns, stride, tokens, TmaSwizzle::b128);
  spec.box[2] = static_cast<std::uint32_t>(steps);
  return spec;
}

// The map of C. A TMA store writes 64 rows of the weight and all tokens of a tile.
inline TensorMapSpec output_map_spec(const GemmNvfp4Params& gemm, int tokens) {
  const OuterStrides stride{.batch = gemm.c_stride.batch, .seq = gemm.c_stride.row, .head = 0};
  return tile_map_spec(gemm.l, gemm.m, 1, gemm.n, stride, tokens, TmaSwizzle::b128);
}

// The map of packed weight tiles: lines of 256 bytes, kTileLines for each tile; rows of tiles;
// GEMMs of the batch. A TMA load brings a chunk; what lies beyond the weight becomes zeros.
inline TensorMapSpec weight_map_spec(const GemmNvfp4Params& gemm, const Nvfp4Config& config) {
  constexpr std::uint64_t kLine_bytes = 256;
  const auto size = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
  const std::uint64_t lines = size(weight_column_tiles(gemm.k)) * kTileLines;
  const std::uint64_t row_bytes = lines * kLine_bytes;
  return {
      .size = {kLine_bytes / 2, lines, size(weight_row_tiles(gemm.n)), size(gemm.l)},
      .stride_bytes = {kLine_bytes, row_bytes, gemm.l > 1 ? size(gemm.b_stride.batch) : row_bytes},
      .box = {kLine_bytes / 2,
              static_cast<std::uint32_t>(config.columns() / WeightTile::kColumns * kTileLines),
              static_cast<std::uint32_t>(config.row_consumers), 1},
      .swizzle = TmaSwizzle::none};
}

template <typename I>
void launch_instance(const GemmNvfp4Params& gemm, const Nvfp4Plan& plan, const PartialSums& partial,
                     bool b_is_ready, Stream stream) {
  constexpr Nvfp4Config C = I::C;
  const int tokens = I::kDividesSteps ? plan.order.tokens : I::kShareTokens;  // of a TMA load
  // With fewer tokens than SMEM has room for, later steps would land in wrong places.
  const bool copies_steps_together =
      gemm.k % WeightTile::kColumns == 0 && tokens == I::kShareTokens;
  const CUtensorMap map_a = encode_tensor_map(
      gemm.a, token_map_spec(gemm, tokens, copies_steps_together ? I::kShareSteps : 0));
  const CUtensorMap map_b = encode_tensor_map(gemm.b, weight_map_spec(gemm, C));
  const bool plain = is_plain(gemm);
  const CUtensorMap map_c =
      C.stores_tiles() && plain
          ? encode_tensor_map(gemm.c, output_map_spec(gemm, plan.order.tokens))
          : CUtensorMap{};
  const KernelParams p{.schedule = plan.schedule(),
                       .order = plan.order,
                       .gemm = gemm,
                       .partial = partial,
                       .b_is_ready = b_is_ready,
                       .is_plain = plain,
                       .copies_steps_together = copies_steps_together};
  launch_with<nvfp4<I>>({.cluster = C.cluster, .may_start_early = true}, plan.workers * C.cluster,
                        I::kThreads, sizeof(SharedStorage<I>), stream, p, map_a, map_b, map_c);
}

template <int kIndex, typename Element>
void launch_element(const GemmNvfp4Params& p, const Nvfp4Plan& plan, const PartialSums& partial,
                    bool b_is_ready, Stream stream) {
  if constexpr (kNvfp4Configs[kIndex].takes_fp32()) {
    if (p.c_dtype == DType::fp32) {
      return launch_instance<Instance<kIndex, Element, true>>(p, plan, partial, b_is_ready, stream);
    }
  }
  launch_instance<Instance<kIndex, Element, false>>(p, plan, partial, b_is_ready, stream);
}

}  // namespace nvfp4_gemm

template <int kIndex>
void launch_nvfp4_config(const GemmNvfp4Params& p, const Nvfp4Plan& plan,
                         const PartialSums& partial, bool b_is_ready, Stream stream) {
  if (p.a_dtype == DType::fp16) {
    nvfp4_gemm::launch_element<kIndex, cute::half_t>(p, plan, partial, b_is_ready, stream);
  } else {
    nvfp4_gemm::launch_element<kIndex, cute::bfloat16_t>(p, plan, partial, b_is_ready, stream);
  }
}

}  // namespace tilewright::cuda
