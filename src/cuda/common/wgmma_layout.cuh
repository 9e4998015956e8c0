// How a warpgroup's MMA spreads its operands over threads, and the SMEM layouts from which it reads
// them: all of it is derived from CuTe's TV layouts at compile time.
//
// A TV layout maps (thread, value) to the position in the tile, counted down the columns first:
// position = m + M * n. A mode of stride < M therefore walks along M, any other along N. For the
// C of a 64 x N WGMMA it is
//
//   threads (4, 8, 4) : (2 M, 1, 16)      values (2, 2, N / 8) : (M, 8, 8 M)
//
// so a thread holds 2 rows (values of stride 8), and 4 lanes share a row (threads of stride 2 M).
#pragma once

#include <cute/tensor.hpp>

namespace tilewright::cuda {

// The modes of `layout` for which the parallel tuple Strides holds a stride below kM, if kAlongM,
// or not below it.
template <int kM, bool kAlongM, typename Strides, typename Layout>
__host__ __device__ constexpr auto modes_along(Layout layout) {
  using namespace cute;
  constexpr int kRank = decltype(rank(layout))::value;
  const auto pick = [&](auto i) {
    constexpr bool kIsM = tuple_element_t<i, Strides>::value < kM;
    if constexpr (kIsM == kAlongM) {
      return make_tuple(get<i>(layout));
    } else {
      return make_tuple();
    }
  };
  const auto picked = [&]<int... kModes>(seq<kModes...>) {
    return tuple_cat(pick(Int<kModes>{})...);
  }
  (make_seq<kRank>{});
  return apply(picked, [](auto... modes) { return make_layout(modes...); });
}

// The layout of an accumulator ((values), MMA_M, MMA_N) as (rows of this thread, its columns).
template <typename TiledMma, typename Layout>
__host__ __device__ constexpr auto rows_by_columns(Layout accumulator) {
  using namespace cute;
  constexpr int kM = decltype(size<0>(typename TiledMma::AtomShape_MNK{}))::value;
  using Strides = decltype(stride<1>(typename TiledMma::AtomLayoutC_TV{}));
  const auto values = get<0>(accumulator);
  return make_layout(make_layout(modes_along<kM, true, Strides>(values), get<1>(accumulator)),
                     make_layout(modes_along<kM, false, Strides>(values), get<2>(accumulator)));
}

// The lanes that hold one row of C: lane, lane ^ first, ..., a group of `count` lanes that differ
// in the bits [first, first * count) of their index.
struct RowLanes {
  int first;
  int count;
};

template <typename TiledMma>
__host__ __device__ constexpr RowLanes row_lanes() {
  using namespace cute;
  constexpr int kM = decltype(size<0>(typename TiledMma::AtomShape_MNK{}))::value;
  using C = typename TiledMma::AtomLayoutC_TV;
  // Compact strides tell where each mode of the threads sits in the thread index.
  constexpr auto kLanes =
      modes_along<kM, false, decltype(stride<0>(C{}))>(make_layout(shape<0>(C{})));
  static_assert(decltype(rank(kLanes))::value == 1, "one mode of the threads walks along N");
  static_assert(decltype(cosize(kLanes))::value <= 32, "a row's lanes lie in one warp");
  return {.first = decltype(stride<0>(kLanes))::value, .count = decltype(size<0>(kLanes))::value};
}

// Which register of an accumulator C (64 x N) each register of a following MMA's A operand
// (64 x K per step) is: the layout (A's values, 1, steps) over C's values. `columns` is C's column
// for each column of A. It exists because C and A give every thread the same rows and, with those
// columns, the same elements; otherwise it does not compile.
template <typename TiledMmaC, typename TiledMmaA, typename Columns>
__host__ __device__ constexpr auto c_registers_of_a(Columns columns) {
  using namespace cute;
  using C = typename TiledMmaC::AtomLayoutC_TV;
  using A = typename TiledMmaA::AtomLayoutA_TV;
  constexpr auto kM = size<0>(typename TiledMmaC::AtomShape_MNK{});
  // A step of K covers as many positions of A's whole tile as A has elements.
  const auto steps = make_layout(size<1>(C{}) / size<1>(A{}), size(A{}));
  const auto positions = make_layout(layout<0>(A{}), layout<1>(A{}), steps);
  const auto in_c = composition(logical_product(make_layout(kM), columns), positions);
  static_assert(is_same_v<decltype(layout<0>(C{})), decltype(layout<0>(in_c))>,
                "C and A must be spread over the threads alike");
  return composition(left_inverse(layout<1>(C{})),
                     make_layout(layout<1>(in_c), make_layout(_1{}), layout<2>(in_c)));
}

// The same where A's columns are C's.
template <typename TiledMmaC, typename TiledMmaA>
__host__ __device__ constexpr auto c_registers_of_a() {
  using namespace cute;
  return c_registers_of_a<TiledMmaC, TiledMmaA>(
      make_layout(size<1>(typename TiledMmaC::AtomShape_MNK{})));
}

}  // namespace tilewright::cuda
