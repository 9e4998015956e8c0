// The warpgroup that makes tiles of 16 bits of E4M3 ones, as the consumers' GEMMs read them.
#pragma once

#include "cuda/attention/blocks/flash_config.cuh"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/widen_e4m3.cuh"
#include "cuda/attention/prefill/sequences.cuh"

namespace tilewright::cuda {
namespace prefill {

// A thread's share of a tile of 16-bit values, in boxes of kBoxColumns columns: 16 columns of every
// kStep-th row. The swizzle exchanges a row's 16-byte units by bits of the row's number, the same
// in all of the thread's rows.
template <int kBoxColumns>
struct WideShare {
  static constexpr int kRow_bytes = 2 * kBoxColumns;
  static constexpr int kThreadsOfRow = kBoxColumns / 16;
  static constexpr int kStep = kWarpgroupThreads / kThreadsOfRow;
  static constexpr int kSwizzle = kRow_bytes - 16;  // the units' bits of an address
  static_assert(kStep % 8 == 0);

  int row;
  int column;  // within a box

  __device__ WideShare()
      : row(threadIdx.x % kWarpgroupThreads / kThreadsOfRow),
        column(threadIdx.x % kThreadsOfRow * 16) {}

  // Stores 16 values at `box`, where the row lies that is `rows` behind this thread's.
  __device__ void store(char* box, int rows, const uint4& low, const uint4& high) const {
    const int plain = row * kRow_bytes + 2 * column;
    const int place = rows * kRow_bytes + (plain ^ (plain >> 3 & kSwizzle));
    *reinterpret_cast<uint4*>(box + place) = low;
    *reinterpret_cast<uint4*>(box + (place ^ 16)) = high;
  }
};

// A warpgroup widens a tile of kRows keys. Where a row is a multiple of 128 bytes, neighbouring
// rows are read at different columns, so that they have different banks. A scheduler has one warp
// that widens, so that nothing else hides its loads' latency: they are kAhead steps ahead.
template <int kRows, int kHeadDim, int kBoxColumns, typename Element, typename Wait>
__device__ __forceinline__ void widen_tile(const std::uint8_t* coded, Element* tile,
                                           const Wait& wait) {
  using Share = WideShare<kBoxColumns>;
  constexpr int kOfBox = kRows / Share::kStep;  // of a thread, 16 codes each
  constexpr int kSteps = kHeadDim / kBoxColumns * kOfBox;
  constexpr int kAhead = 3;
  const Share share;
  const int exchange = kHeadDim % 128 == 0 ? share.row % 2 : 0;
  const auto load = [&](int i) {
    const int box = i / kOfBox ^ exchange;
    const int row = share.row + i % kOfBox * Share::kStep;
    return *reinterpret_cast<const uint4*>(coded + row * kHeadDim + box * kBoxColumns +
                                           share.column);
  };
  uint4 codes[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    codes[i] = load(i);
  }
  wait();
#pragma unroll
  for (int i = 0; i < kSteps; ++i) {
    const uint4 taken = codes[i % kAhead];
    if (i + kAhead < kSteps) {
      codes[i % kAhead] = load(i + kAhead);
    }
    char* const box = reinterpret_cast<char*>(tile + (i / kOfBox ^ exchange) * kRows * kBoxColumns);
    share.store(box, i % kOfBox * Share::kStep, widen_eight<Element>(taken.x, taken.y),
                widen_eight<Element>(taken.z, taken.w));
  }
}

// A ring's stage is widened to one of another ring.
template <int kRows, int kHeadDim, int kBoxColumns, int kFrom, int kTo, typename Element,
          int kCodes, int kElements>
__device__ __forceinline__ void widen_stage(TmaRing<kFrom>& from, RingPosition<kFrom>& at_from,
                                            const std::uint8_t (&coded)[kFrom][kCodes],
                                            TmaRing<kTo>& to, RingPosition<kTo>& at_to,
                                            Element (&tiles)[kTo][kElements]) {
  from.wait(at_from);
  widen_tile<kRows, kHeadDim, kBoxColumns>(coded[at_from.stage], tiles[at_to.stage],
                                           [&] { to.wait_until_empty(at_to); });
  cutlass::arch::fence_view_async_shared();
  __syncwarp();
  from.release(at_from);
  to.put(at_to);
  at_from.advance();
  at_to.advance();
}

// E4M3 queries of a tile, which come from memory without a stage. Rows that do not exist become 0.
template <typename Storage>
__device__ void widen_q(Storage& shared, const Params& p, const CodedTile& tile,
                        RingPosition<1>& at) {
  using Config = typename Storage::Config;
  constexpr int kBoxColumns = Config::Tiles::kBoxColumns;
  using Share = WideShare<kBoxColumns>;
  const Share share;
#pragma unroll 1
  for (int consumer = 0; consumer < Config::kConsumers; ++consumer) {
    shared.q[consumer].wait_until_empty(at);
    const int row0 = tile.row0 + consumer * kWarpgroupRows;
#pragma unroll 1
    for (int column = 0; column < Config::C.head_dim; column += kBoxColumns) {
      char* const box = reinterpret_cast<char*>(shared.sQ[consumer] + column * kWarpgroupRows);
#pragma unroll
      for (int rows = 0; rows < kWarpgroupRows; rows += Share::kStep) {
        const int row = row0 + rows + share.row;
        const auto* const q = row_pointer<const std::uint8_t>(p.q, p.q_stride, tile.batch,
                                                              tile.q_start + row, tile.head);
        const uint4 codes =
            row < tile.q_len ? *reinterpret_cast<const uint4*>(q + column + share.column) : uint4{};
        share.store(box, rows, widen_eight_queries(codes.x, codes.y),
                    widen_eight_queries(codes.z, codes.w));
      }
    }
    cutlass::arch::fence_view_async_shared();
    __syncwarp();
    shared.q[consumer].put(at);
  }
  at.advance();
}

// The warpgroup widens tiles in the order in which the consumers read them: V of a key tile behind
// K of the next one, and Q behind the first K.
template <typename Storage>
__device__ void widen_tiles(Storage& shared, const Params& p) {
  using Config = typename Storage::Config;
  constexpr auto C = Config::C;
  constexpr int kBoxColumns = Config::Tiles::kBoxColumns;
  const bool widens_q = p.dtype == DType::e4m3;
  RingPosition<C.coded_k> at_coded_k;
  RingPosition<C.coded_v> at_coded_v;
  typename Config::PositionK at_k;
  typename Config::PositionV at_v;
  RingPosition<1> at_q;
  typename Storage::TilePosition at_tile;
  while (true) {
    const CodedTile& tile = shared.tiles.wait(at_tile);
    if (tile.is_end) {
      break;
    }
    const int last = tile.kv_end - 1;
#pragma unroll 1
    for (int j = last; j >= tile.kv_first - 1; --j) {
      if (j >= tile.kv_first) {
        widen_stage<C.bc, C.head_dim, kBoxColumns>(shared.coded_k, at_coded_k, shared.sCodedK,
                                                   shared.k, at_k, shared.sK);
      }
      if (j < last) {
        widen_stage<C.bc, C.value_dim, kBoxColumns>(shared.coded_v, at_coded_v, shared.sCodedV,
                                                    shared.v, at_v, shared.sV);
      } else if (widens_q && j >= tile.kv_first) {
        widen_q(shared, p, tile, at_q);
      }
    }
    __syncwarp();
    shared.tiles.release(at_tile);
    at_tile.advance();
  }
}

}  // namespace prefill
}  // namespace tilewright::cuda
