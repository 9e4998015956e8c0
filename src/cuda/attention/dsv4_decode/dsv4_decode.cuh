// DeepSeek-V4's attention, one block an item (kernel dsv4_decode).
//
// K and V are one tensor: a key tile in SMEM is K for Q K^T and V for P V. Rows of the caches, of
// four formats, are widened to BF16 on their way there, by the producer's own loads: each row goes
// through registers once. The two consumers take turns with the scores of key tiles, and each has
// half of O's 512 columns, to which it adds P V of every tile, its own and the other's.
//
// Source    DeepSeek-V4 technical report, section 2.3; FlashAttention-3, ping-pong scheduling; the
//           division of labour between two consumers is that of FlashMLA's description.
// Tiles     64 rows ((token, head) pairs), 64 keys, 512 dims; 384 threads; one block an SM.
// SMEM      Q 64 KB, two key tiles of 64 KB, P of two tiles, 8 KB each: 208 KB (+ 7 KB).
// Registers 192 for a thread of a consumer, of which 128 hold O and 32 S; 120 for one of the
// producer, of which 72 hold rows on their way.
//
//   producer     tile 0 L R | tile 1 L R | wait: empty | tile 2 L R | ...
//   consumer 0   S0 = Q K0^T | P0 |      O_L += P0 V0 | wait P1: O_L += P1 V1 | S2 = Q K2^T | ...
//   consumer 1   S1 = Q K1^T | wait P0: O_R += P0 V0 | P1 | O_R += P1 V1      | S3 = Q K3^T | ...
//
// L and R are the left and right halves of a tile's dims: consumer 0 releases the one, consumer 1
// the other. P is handed over with the references that it was taken against (softmax.cuh), tile by
// tile, so that both consumers scale O alike.
//
// Limits    BF16 q. A NaN code of E4M3 under a scale that is not NaN counts as 480.
// Worklog   docs/worklog/dsv4-decode.md
#pragma once

#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/attention/dsv4_decode/produce.cuh"
#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda::dsv4 {

inline constexpr int kThreads = block_threads(kConsumers);
// Of a stretch, so many tiles from the present one on have been brought to L2, or are on their way.
// In all blocks they are 28 MB, which L2 holds.
inline constexpr int kTilesAhead = 6;
static_assert(kStretchTiles % kConsumers == 0);

struct SharedStorage {
  alignas(1024) Element sQ[kRows * kDims];
  alignas(1024) Element sK[kKeyStages][kTileKeys * kDims];
  alignas(1024) Element sP[kConsumers][kRows * kTileKeys];
  TileRows rows[kConsumers];  // of P
  Places places;
  Unit unit;
  int ticket;
  TmaBarrier q_full;
  KeyRing keys;
  // P of consumer c: both consumers wait until it is there, and c until the other has read it.
  cutlass::arch::ClusterBarrier p_full[kConsumers];
  cutlass::arch::ClusterBarrier p_empty[kConsumers];
};
static_assert(sizeof(SharedStorage) == 215 * 1024);

__device__ inline void init(SharedStorage& shared) {
  shared.q_full.init(1);
  shared.keys.init();
  for (int consumer = 0; consumer < kConsumers; ++consumer) {
    shared.p_full[consumer].init(kConsumerWarps);
    shared.p_empty[consumer].init(kConsumerWarps);
  }
  cutlass::arch::fence_barrier_init();
}

// Goes on to the block's next unit that has rows. All threads of the block call it, and return when
// the unit is known, or false when there is none left. The producer's first warp finds it.
template <bool kIsProducer>
__device__ bool next_unit(SharedStorage& shared, const Params& p, const Launch& launch) {
  __syncthreads();  // nobody reads the unit before any more
  if (kIsProducer && threadIdx.x < 32) {
    find_next_unit(shared.unit, p, launch, gridDim.x);
  }
  __syncthreads();
  return uniform(shared.unit.index) < launch.units;
}

// Goes on to the stretch of the unit's tiles from `first` on. All threads of the block call it, and
// return when the places of its rows are known. The producer finds them.
template <bool kIsProducer>
__device__ Stretch next_stretch(SharedStorage& shared, const Params& p, const Launch& launch,
                                int first) {
  const Stretch stretch(shared.unit, first);
  if (first > shared.unit.first_tile) {
    __syncthreads();  // nobody needs the places before any more
  }
  if (kIsProducer) {
    find_places<kWarpgroupThreads>(shared.places, p, launch, shared.unit, stretch);
  }
  __syncthreads();
  return stretch;
}

// Consumer kConsumer, with its half of O's columns.
template <int kFormats, int kConsumer>
class Consumer {
 public:
  using Mma = MmaPv<kHalfDims>;

