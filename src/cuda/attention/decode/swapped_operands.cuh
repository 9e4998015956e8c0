// The operands of decode_swapped's GEMMs, S^T = K Q^T and O^T += V^T P^T. 16-bit tiles are read by
// WGMMA where they lie. E4M3 ones are widened on their way from SMEM to registers.
#pragma once

#include "cuda/attention/decode/config.cuh"
#include "cuda/attention/decode/fragments.cuh"
#include "cuda/common/wgmma.cuh"

namespace tilewright::cuda {
namespace decode {

// What both have in common: Q and P^T as operand B, each row contiguous, and the accumulators.
template <typename Config, typename MmaOfQk, typename MmaOfPv>
struct SwappedGemms {
  using Element = typename Config::Element;
  using Keys = cute::Int<kDecodeTileKeys>;
  using Rows = cute::Int<Config::kRows>;
  using D = cute::Int<Config::C.head_dim>;
  using Dv = cute::Int<Config::C.value_dim>;
  using AtomK = cute::GMMA::Layout_K_SW128_Atom<Element>;
  using MmaQk = MmaOfQk;
  using MmaPv = MmaOfPv;

  __device__ static auto operand_q(const Element* q) {
    const auto mma = MmaQk{}.get_slice(0);  // a descriptor is the same for every thread
    using Layout = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Rows, D>{}));
    return mma.make_fragment_B(mma.partition_B(tile(q, Layout{})));
  }
  __device__ static auto operand_p(const Element* p) {
    const auto mma = MmaPv{}.get_slice(0);
    using Layout = decltype(cute::tile_to_shape(AtomK{}, cute::Shape<Rows, Keys>{}));
    return mma.make_fragment_B(mma.partition_B(tile(p, Layout{})));
  }
  __device__ static auto scores() {
    return cute::partition_fragment_C(MmaQk{}, cute::Shape<Keys, Rows>{});
  }
  __device__ static auto output() {
    return cute::partition_fragment_C(MmaPv{}, cute::Shape<Dv, Rows>{});
  }

  template <typename Layout>
  __device__ static auto tile(const Element* smem, Layout layout) {
    return cute::make_tensor(cute::make_smem_ptr(smem), layout);
  }
};

// S^T and O^T of a tile, which a warpgroup computes and waits for:
//   compute_scores(tile_k, q, s)   compute_values(tile_v, p, o)

template <typename Config>
using ShapeQk = cute::Shape<cute::_64, cute::Int<Config::kRows>, cute::Int<Config::C.head_dim>>;
template <typename Config>
using ShapePv = cute::Shape<cute::_64, cute::Int<Config::kRows>, cute::_64>;

// Of 16-bit tiles. V lies in SMEM as in memory, Dv contiguous: as an operand A that is MN-major.
template <typename Config, typename Element = typename Config::Element>
struct TilesInPlace
    : SwappedGemms<Config,
                   decltype(cute::make_tiled_mma(
                       cute::GMMA::ss_op_selector<Element, Element, float, ShapeQk<Config>>())),
                   decltype(cute::make_tiled_mma(cute::GMMA::ss_op_selector<
                                                 Element, Element, float, ShapePv<Config>,
                                                 cute::GMMA::Major::MN, cute::GMMA::Major::K>()))> {
  __device__ static auto operand_k(const std::uint8_t* tile_k) {
    const auto mma = typename TilesInPlace::MmaQk{}.get_slice(0);
    using Layout = decltype(cute::tile_to_shape(
        typename TilesInPlace::AtomK{},
        cute::Shape<typename TilesInPlace::Keys, typename TilesInPlace::D>{}));
    return mma.make_fragment_A(
        mma.partition_A(TilesInPlace::tile(reinterpret_cast<const Element*>(tile_k), Layout{})));
  }
  __device__ static auto operand_v(const std::uint8_t* tile_v) {
    const auto mma = typename TilesInPlace::MmaPv{}.get_slice(0);
    using Atom = cute::GMMA::Layout_MN_SW128_Atom<Element>;
    using Layout = decltype(cute::tile_to_shape(
        Atom{}, cute::Shape<typename TilesInPlace::Dv, typename TilesInPlace::Keys>{},
        cute::Step<cute::_2, cute::_1>{}));
    return mma.make_fragment_A(
        mma.partition_A(TilesInPlace::tile(reinterpret_cast<const Element*>(tile_v), Layout{})));
  }

  template <typename TensorS>
  __device__ static void compute_scores(const std::uint8_t* tile_k, const Element* q, TensorS& s) {
    wgmma<false>(typename TilesInPlace::MmaQk{}, operand_k(tile_k), TilesInPlace::operand_q(q), s);
  }
  template <typename TensorO>
  __device__ static void compute_values(const std::uint8_t* tile_v, const Element* p, TensorO& o) {
    wgmma<true>(typename TilesInPlace::MmaPv{}, operand_v(tile_v), TilesInPlace::operand_p(p), o);
  }

  // The column of O that row i of this thread's accumulator is, where rows 0 and 1 are eight apart
  // in the tile of the GEMM, and each further pair 64.
  __device__ static int column(int warp, int g, int i) {
    return i / 2 * 64 + 16 * warp + i % 2 * 8 + g;
  }
};

