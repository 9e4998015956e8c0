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
// SMEM      Q 64 KB, two key tiles of 64 KB, P of two tiles, 8 KB each: 208 KB (+ 9 KB).
// Registers 216 for a thread of a consumer, of which 128 hold O and 32 S; 80 for one of the producer.
//
//   producer     tile 0 L R | tile 1 L R | wait: empty | tile 2 L R | ...
//   consumer 0   S0 = Q K0^T | P0 |      O_L += P0 V0 | wait P1: O_L += P1 V1 | S2 = Q K2^T | ...
//   consumer 1   S1 = Q K1^T | wait P0: O_R += P0 V0 | P1 | O_R += P1 V1      | S3 = Q K3^T | ...
//
// L and R are the left and right halves of a tile's dims: consumer 0 releases the one, consumer 1 the
// other. P is handed over with the references that it was taken against (softmax.cuh), tile by
// tile, so that both consumers scale O alike.
//
// Limits    BF16 q. An item without keys takes a block like any other.
// Worklog   docs/worklog/dsv4-decode.md
#include "cuda/attention/dsv4_decode/launch.hpp"
#include "cuda/attention/dsv4_decode/produce.cuh"
#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda {
namespace dsv4 {

constexpr int kThreads = block_threads(kConsumers);

struct SharedStorage {
  alignas(1024) Element sQ[kRows * kDims];
  alignas(1024) Element sK[kKeyStages][kTileKeys * kDims];
  alignas(1024) Element sP[kConsumers][kRows * kTileKeys];
  TileRows rows[kConsumers];  // of P
  alignas(8) std::uint16_t exist[kKeyStages][kProducerWarps];
  Unit unit;
  int ticket;
  TmaBarrier q_full;
  KeyRing keys;
  // P of consumer c: both consumers wait until it is there, and c until the other has read it.
  cutlass::arch::ClusterBarrier p_full[kConsumers];
  cutlass::arch::ClusterBarrier p_empty[kConsumers];
};
static_assert(sizeof(SharedStorage) <= 212 * 1024);

__device__ void init(SharedStorage& shared) {
  shared.q_full.init(1);
  shared.keys.init();
  for (int consumer = 0; consumer < kConsumers; ++consumer) {
    shared.p_full[consumer].init(kConsumerWarps);
    shared.p_empty[consumer].init(kConsumerWarps);
  }
  cutlass::arch::fence_barrier_init();
}

// Loads the item's rows of Q. One thread calls it.
__device__ void load_q(SharedStorage& shared, const Launch& launch, const CUtensorMap& map) {
  const Unit& unit = shared.unit;
  const int rows = launch.shape.tile_heads * launch.shape.tile_tokens;
  shared.q_full.arrive_and_expect_tx(rows * kDims * sizeof(Element));
  for (int column = 0; column < kDims; column += kBlockDims) {
    cute::SM90_TMA_LOAD_4D::copy(
        &map, reinterpret_cast<std::uint64_t*>(&shared.q_full),
        static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
        shared.sQ + column * kRows, column, unit.head0, unit.token0,
        launch.is_packed ? 0 : unit.request);
  }
}

// All threads of the block call it at the beginning of a unit; it returns when the unit is known.
__device__ void begin_unit(SharedStorage& shared, const Params& p, const Launch& launch, int index) {
  __syncthreads();  // nobody reads the unit before any more
  if (threadIdx.x < 32) {
    find_unit(shared.unit, p, launch, index);
  }
  __syncthreads();
}

// A consumer: warpgroup `consumer`, with columns [256 consumer, 256 consumer + 256) of O.
class Consumer {
 public:
  using Mma = MmaPv<kHalfDims>;

  __device__ Consumer(SharedStorage& shared, const Params& p, const Launch& launch, int consumer)
      : shared_(shared), p_(p), launch_(launch), consumer_(consumer) {}

  // Computes one unit. `index` is its number, `round` counts those of this block with an item.
  __device__ void run(int index, int round) {
    const Unit& unit = shared_.unit;
    const int tiles = unit.end_tile - unit.first_tile;
    auto tOrO = cute::partition_fragment_C(
        Mma{}, cute::Shape<cute::_64, cute::Int<kHalfDims>>{});
    cute::clear(tOrO);
    RowsSoFar rows;
    shared_.q_full.wait(round & 1);
    for (int first = 0; first < tiles; first += kConsumers) {
      run_pair(unit, first, tiles, tOrO, rows);
    }
    count_ += tiles;
    finish(unit, index, tOrO, rows);
  }