  __device__ Consumer(SharedStorage& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  // Computes the unit.
  __device__ __forceinline__ void run() {
    const Unit& unit = shared_.unit;
    const int tiles = uniform(unit.end_tile - unit.first_tile);
    auto tOrO = cute::partition_fragment_C(Mma{}, cute::Shape<cute::_64, cute::Int<kHalfDims>>{});
    cute::clear(tOrO);
    float reference[kThreadRows] = {kMinusInf, kMinusInf};
    int first = 0;
    do {
      run_stretch(unit, first, min(tiles, first + kStretchTiles), tOrO, reference);
      first += kStretchTiles;
    } while (first < tiles);
    shared_.q_full.wait(unit.units & 1);  // where there was no key, too
    finish(unit, tiles, tOrO);
  }

 private:
  // Tiles [first, end) of the unit.
  template <typename TensorO>
  __device__ __forceinline__ void run_stretch(const Unit& unit, int first, int end, TensorO& tOrO,
                                              float (&reference)[kThreadRows]) {
    next_stretch<false>(shared_, p_, launch_, unit.first_tile + first);
    int ahead = first + kConsumer;
    for (int tile = first; tile < end; tile += kConsumers) {
      for (; ahead < min(end, tile + kTilesAhead); ahead += kConsumers) {
        prefetch_rows<kFormats>(p_, launch_, unit, unit.first_tile + ahead, places_of(ahead));
      }
      run_pair(unit, tile, end, tOrO, reference);
    }
  }

  // Tiles `first` and the one behind it, if there is one before `end`.
  template <typename TensorO>
  __device__ __forceinline__ void run_pair(const Unit& unit, int first, int end, TensorO& tOrO,
                                           float (&reference)[kThreadRows]) {
    const int own = first + kConsumer;
    if (own < end) {
      auto tSrS = cute::partition_fragment_C(MmaQk{}, cute::Shape<cute::_64, Keys>{});
      issue_scores(own, tSrS);
      if constexpr (kConsumer == 0) {
        wgmma_wait<0>(tSrS);
        weigh_own(unit, own, tSrS);
      } else {
        add_values(first, tOrO, reference);
        wgmma_wait<1>(tSrS);  // P V of the first tile may still run
        weigh_own(unit, own, tSrS);
        end_values(first, tOrO);
      }
      add_values(own, tOrO, reference);
      end_values(own, tOrO);
    }
    const int others = first + 1 - kConsumer;
    if (kConsumer == 0 ? others < end : own >= end) {
      add_values(others, tOrO, reference);
      end_values(others, tOrO);
    }
  }

  // Where a tile is in the ring; tiles are counted from the unit's first.
  __device__ StageAt at(int tile) const {
    return StageAt(shared_.unit, shared_.unit.first_tile + tile);
  }
  __device__ const int (&places_of(int tile) const)[kTileKeys] {
    return shared_.places.of[tile % kStretchTiles];
  }
  // The place of a tile's P: that of the consumer that computes it.
  __device__ static int slot_of(int tile) { return tile % kConsumers; }

  __device__ std::uint32_t p_phase(int tile) const {
    return shared_.unit.places[slot_of(tile)] + tile / kConsumers & 1;
  }

  template <typename TensorS>
  __device__ __forceinline__ void issue_scores(int tile, TensorS& tSrS) {
    const auto [stage, phase] = at(tile);
    constexpr int kSteps = kDims / 16;
    const auto tSrQ = operand_q(shared_.sQ);
    const auto tSrK = operand_k(shared_.sK[stage]);
    shared_.q_full.wait(shared_.unit.units & 1);
    shared_.keys.full[stage][0].wait(phase);
    issue_scores_of<0, kSteps / 2>(tSrQ, tSrK, tSrS);
    shared_.keys.full[stage][1].wait(phase);
    issue_scores_of<kSteps / 2, kSteps>(tSrQ, tSrK, tSrS);
  }

  // The statistics of row i of this thread over the unit's tiles before `tile`, with which the
  // other consumer has left them.
  __device__ RowSoFar so_far(int tile, int i) const {
    return tile > 0 ? statistics_of(shared_.rows[slot_of(tile - 1)], row_of_thread(i)) : RowSoFar{};
  }

  // S of an own tile becomes P, for both consumers.
  template <typename TensorS>
  __device__ __forceinline__ void weigh_own(const Unit& unit, int tile, TensorS& tSrS) {
    auto rS = by_rows<MmaQk>(tSrS);
    mask(rS, unit, launch_.shape, tile_at(unit, unit.first_tile + tile),
         rows_that_exist(places_of(tile)));

    const float scale_log2 = scale_to_log2(p_.scale);
    float max[kThreadRows];
    row_maxima<MmaQk>(rS, scale_log2, max);
    float reference[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      reference[i] = next_reference(so_far(tile, i).reference, max[i]);
    }

    const int slot = slot_of(tile);
    shared_.p_empty[slot].wait(p_phase(tile) ^ 1);
    const TileSums sums = weigh<MmaQk>(rS, scale_log2, reference, shared_.sP[slot]);
    if (threadIdx.x % 4 == 0) {
#pragma unroll
      for (int i = 0; i < kThreadRows; ++i) {
        set_statistics(
            shared_.rows[slot], row_of_thread(i),
            with_tile(so_far(tile, i), reference[i], max[i], sums.exact[i], sums.rounded[i]));
      }
    }
    fill(shared_.p_full[slot]);
  }

  // Takes up a tile's P and issues O += P V.
  template <typename TensorO>
  __device__ __forceinline__ void add_values(int tile, TensorO& tOrO,
                                             float (&reference)[kThreadRows]) {
    const int slot = slot_of(tile);
    shared_.p_full[slot].wait(p_phase(tile));
    float its[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      its[i] = shared_.rows[slot].reference[row_of_thread(i)];
    }
    auto rO = by_rows<Mma>(tOrO);
    move_references(rO, reference, its);
    reference[0] = its[0];
    reference[1] = its[1];
    wgmma_issue<true>(Mma{}, operand_p<kHalfDims>(shared_.sP[slot]),
                      operand_v<kHalfDims>(shared_.sK[at(tile).stage] +
                                           kConsumer * kHalfGroups * kBlock_elements),
                      tOrO);
  }

  // Waits for a tile's P V, and gives back its half of the tile, and P if it was the other's.
  template <typename TensorO>
  __device__ __forceinline__ void end_values(int tile, TensorO& tOrO) {
    wgmma_wait<0>(tOrO);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      shared_.keys.empty[at(tile).stage][kConsumer].arrive();
      if (slot_of(tile) != kConsumer) {
        shared_.p_empty[slot_of(tile)].arrive();
      }
    }
  }