// Of E4M3 tiles, in registers: each thread has words of four bytes, of K four columns of a key, of
// V two columns of two keys. The even and the odd bytes of a word go to different places of A. So
// of every 16 columns of K, the GEMM takes the even ones first, and Q has them in that order
// (QueryChunks). Of O, a thread's rows are neighbouring columns.
template <typename Config, typename Element = typename Config::Element>
struct WidenedTiles
    : SwappedGemms<Config,
                   decltype(cute::make_tiled_mma(
                       cute::GMMA::rs_op_selector<Element, Element, float, ShapeQk<Config>>())),
                   decltype(cute::make_tiled_mma(
                       cute::GMMA::rs_op_selector<Element, Element, float, ShapePv<Config>>()))> {
  template <typename TensorS>
  __device__ static void compute_scores(const std::uint8_t* tile_k, const Element* q, TensorS& s) {
    const auto operand_q = WidenedTiles::operand_q(q);
    add_half<0>(typename WidenedTiles::MmaQk{}, operand_k<0>(tile_k), operand_q, s);
    add_half<1>(typename WidenedTiles::MmaQk{}, operand_k<1>(tile_k), operand_q, s);
  }
  template <typename TensorO>
  __device__ static void compute_values(const std::uint8_t* tile_v, const Element* p, TensorO& o) {
    const auto operand_p = WidenedTiles::operand_p(p);
    add_half<0, true>(typename WidenedTiles::MmaPv{}, operand_v<0>(tile_v), operand_p, o);
    add_half<1>(typename WidenedTiles::MmaPv{}, operand_v<1>(tile_v), operand_p, o);
  }

  __device__ static int column(int warp, int g, int i) {
    return i / 2 * 64 + 16 * warp + 2 * g + i % 2;
  }

 private:
  // Half of K's columns of this warp's keys.
  template <int kHalf>
  __device__ static auto operand_k(const std::uint8_t* tile_k) {
    using Tile = typename Config::TileK;
    constexpr int kChunks = Tile::kChunks / 2;
    const MatrixPlaces<Tile::kRow_bytes, true> places;
    const std::uint32_t tile = cute::cast_smem_ptr_to_uint(tile_k);
    auto a = registers_a<typename WidenedTiles::MmaQk, typename WidenedTiles::Keys,
                         cute::Int<Config::C.head_dim / 2>>();
    auto words = cute::recast<std::uint32_t>(a);
    const int row0 = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
#pragma unroll
    for (int chunk = 0; chunk < kChunks; chunk += 2) {
      std::uint32_t r[4];
      load_matrices(r, places.at(tile, row0, kHalf * kChunks + chunk));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int first = (chunk + i / 2) * 4 + i % 2;
        words(first) = widen_even<Element>(r[i]);
        words(first + 2) = widen_odd<Element>(r[i]);
      }
    }
    return a;
  }

  // V of half of the keys.
  template <int kHalf>
  __device__ static auto operand_v(const std::uint8_t* tile_v) {
    using Tile = typename Config::TileV;
    const int lane = threadIdx.x % 32;
    const int warp = static_cast<int>(threadIdx.x) / 32 % 4;
    auto a = registers_a<typename WidenedTiles::MmaPv, typename WidenedTiles::Dv,
                         cute::Int<kDecodeTileKeys / 2>>();
    auto words = cute::recast<std::uint32_t>(a);
    constexpr int kBlocks = Config::C.value_dim / 64;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const std::uint32_t rows =
          cute::cast_smem_ptr_to_uint(tile_v + Tile::offset(lane, 4 * block + warp));
      std::uint32_t r[4];
      load_transposed(r, rows + kHalf * 32 * Tile::kBox_bytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int first = (i / 2 * kBlocks + block) * 4 + i % 2 * 2;
        words(first) = widen_even<Element>(r[i]);
        words(first + 1) = widen_odd<Element>(r[i]);
      }
    }
    return a;
  }

  // C (+)= A B over half kHalf of the steps of K. tA has that half alone, and so takes half of the
  // registers of a whole A.
  template <int kHalf, bool kAccumulate = kHalf == 1, typename Mma, typename TensorA,
            typename TensorB, typename TensorC>
  __device__ static void add_half(Mma mma, const TensorA& tA, const TensorB& tB, TensorC& tC) {
    using namespace cute;
    constexpr int kSteps = decltype(size<2>(tA))::value;
    wgmma<kAccumulate>(mma, tA, domain_offset(make_coord(_0{}, _0{}, Int<kHalf * kSteps>{}), tB),
                       tC);
  }

  template <typename Mma, typename M, typename K>
  __device__ static auto registers_a() {
    return cute::make_tensor<Element>(cute::partition_shape_A(Mma{}, cute::Shape<M, K>{}));
  }
};

