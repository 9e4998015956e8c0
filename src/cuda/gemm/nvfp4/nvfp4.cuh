// nvfp4: the GEMM of 16-bit activations and NVFP4 weights, C = A B^T.
//
// New here, over nvfp4_simple: the product is computed transposed, C^T = B A^T, so that the weight
// is WGMMA's A operand, which may come from registers: a thread dequantises just what it holds of
// it, out of a layout made for that, and nothing goes back to SMEM. The next fragment is
// dequantised while the tensor cores work on the one before. Blocks are persistent and share out
// K where there are too few tiles, or some left over.
//
// Source    the NVFP4 article by NVIDIA, part 2; Marlin (Frantar et al., 2024) for weights kept in
//           the order of the fragments; Stream-K (Osama et al., 2023); tilewright/gemm.hpp.
// Tiles     choices.hpp: 64 to 256 rows of the weight, 8 to 256 tokens, 128 columns a stage.
// SMEM      sA stages x tokens x 128, 16-bit; sB stages x rows / 64 x 4608 bytes; 20 KB or less to
//           turn sums in.
// Registers tokens / 2 accumulators and 16 of a fragment, twice each at most.
//
//   warp 0, a thread  load: tokens (TMA, swizzled by 128 bytes) and packed weight tiles (bulk)
//   consumers         wait | dequantise -> wgmma, dequantise -> wgmma, ... | release
//                     part of a tile -> partial sums, or those of others -> own | C
//
// In a cluster of two blocks these compute different rows for the same tokens and load half of
// them each, for both.
//
// Layouts   nvfp4_weight_layout.hpp; tokens K-major, 64 columns a copy.
// Worklog   docs/worklog/nvfp4-gemm.md
#pragma once

#include <cute/arch/cluster_sm90.hpp>

#include "cuda/attention/warp_roles.cuh"
#include "cuda/common/tma.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/gemm/nvfp4/choices.hpp"
#include "cuda/gemm/nvfp4/epilogue.cuh"
#include "cuda/gemm/nvfp4/fragment.cuh"
#include "cuda/gemm/nvfp4/partial_sums.cuh"
#include "cuda/gemm/nvfp4/schedule.hpp"

namespace tilewright::cuda {
namespace nvfp4_gemm {

using namespace cute;

inline constexpr int kColumns = 128;  // of a stage
inline constexpr int kSteps = kColumns / WeightTile::kColumns;

// The compile-time side of choice kIndex.
template <int kIndex, typename Element>
struct Shape {
  static constexpr Nvfp4Choice C = kNvfp4Choices[kIndex];
  static constexpr int kRowTiles = C.consumers * C.blocks;
  static_assert(C.blocks <= 2, "the epilogue moves the second block to the first's registers");
  static constexpr int kConsumerThreads = C.consumers * 128;
  static constexpr int kThreads = kConsumerThreads + 128;
  static constexpr int kAccumulators = C.tokens / 2;  // of a thread and block
  // 96 or 168 a thread at first; then the loading warpgroup gives up what the others take. With one
  // consumer there are enough for all.
  static constexpr bool kMovesRegisters = C.consumers > 1;
  static constexpr int kProducerRegisters = C.consumers == 4 ? 56 : 40;
  static constexpr int kConsumerRegisters = C.consumers == 4 ? 104 : 232;

  using TiledMma = decltype(make_tiled_mma(
      GMMA::rs_op_selector<Element, Element, float, cute::Shape<_64, Int<C.tokens>, _64>>()));
  using LayoutA =
      decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{},
                             cute::Shape<Int<C.tokens>, _64, Int<kSteps>, Int<C.stages>>{}));
  using Position = RingPosition<C.stages>;
  using Epilogue = WarpEpilogue<C.tokens>;
  using Sums = WarpSums<kConsumerThreads, kAccumulators * C.blocks>;
};

template <int kIndex, typename Element>
struct SharedStorage {
  using S = Shape<kIndex, Element>;
  alignas(1024) Element sA[S::C.stages][kSteps][S::C.tokens * 64];
  alignas(128) char sB[S::C.stages][S::kRowTiles][kSteps * WeightTile::k_bytes];
  alignas(16) typename S::Epilogue::Stage turn[S::C.consumers * 4];
  TmaRing<S::C.stages, S::C.cluster> ring;
};