  // Stores the results, or leaves a part of them and stores those of all parts if it is the last.
  template <typename TensorO>
  __device__ __forceinline__ void finish(const Unit& unit, int tiles, TensorO& tOrO) {
    RowSoFar rows[kThreadRows];
#pragma unroll
    for (int i = 0; i < kThreadRows; ++i) {
      rows[i] = so_far(tiles, i);
    }
    const int column0 = kConsumer * kHalfDims;
    const bool has_statistics = kConsumer == 0;
    if (unit.parts > 1) {
      leave_part(launch_, unit.index, column0, has_statistics, tOrO, rows);
      const int item = unit.index - unit.part * launch_.items;
      if (!arrives_last(launch_, unit.parts, item, shared_.ticket)) {
        return;
      }
      merge_parts<Mma>(launch_, item, launch_.items, unit.parts, column0, tOrO, rows);
    }
    store_results<Mma>(p_, launch_, unit, column0, has_statistics, tOrO, rows);
  }

  SharedStorage& shared_;
  const Params& p_;
  const Launch& launch_;
};

template <int kFormats>
__device__ __forceinline__ void produce_units(SharedStorage& shared, const Params& p,
                                              const Launch& launch, const CUtensorMap& map_q) {
  const KeyStages stages{shared.keys, shared.sK};
  const Unit& unit = shared.unit;
  while (next_unit<true>(shared, p, launch)) {
    if (threadIdx.x == 0) {
      load_q(shared.sQ, shared.q_full, unit, launch, map_q);
    }
    __syncwarp();
    const int end = uniform(unit.end_tile);
    int first = uniform(unit.first_tile);
    do {
      const Stretch stretch = next_stretch<true>(shared, p, launch, first);
      produce<kFormats>(stages, p, launch, unit, shared.places, stretch);
      first += kStretchTiles;
    } while (first < end);
  }
}

template <int kFormats, int kConsumer>
__device__ __forceinline__ void consume_units(SharedStorage& shared, const Params& p,
                                              const Launch& launch) {
  Consumer<kFormats, kConsumer> consumer(shared, p, launch);
  while (next_unit<false>(shared, p, launch)) {
    consumer.run();
  }
}

template <int kFormats>
__global__ void __launch_bounds__(kThreads, 1)
    dsv4_decode(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap map_q,
                const __grid_constant__ Launch launch) {
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage*>(smem);
  if (threadIdx.x == 0) {
    init(shared);
    begin(shared.unit, blockIdx.x - gridDim.x);
  }
  let_next_launch_start();
  wait_for_launch_before();

  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (warpgroup == 0) {
    cutlass::arch::warpgroup_reg_dealloc<120>();
    produce_units<kFormats>(shared, p, launch, map_q);
  } else {
    cutlass::arch::warpgroup_reg_alloc<192>();
    if (warpgroup == 1) {
      consume_units<kFormats, 0>(shared, p, launch);
    } else {
      consume_units<kFormats, 1>(shared, p, launch);
    }
  }
}

template <int kFormats>
void launch_block(const Params& p, const Dsv4Details& details, Stream stream) {
  launch_with<dsv4_decode<kFormats>>({.may_start_early = true}, details.plan.blocks, kThreads,
                                     sizeof(SharedStorage), stream, p,
                                     map_of_q(p, details.plan.shape), launch_of(p, details));
}

}  // namespace tilewright::cuda::dsv4