template <typename Config>
using SwappedTiles =
    cute::conditional_t<Config::kIsE4m3, WidenedTiles<Config>, TilesInPlace<Config>>;

// Stores 8 x 8 matrices of 16-bit values, transposed: lane i has the address of what is column
// i % 8 of matrix i / 8 in the registers.
template <int kCount>
__device__ __forceinline__ void store_transposed(std::uint32_t address,
                                                 const std::uint32_t (&r)[kCount]) {
  if constexpr (kCount == 4) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
  } else {
    static_assert(kCount == 2);
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address),
                 "r"(r[0]), "r"(r[1])
                 : "memory");
  }
}

// ---- Q

// 16 columns of a row of Q, of elements T, in the order in which the GEMM takes K's.
template <bool kIsE4m3, typename T>
struct QueryChunks {
  uint4 low;
  uint4 high;

  __device__ explicit QueryChunks(const T* columns) {
    const auto* const q = reinterpret_cast<const uint4*>(columns);
    const uint4 a = __ldg(q);
    if constexpr (sizeof(T) == 1) {
      const uint2 words[] = {widen_queries(a.x), widen_queries(a.y), widen_queries(a.z),
                             widen_queries(a.w)};
      low = {words[0].x, words[1].x, words[2].x, words[3].x};
      high = {words[0].y, words[1].y, words[2].y, words[3].y};
    } else if constexpr (kIsE4m3) {
      const uint4 b = __ldg(q + 1);
      low = {even(a.x, a.y), even(a.z, a.w), even(b.x, b.y), even(b.z, b.w)};
      high = {odd(a.x, a.y), odd(a.z, a.w), odd(b.x, b.y), odd(b.z, b.w)};
    } else {
      low = a;
      high = __ldg(q + 1);
    }
  }

 private:
  __device__ static std::uint32_t even(std::uint32_t a, std::uint32_t b) {
    return __byte_perm(a, b, 0x5410);
  }
  __device__ static std::uint32_t odd(std::uint32_t a, std::uint32_t b) {
    return __byte_perm(a, b, 0x7632);
  }
};