 private:
  // Tiles `first` and the one behind it, if it exists, of the unit.
  template <typename TensorO>
  __device__ void run_pair(const Unit& unit, int first, int tiles, TensorO& tOrO,
                           RowsSoFar& rows) {
    auto tSrS = cute::partition_fragment_C(MmaQk{}, cute::Shape<cute::_64, Keys>{});
    const bool has_own = first + consumer_ < tiles;
    const int own = first + consumer_;
    if (has_own) {
      issue_scores(own, tSrS);
    }
    if (consumer_ == 1) {
      add_values(first, tOrO, rows);
    }
    if (has_own) {
      if (consumer_ == 0) {
        wgmma_wait<0>(tSrS);
      } else {
        wgmma_wait<1>(tSrS);  // P V of the first tile may still run
      }
      weigh(unit, own, tSrS, rows);
      if (consumer_ == 1) {
        end_values(first, tOrO);
      }
      add_values(own, tOrO, rows);
      end_values(own, tOrO);
    } else {
      end_values(first, tOrO);
    }
    if (consumer_ == 0 && first + 1 < tiles) {
      add_values(first + 1, tOrO, rows);
      end_values(first + 1, tOrO);
    }
  }

  // Where a tile of the unit is in the ring, and the ring's turn there.
  __device__ int stage_of(int tile) const { return (count_ + tile) % kKeyStages; }
  __device__ std::uint32_t phase_of(int tile) const { return (count_ + tile) / kKeyStages & 1; }
  // P of a tile of the unit: its place, and how often a tile of the block has had it before.
  __device__ static int slot_of(int tile) { return tile % kConsumers; }

  template <typename TensorS>
  __device__ void issue_scores(int tile, TensorS& tSrS) {
    const int stage = stage_of(tile);
    const auto tSrQ = operand_q(shared_.sQ);
    const auto tSrK = operand_k(shared_.sK[stage]);
    shared_.keys.full[stage][0].wait(phase_of(tile));
    issue_half<0>(tSrQ, tSrK, tSrS);
    shared_.keys.full[stage][1].wait(phase_of(tile));
    issue_half<1>(tSrQ, tSrK, tSrS);
    cute::warpgroup_commit_batch();
  }

  template <int kHalf, typename TensorA, typename TensorB, typename TensorS>
  __device__ static void issue_half(const TensorA& tA, const TensorB& tB, TensorS& tSrS) {
    constexpr int kSteps = decltype(cute::size<2>(tA))::value / kHalves;
    MmaQk mma;
    cute::warpgroup_fence_operand(tSrS);
    cute::warpgroup_arrive();
    mma.accumulate_ = kHalf == 0 ? cute::GMMA::ScaleOut::Zero : cute::GMMA::ScaleOut::One;
#pragma unroll
    for (int k = kHalf * kSteps; k < (kHalf + 1) * kSteps; ++k) {
      cute::gemm(mma, tA(cute::_, cute::_, k), tB(cute::_, cute::_, k), tSrS);
      mma.accumulate_ = cute::GMMA::ScaleOut::One;
    }
  }

  // S of an own tile becomes P, for both consumers.
  template <typename TensorS>
  __device__ void weigh(const Unit& unit, int tile, TensorS& tSrS, const RowsSoFar& rows) {
    auto rS = by_rows<MmaQk>(tSrS);
    const auto cS = by_rows<MmaQk>(MmaQk{}.get_slice(threadIdx.x % kWarpgroupThreads)
                                       .partition_C(cute::make_identity_tensor(
                                           cute::Shape<cute::_64, Keys>{})));
    const auto exist = *reinterpret_cast<const std::uint64_t*>(shared_.exist[stage_of(tile)]);
    mask(rS, cS, unit, launch_.shape, tile_at(unit, unit.first_tile + tile), exist);
    const int slot = slot_of(tile);
    shared_.p_empty[slot].wait(own_tiles_ & 1 ^ 1);
    softmax<MmaQk>(rS, rows, scale_to_log2(p_.scale), shared_.sP[slot], shared_.rows[slot]);
    fill(shared_.p_full[slot]);
    ++own_tiles_;
  }

