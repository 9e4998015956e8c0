// Partial results on their way from one worker to another, through the workspace.
//
// The blocks that compute an item's parts spread its pieces over their threads alike. So no block
// has to wait as a whole. A warp leaves its pieces, and then a mark. In the block that merges, the
// warp with the same number waits for the marks of all parts, and clears them for the next replay.
#pragma once

#include <bit>

#include "cuda/attention/decode/config.cuh"

namespace tilewright::cuda {
namespace decode {

// Columns of a row of O, and the row's m and l. Four neighbouring columns are a quad. A piece has
// kQuads quads, which are spread evenly over the row.
template <int kQuads>
struct Piece {
  float m = kMinusInf;
  float l = 0.0f;
  float4 o[kQuads]{};
};

// The slots of an item's parts, as this warp uses them in one pass. `quad` is the number of a
// piece's first quad, counted through the row tile.
template <typename Config>
class PartSlots {
 public:
  __device__ PartSlots(const Launch& launch, const PartPlace& place, int rank, int pass)
      : slots_(launch.slots),
        place_(place),
        slices_log2_(launch.workers.cluster_log2),
        quads_(launch.slot_rows * kRowQuads),
        step_((Config::kPasses * Config::kConsumerWarps) << launch.workers.cluster_log2),
        mark_((rank * Config::kPasses + pass) * Config::kConsumerWarps +
              static_cast<int>(threadIdx.x) / 32) {}

  // Leaves a piece of this part.
  template <int kQuads>
  __device__ void leave(int quad, const Piece<kQuads>& value) const {
    const std::int64_t at = slot(place_.index) * quads_ + quad;
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      slots_.o[at + j * (kRowQuads / kQuads)] = value.o[j];
    }
    if (behind_statistics(quad) == 0) {
      slots_.statistics[at] = {value.m, value.l};
    }
  }

  // Says that this warp has left its pieces of this part.
  __device__ void announce() const {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(mark_of(place_.index)),
                   "l"(slots_.mark)
                   : "memory");
    }
  }

  // Waits until all parts behind this one have been left, and clears their marks. Those ahead are
  // this block's own.
  __device__ void wait() const {
    int first = place_.index + 1;
    do {
      const int part = first + static_cast<int>(threadIdx.x) % 32;
      const bool waits = part < place_.parts;
      bool is_left = true;
      do {
        if (waits) {
          std::uint64_t mark = 0;
          asm volatile("ld.acquire.gpu.global.u64 %0, [%1];"
                       : "=l"(mark)
                       : "l"(mark_of(part))
                       : "memory");
          is_left = mark == slots_.mark;
        }
      } while (!__all_sync(0xffffffffu, is_left));
      if (waits) {
        *mark_of(part) = 0;
      }
      first += 32;
    } while (first < place_.parts);
    __syncwarp();  // what a lane has found is there for all lanes
  }

  // A piece of part `part`. Other blocks' writes do not reach L1.
  template <int kQuads>
  __device__ Piece<kQuads> at(int part, int quad) const {
    const std::int64_t at = slot(part) * quads_ + quad;
    const float2 of_row = __ldcg(slots_.statistics + at - behind_statistics(quad));
    Piece<kQuads> piece{.m = of_row.x, .l = of_row.y};
#pragma unroll
    for (int j = 0; j < kQuads; ++j) {
      piece.o[j] = __ldcg(slots_.o + at + j * (kRowQuads / kQuads));
    }
    return piece;
  }

 private:
  static constexpr int kRowQuads = Config::C.value_dim / 4;

  // How many quads before this one m and l lie: with the first quad of the row that the warp has,
  // in this block's slice of the columns; or, where warps begin anywhere in a row, with each piece.
  __device__ int behind_statistics(int quad) const {
    const int slice = Config::kMayCluster ? kRowQuads >> slices_log2_ : kRowQuads;
    return std::has_single_bit(unsigned{kRowQuads}) ? quad & (min(slice, 32) - 1) : 0;
  }
  __device__ std::int64_t slot(int part) const { return place_.slot0 + part; }
  __device__ std::uint64_t* mark_of(int part) const {
    return slots_.marks + slot(part) * step_ + mark_;
  }

  const Slots& slots_;
  const PartPlace& place_;
  int slices_log2_;
  int quads_;  // of a slot
  int step_;   // marks of a slot
  int mark_;   // of the warp
};

}  // namespace decode
}  // namespace tilewright::cuda