// Brings the part's rows of Q, of elements T, to L2. A warp calls it.
template <typename T, typename Config>
__device__ __forceinline__ void prefetch_query_rows_of(const Params& p, const Launch& launch,
                                                       const Part& part) {
  constexpr int kLine = 128 / sizeof(T);  // elements
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < Config::kRows; i += 32) {
    const Row row = row_of(part, launch.shape, i);
    if (row.exists) {
      const T* const q = row_pointer<const T>(p.q, p.q_stride, part.sequence, row.token, row.head);
#pragma unroll
      for (int column = 0; column < Config::C.head_dim; column += kLine) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(q + column));
      }
    }
  }
}

// Brings the part's rows of Q, of elements T, to SMEM. kThreads neighbouring threads call it. In
// place of a row that does not exist, the tile's first one is computed, and never stored.
template <typename T, typename Config, int kThreads>
__device__ __forceinline__ void load_query_rows_of(typename Config::Element* target,
                                                   const Params& p, const Launch& launch,
                                                   const Part& part) {
  constexpr int kGroups = Config::C.head_dim / 16;  // of a row, of 16 columns
  constexpr int kBox_bytes = Config::kRows * 128;   // 64 columns
#pragma unroll(kThreads == 32 ? 4 : 1)
  for (int i = static_cast<int>(threadIdx.x) % kThreads; i < Config::kRows * kGroups;
       i += kThreads) {
    const int index = i / kGroups;
    const int group = i % kGroups;
    Row row = row_of(part, launch.shape, index);
    row = row.exists ? row : row_of(part, launch.shape, 0);
    const QueryChunks<Config::kIsE4m3, T> chunks(
        row_pointer<const T>(p.q, p.q_stride, part.sequence, row.token, row.head) + 16 * group);
    char* const line = reinterpret_cast<char*>(target) + group / 4 * kBox_bytes + index * 128;
    const int chunk = group % 4 * 2;
    *reinterpret_cast<uint4*>(line + (chunk ^ index % 8) * 16) = chunks.low;
    *reinterpret_cast<uint4*>(line + ((chunk + 1) ^ index % 8) * 16) = chunks.high;
  }
}

// The bytes of a row tile's queries of 16 bits.
template <typename Config>
__device__ int query_bytes(const Launch& launch) {
  return launch.shape.tile_heads * launch.shape.tile_tokens * Config::C.head_dim * 2;
}

// Brings them by TMA, where the GEMM takes them as they are. Rows that do not exist are a
// neighbour's, or what has lain there before. One thread calls it.
template <typename Config>
__device__ __forceinline__ void load_query_boxes(typename Config::Element* target, TmaBarrier& full,
                                                 const CUtensorMap& map, const Launch& launch,
                                                 const Part& part, bool is_packed) {
  constexpr auto kHint = static_cast<std::uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  constexpr int kBoxColumns = 64;
  const Row first = row_of(part, launch.shape, 0);
#pragma unroll
  for (int column = 0; column < Config::C.head_dim; column += kBoxColumns) {
    cute::SM90_TMA_LOAD_4D::copy(&map, reinterpret_cast<std::uint64_t*>(&full), kHint,
                                 target + column * Config::kRows, column, first.head, first.token,
                                 is_packed ? 0 : part.sequence);
  }
}

// prefetch_query_rows() and load_query_rows() serve E4M3 caches, where the GEMM takes Q's columns
// in another order than memory has them.
template <typename Config>
__device__ void prefetch_query_rows(const Params& p, const Launch& launch, const Part& part) {
  if (has_e4m3_queries<Config>(p)) {
    prefetch_query_rows_of<std::uint8_t, Config>(p, launch, part);
  } else {
    prefetch_query_rows_of<typename Config::Element, Config>(p, launch, part);
  }
}
template <typename Config, int kThreads>
__device__ void load_query_rows(typename Config::Element* target, const Params& p,
                                const Launch& launch, const Part& part) {
  if (has_e4m3_queries<Config>(p)) {
    load_query_rows_of<std::uint8_t, Config, kThreads>(target, p, launch, part);
  } else {
    load_query_rows_of<typename Config::Element, Config, kThreads>(target, p, launch, part);
  }
}

}  // namespace decode
}  // namespace tilewright::cuda