  // Takes up a tile's P and issues O += P V.
  template <typename TensorO>
  __device__ void add_values(int tile, TensorO& tOrO, RowsSoFar& rows) {
    const int slot = slot_of(tile);
    shared_.p_full[slot].wait(taken_[slot]++ & 1);
    const Rescale rescale = take_up(rows, shared_.rows[slot]);
    if (rescale.moves) {
      auto rO = by_rows<Mma>(tOrO);
      scale_rows(rO, rescale.factor);
    }
    wgmma_issue<true>(Mma{}, operand_p<kHalfDims>(shared_.sP[slot]),
                      operand_v<kHalfDims>(shared_.sK[stage_of(tile)] +
                                           consumer_ * kHalfGroups * kBlock_elements),
                      tOrO);
  }

  // Waits for a tile's P V, and gives back its half of the tile, and P if it was the other's.
  template <typename TensorO>
  __device__ void end_values(int tile, TensorO& tOrO) {
    wgmma_wait<0>(tOrO);
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      shared_.keys.empty[stage_of(tile)][consumer_].arrive();
      if (slot_of(tile) != consumer_) {
        shared_.p_empty[slot_of(tile)].arrive();
      }
    }
  }

  // Stores the results, or leaves a part of them and stores those of all parts if it is the last.
  template <typename TensorO>
  __device__ void finish(const Unit& unit, int index, TensorO& tOrO, RowsSoFar& rows) {
    const int column0 = consumer_ * kHalfDims;
    const bool has_statistics = consumer_ == 0;
    if (unit.parts > 1) {
      leave_part(launch_, index, column0, has_statistics, tOrO, rows);
      const int item = index - unit.part * launch_.items;
      if (!is_last_part(unit, item)) {
        return;
      }
      merge_parts<Mma>(launch_, item, launch_.items, unit.parts, column0, tOrO, rows);
    }
    store_results<Mma>(p_, launch_, unit, column0, has_statistics, tOrO, rows);
  }

  // Both consumers have left their share of a part. Returns whether all parts are there.
  __device__ bool is_last_part(const Unit& unit, int item) {
    constexpr std::uint32_t kBarrier = 1;
    constexpr int kBoth = kConsumers * kWarpgroupThreads;
    cutlass::arch::NamedBarrier::sync(kBoth, kBarrier);
    if (threadIdx.x == kWarpgroupThreads) {
      __threadfence();
      const TicketCounter tickets{.word = launch_.counters + item, .epoch = launch_.epoch};
      shared_.ticket = tickets.take();
      if (shared_.ticket == unit.parts - 1) {
        tickets.clear();
      }
      __threadfence();
    }
    cutlass::arch::NamedBarrier::sync(kBoth, kBarrier);
    return shared_.ticket == unit.parts - 1;
  }

  SharedStorage& shared_;
  const Params& p_;
  const Launch& launch_;
  const int consumer_;
  int count_ = 0;      // tiles of the units before
  int own_tiles_ = 0;  // whose P this consumer has written
  int taken_[kConsumers] = {};
};

__global__ void __launch_bounds__(kThreads, 1)
    dsv4_decode(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap map_q,
                const __grid_constant__ Launch launch) {
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage*>(smem);
  if (threadIdx.x == 0) {
    init(shared);
  }
  let_next_launch_start();
  wait_for_launch_before();

  const auto for_each_unit = [&](auto&& f) {
    int round = 0;
    for (int index = blockIdx.x; index < launch.units; index += gridDim.x) {
      begin_unit(shared, p, launch, index);
      if (shared.unit.tokens > 0) {
        f(index, round++);
      }
    }
  };
  if (cutlass::canonical_warp_group_idx() == 0) {
    cutlass::arch::warpgroup_reg_dealloc<80>();
    const KeyStages stages{shared.keys, shared.sK, shared.exist};
    int count = 0;
    for_each_unit([&](int, int) {
      if (threadIdx.x == 0) {
        load_q(shared, launch, map_q);
      }
      __syncwarp();
      count = produce(stages, p, launch, shared.unit, count);
    });
  } else {
    cutlass::arch::warpgroup_reg_alloc<216>();
    Consumer consumer(shared, p, launch, cutlass::canonical_warp_group_idx() - 1);
    for_each_unit([&](int index, int round) { consumer.run(index, round); });
  }
}

}  // namespace dsv4
}  // namespace tilewright::cuda
