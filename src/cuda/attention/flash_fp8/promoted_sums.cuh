// O and l as sums in two levels: the tensor cores compute P V of a key tile, and FP32 instructions
// add that to O. Where Config::kSumRows is not 0, rows of ones lie in front of a tile's rows of
// V^T, so that the same GEMM also computes sums of P: l is the sum of the weights as they were
// rounded, and takes no instruction for each of them.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/attention/blocks/fp8_tiles.cuh"
#include "cuda/common/wgmma.cuh"
#include "cuda/common/wgmma_shapes_e4m3.cuh"

namespace tilewright::cuda {
namespace flash_fp8 {

using namespace cute;

// P V in Config::kValueParts parts of its columns, the first with the sums of P in front.
template <typename Config>
struct PartsOfPv {
  using T = typename Config::Tiles;
  static constexpr int kParts = Config::kValueParts;
  static constexpr int kColumns = Config::C.head_dim / kParts;
  static constexpr int kFirstColumns = Config::kSumRows + kColumns;
  using Mma = typename T::template MmaPv<kColumns>;
  using FirstMma = decltype(make_tiled_mma(wgmma_pv_e4m3<kFirstColumns, Config::C.bc>()));
  using Sums = decltype(partition_fragment_C(Mma{}, Shape<_64, Int<kColumns>>{}));
  using FirstSums = decltype(partition_fragment_C(FirstMma{}, Shape<_64, Int<kFirstColumns>>{}));

  template <int kPart>
  using MmaOf = conditional_t<kPart == 0, FirstMma, Mma>;
};

// V^T of all stages as operand B. `sV` is the first stage, with its rows of ones.
template <typename Config>
class ValueOperand {
  using Parts = PartsOfPv<Config>;
  static constexpr int kBc = Config::C.bc;

  // (MMA, 1, MMA_K), from row 0 of the first stage on.
  template <typename Mma, int kRows>
  __device__ static auto operand(typename Config::Element* sV) {
    using Layout = decltype(tile_to_shape(AtomOfRows<typename Config::Element, kBc>{},
                                          Shape<Int<kRows>, Int<kBc>>{}));
    const auto mma = Mma{}.get_slice(0);  // a descriptor is the same for every thread
    return mma.make_fragment_B(mma.partition_B(Config::Tiles::tile(sV, Layout{})));
  }
  using First = decltype(operand<typename Parts::FirstMma, Parts::kFirstColumns>(nullptr));
  using Other = decltype(operand<typename Parts::Mma, Parts::kColumns>(nullptr));

 public:
  __device__ explicit ValueOperand(typename Config::Element* sV)
      : first_(operand<typename Parts::FirstMma, Parts::kFirstColumns>(sV)) {}

  // Part kPart of the columns, in a stage.
  template <int kPart>
  __device__ auto part(int stage) const {
    constexpr int kRow = kPart == 0 ? 0 : Config::kSumRows + kPart * Parts::kColumns;
    constexpr int kStageOffset = Config::kStageValues / 16;  // as descriptors count
    using Layout = typename conditional_t<kPart == 0, First, Other>::layout_type;
    const int offset = stage * kStageOffset + kRow * kBc / 16;
    return make_tensor(first_.data() + offset, Layout{});
  }

 private:
  First first_;
};

// l + sum, computed where it stands. Where ptxas may move the addition, the registers of the part
// are not S's later, and others spill.
__device__ __forceinline__ float add_in_place(float l, float sum) {
  asm volatile("add.f32 %0, %0, %1;" : "+f"(l) : "f"(sum));
  return l;
}

// O, and the sums of the tensor cores that are still to be added to it. Both are in rows' units of
// P and in units of values, which change from tile to tile: O's are those that it had when it was
// last added to.
template <typename Config>
struct PromotedSums {
  using Parts = PartsOfPv<Config>;
  static constexpr int kParts = Parts::kParts;
  static constexpr bool kSumsWeights = Config::kSumRows > 0;
  static constexpr int kBuffers = 2;
  static constexpr int kRows = 2;

  decltype(Config::Tiles::output()) tOrO;
  typename Parts::FirstSums tOrFirst;            // of part 0, if kSumsWeights
  typename Parts::Sums tOrPart[kBuffers];        // of part i, in buffer i % kBuffers
  float to_units_of_part[kRows] = {1.0f, 1.0f};  // what O is multiplied by when a part is added
  float l[kRows] = {};                           // without kSumsWeights, the caller's to add up

  __device__ PromotedSums() { clear(tOrO); }

  template <int kPart>
  __device__ auto& part() {
    if constexpr (kPart == 0 && kSumsWeights) {
      return tOrFirst;
    } else {
      return tOrPart[kPart % kBuffers];
    }
  }

  // Issues a part of P V, over the first 1 / kFraction of a tile's keys.
  template <int kPart, int kFraction = 1, typename TensorP>
  __device__ __forceinline__ void issue(const TensorP& tOrP, const ValueOperand<Config>& values,
                                        int stage) {
    wgmma_issue<false, kFraction>(typename Parts::template MmaOf<kPart>{}, tOrP,
                                  values.template part<kPart>(stage), part<kPart>());
  }

  // Until a part is there, while at most kPending later ones are computed.
  template <int kPart, int kPending = 0>
  __device__ __forceinline__ void wait() {
    wgmma_wait<kPending>(part<kPart>());
  }

  // Adds a part to O, and its sums of P to l.
  template <int kPart>
  __device__ __forceinline__ void promote() {
    using Mma = typename Parts::template MmaOf<kPart>;
    constexpr int kSums = kPart == 0 ? Config::kSumRows / 4 : 0;  // columns of a thread
    const Tensor rPart = by_rows<Mma>(part<kPart>());
    Tensor O = make_tensor(tOrO.data() + kPart * size(tOrPart[0]), tOrPart[0].layout());
    Tensor rO = by_rows<typename Parts::Mma>(O);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if constexpr (kSums > 0) {
        l[i] = add_in_place(l[i], rPart(i, 0));
      }
#pragma unroll
      for (int j = 0; j < size<1>(rO); ++j) {
        rO(i, j) = fmaf(rO(i, j), to_units_of_part[i], rPart(i, kSums + j));
      }
    }
  }

  // The units of P so far are `correction` times those of P of the next tile, and the units of
  // values so far are `unit_ratio` times those of its values. All sums are in O.
  __device__ void set_units(const float (&correction)[kRows], float unit_ratio) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if constexpr (kSumsWeights) {
        l[i] *= correction[i];
      }
      to_units_of_part[i] = correction[i] * unit_ratio;
    }
  }

  // P V of a tile. A part of the columns is added to O while the next one is computed; the last one
  // is there at the end, and promote() adds it: if this did, too, ptxas would spill registers.
  template <int kFraction = 1, int kPart = 0, typename TensorP>
  __device__ __forceinline__ void add_but_last(const TensorP& tOrP,
                                               const ValueOperand<Config>& values, int stage) {
    if constexpr (kPart == 0) {
      issue<0, kFraction>(tOrP, values, stage);
    }
    if constexpr (kPart < kParts - 1) {
      issue<kPart + 1, kFraction>(tOrP, values, stage);
      wait<kPart, 1>();
      promote<kPart>();
      add_but_last<kFraction, kPart + 1>(tOrP, values, stage);
    } else {
      wait<kPart>();
    }
  }
};

}  // namespace flash_fp8
}  // namespace tilewright::cuda