struct KernelParams {
  GemmSchedule schedule;  // first what is wanted first
  TileOrder order;
  GemmNvfp4Params gemm;
  PartialSums partial;
  EpilogueAccess access;
};

// The first row and token of this block's share of a tile.
template <int kIndex, typename Element>
__device__ TileOrigin origin_of(const TileOrder& order, int tile) {
  constexpr Nvfp4Choice C = Shape<kIndex, Element>::C;
  const TileOrder::Position at = order.at(tile);
  const int rank = C.cluster == 1 ? 0 : static_cast<int>(block_rank_in_cluster());
  return {.row = (at.row_tile * C.cluster + rank) * C.rows(),
          .token = at.token_tile * C.tokens,
          .batch = at.batch};
}

// One thread asks for everything that the consumers will read.
template <int kIndex, typename Element>
__device__ void load(SharedStorage<kIndex, Element>& shared, const KernelParams& p,
                     const CUtensorMap& map_a, int worker) {
  using S = Shape<kIndex, Element>;
  constexpr Nvfp4Choice C = S::C;
  constexpr int kShare = C.tokens / C.cluster;
  const GemmNvfp4Params& gemm = p.gemm;
  const int share = C.cluster == 1 ? 0 : static_cast<int>(block_rank_in_cluster()) * kShare;
  const std::int64_t tile_row_bytes = weight_column_tiles(gemm.k) * WeightTile::k_bytes;
  const int last_row_tile = static_cast<int>(weight_row_tiles(gemm.n)) - 1;

  typename S::Position at;
  PartWalk walk(p.schedule, worker);
  for (TilePart part; walk.next(p.schedule, part);) {
    const TileOrigin origin = origin_of<kIndex, Element>(p.order, part.tile);
    const std::uint8_t* const weight = gemm.b + origin.batch * gemm.b_stride.batch;
    for (int chunk = part.begin; chunk < part.end; ++chunk) {
      TmaBarrier& full = shared.ring.acquire(at, sizeof(shared.sA[0]) + sizeof(shared.sB[0]));
      auto* const barrier = reinterpret_cast<std::uint64_t*>(&full);
#pragma unroll 1                                // few registers
      for (int i = 0; i < S::kRowTiles; ++i) {  // rows from N on: any will do
        const int row_tile = min(origin.row / WeightTile::kRows + i, last_row_tile);
        SM90_BULK_COPY_G2S::copy(
            weight + row_tile * tile_row_bytes + chunk * (kSteps * WeightTile::k_bytes), barrier,
            shared.sB[at.stage][i], sizeof(shared.sB[0][0]));
      }
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        constexpr auto kNoHint = static_cast<std::uint64_t>(TMA::CacheHintSm90::EVICT_NORMAL);
        Element* const target = shared.sA[at.stage][step] + share * 64;
        const int column = chunk * kColumns + step * 64;
        if constexpr (C.cluster == 1) {
          SM90_TMA_LOAD_4D::copy(&map_a, barrier, kNoHint, target, column, origin.token, 0,
                                 origin.batch);
        } else {
          SM90_TMA_LOAD_MULTICAST_4D::copy(&map_a, barrier, (1u << C.cluster) - 1, kNoHint, target,
                                           column, origin.token + share, 0, origin.batch);
        }
      }
      at.advance();
    }
  }
}

