// O as a sum in two levels: the tensor cores add up P V of some key tiles, and FP32 instructions
// add that to O.
#pragma once

#include <cute/tensor.hpp>

#include "cuda/attention/blocks/accumulator.cuh"
#include "cuda/common/wgmma.cuh"

namespace tilewright::cuda {

// O, and the sums of the tensor cores that are still to be added to it, in kParts parts of the
// columns. Both are in rows' units of P, which change from tile to tile: O's are those that it had
// when it was last added to.
template <typename T, int kHeadDim, int kInterval, int kParts>
struct ValueSums {
  static constexpr bool kPromotes = kInterval > 0;
  static constexpr int kBuffers = kParts > 1 ? 2 : 1;  // of parts
  static_assert(kParts == 1 || kInterval == 1, "a part's registers serve another part");
  using Mma = typename T::TiledMmaPv;
  using MmaPart = typename T::template MmaPv<kHeadDim / kParts>;
  using ShapePart = cute::Shape<cute::_64, cute::Int<kHeadDim / kParts>>;
  using Sum = decltype(T::output());
  using Part = decltype(cute::partition_fragment_C(MmaPart{}, ShapePart{}));
  static constexpr int kRows = 2;

  Sum tOrO;
  Part tOrPart[kBuffers];  // part i is in buffer i % kBuffers
  float to_units_of_part[kRows] = {1.0f, 1.0f};
  int tiles = 0;  // in tOrPart

  __device__ ValueSums() { cute::clear(tOrO); }

  // Issues P V of a tile. `tOrV` is (MMA, MMA_K) of part `part` of the columns.
  template <typename TensorP, typename TensorV>
  __device__ void issue(const TensorP& tOrP, const TensorV& tOrV, int part = 0) {
    using namespace cute;
    const Tensor V =
        make_tensor(tOrV.data(), make_layout(layout<0>(tOrV), Layout<_1>{}, layout<1>(tOrV)));
    if constexpr (kPromotes) {
      wgmma_issue_if(kInterval > 1 && tiles > 0, MmaPart{}, tOrP, V, tOrPart[part % kBuffers]);
    } else {
      wgmma_issue<true>(Mma{}, tOrP, V, tOrO);
    }
  }

  // Until part `part` is there, while at most kPending later ones are computed.
  template <int kPending = 0>
  __device__ void wait(int part = 0) {
    if constexpr (kPromotes) {
      wgmma_wait<kPending>(tOrPart[part % kBuffers]);
    } else {
      wgmma_wait<0>(tOrO);
    }
  }

  // Adds the sums to O, of part `part`.
  __device__ void promote(int part = 0) {
    if constexpr (kPromotes) {
      using namespace cute;
      const Part& sums = tOrPart[part % kBuffers];
      Tensor O = make_tensor(tOrO.data() + part * size(sums), sums.layout());
      Tensor rO = by_rows<MmaPart>(O);
      const Tensor rPart = by_rows<MmaPart>(sums);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int j = 0; j < size<1>(rO); ++j) {
          rO(i, j) = fmaf(rO(i, j), to_units_of_part[i], rPart(i, j));
        }
      }
    }
  }

  // The units so far are `correction` times those of the next tile. The last tile's sums are there.
  __device__ void next_units(const float (&correction)[kRows]) {
    if constexpr (!kPromotes) {
      auto rO = by_rows<Mma>(tOrO);
      scale_rows(rO, correction);
    } else if (kInterval == 1 || ++tiles == kInterval) {
      promote();
      set_units(correction);
      tiles = 0;
    } else {
      auto rPart = by_rows<MmaPart>(tOrPart[0]);
      scale_rows(rPart, correction);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        to_units_of_part[i] *= correction[i];
      }
    }
  }

  // The same where all sums are in O.
  __device__ void set_units(const float (&correction)[kRows]) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      to_units_of_part[i] = correction[i];
    }
  }

  // P V of a tile. A part of the columns is added to O while the next one is computed. `tOrV` is
  // (MMA, parts, MMA_K).
  template <typename TensorP, typename TensorV>
  __device__ void add(const TensorP& tOrP, const TensorV& tOrV) {
    issue(tOrP, tOrV(cute::_, 0, cute::_));
#pragma unroll
    for (int part = 1; part < kParts; ++part) {
      issue(tOrP, tOrV(cute::_, part, cute::_), part);
      wait<1>(part - 1);
      promote(part - 1);
    }
    wait(kParts - 1);
    promote(kParts - 1);
  }
};

}  // namespace tilewright::cuda
