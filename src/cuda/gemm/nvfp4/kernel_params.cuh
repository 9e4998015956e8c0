// What the kernel nvfp4 is given, and where a block's tiles lie.
#pragma once

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/gemm/nvfp4/epilogue.cuh"
#include "cuda/gemm/nvfp4/launch.hpp"
#include "cuda/gemm/nvfp4/schedule.hpp"
#include "gemm_params.hpp"

namespace tilewright::cuda {
namespace nvfp4_gemm {

struct KernelParams {
  GemmSchedule schedule;  // first what is wanted first
  TileOrder order;
  GemmNvfp4Params gemm;
  PartialSums partial;
  bool is_plain;
  bool copies_steps_together;  // of the tokens: token_map_spec()
};

// The first row and token of this block's share of a tile.
template <typename S>
__device__ TileOrigin origin_of(const TileOrder& order, int tile) {
  constexpr Nvfp4Choice C = S::C;
  const TileOrder::Position at = order.at(tile);
  const int rank = C.cluster == 1 ? 0 : static_cast<int>(cute::block_rank_in_cluster());
  return {.row = (at.row_tile * C.cluster + rank) * C.rows(),
          .token = at.token_tile * order.tokens,
          .batch = at.batch};
}

}  // namespace nvfp4_gemm
}  // namespace tilewright::cuda