// A warpgroup: the sums of its rows, over the chunks of each part.
template <int kIndex, typename Element>
__device__ void compute(SharedStorage<kIndex, Element>& shared, const KernelParams& p, int worker,
                        int consumer) {
  using S = Shape<kIndex, Element>;
  constexpr Nvfp4Choice C = S::C;
  const int thread = static_cast<int>(threadIdx.x) % 128;
  typename S::TiledMma mma;
  const auto slice = mma.get_slice(0);  // a descriptor is the same for every thread
  const auto tA = slice.make_fragment_B(
      slice.partition_B(make_tensor(make_smem_ptr(&shared.sA[0][0][0]), typename S::LayoutA{})));
  auto acc = make_tensor<float>(cute::Shape<Int<S::kAccumulators>, Int<C.blocks>>{});
  decltype(weight_fragment<Element>()) fragments[2];

  typename S::Position at;
  PartWalk walk(p.schedule, worker);
  for (TilePart part; walk.next(p.schedule, part);) {
    const TileOrigin origin = origin_of<kIndex, Element>(p.order, part.tile);
    const int chunks = __shfl_sync(0xffffffffu, part.end - part.begin, 0);  // uniform
    clear(acc);
    typename S::Position previous = at;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      shared.ring.wait(at);
#pragma unroll
      for (int i = 0; i < kSteps * C.blocks; ++i) {
        const int step = i / C.blocks;
        const int block = i % C.blocks;
        auto& fragment = fragments[i % 2];
        dequantize_tile<Element>(
            shared.sB[at.stage][consumer * C.blocks + block] + step * WeightTile::k_bytes, thread,
            fragment);
        auto sums =
            make_tensor(acc(_, block).data(),
                        partition_fragment_C(mma, cute::Shape<_64, Int<C.tokens>>{}).layout());
        wgmma_issue<true>(mma, fragment, tA(_, _, _, step, at.stage), sums);
        wgmma_wait<1>(sums);
        if (i == 0 && chunk > 0) {
          shared.ring.release(previous);
        }
      }
      previous = at;
      at.advance();
    }
    wgmma_wait<0>(acc);
    shared.ring.release(previous);

    const auto sums = make_tensor(acc.data(), make_layout(size(acc)));
    const typename S::Sums exchange(p.partial, consumer * 128 + thread);
    const int rank = C.cluster == 1 ? 0 : static_cast<int>(block_rank_in_cluster());
    if (part.end < p.schedule.chunks) {
      exchange.hand_over(worker * C.cluster + rank, sums);
      continue;
    }
    if (part.begin > 0) {
      const int first = first_worker(p.schedule, part.tile, worker);
      exchange.wait(first * C.cluster + rank, worker * C.cluster, C.cluster);
      constexpr int kAhead = S::kAccumulators * C.blocks <= 16 ? 4 : 1;  // parts on their way
#pragma unroll kAhead
      for (int other = first; other < worker; ++other) {
        exchange.add(other * C.cluster + rank, acc);
      }
    }
    const int warp = consumer * 4 + thread / 32;
#pragma unroll 1
    for (int block = 0; block < C.blocks; ++block) {
      S::Epilogue::run(p.gemm, p.access, shared.turn[warp], acc(_, 0),
                       {.row = origin.row + (consumer * C.blocks + block) * WeightTile::kRows +
                               thread / 32 * S::Epilogue::kRows,
                        .token = origin.token,
                        .batch = origin.batch});
      copy(acc(_, C.blocks - 1), acc(_, 0));
    }
  }
}

template <int kIndex, typename Element>
__global__ void __launch_bounds__(Shape<kIndex, Element>::kThreads, 1)
    nvfp4(const __grid_constant__ KernelParams p, const __grid_constant__ CUtensorMap map_a) {
  using S = Shape<kIndex, Element>;
  constexpr Nvfp4Choice C = S::C;
  extern __shared__ __align__(1024) char raw[];
  auto& shared = *reinterpret_cast<SharedStorage<kIndex, Element>*>(raw);
  if (threadIdx.x == 32) {
    prefetch_tma_descriptor(&map_a);
  }
  if (threadIdx.x == 0) {
    shared.ring.init(C.consumers * 4);
    cutlass::arch::fence_barrier_init();
  }
  if constexpr (C.cluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }

  const int worker = static_cast<int>(blockIdx.x) / C.cluster;
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (warpgroup == 0) {
    if constexpr (S::kMovesRegisters) {
      cutlass::arch::warpgroup_reg_dealloc<S::kProducerRegisters>();
    }
    if (threadIdx.x == 0) {
      load(shared, p, map_a, worker);
    }
    __syncwarp();
  } else {
    if constexpr (S::kMovesRegisters) {
      cutlass::arch::warpgroup_reg_alloc<S::kConsumerRegisters>();
    }
    compute(shared, p, worker, warpgroup - 1);
  }
  if constexpr (C.cluster > 1) {
    cluster_sync();  // no block goes while others load or arrive in it
  }
}

}  // namespace nvfp4_gemm
}  // namespace tilewright::cuda
