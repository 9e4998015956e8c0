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

// S^T and O^T of a tile, which a warpgroup computes and waits for. Values hold what load() brings
// of V: where it lies, its first bytes, or all of it widened. If kLoadsValuesEarly,
// compute_scores() calls meanwhile(), which loads them, while the tensor cores compute S^T; else
// they are loaded when the exponentials are there.
//   compute_scores(tile_k, q, s, meanwhile)   values.load(tile_v)   compute_values(values, p, o)

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

  static constexpr bool kLoadsValuesEarly = false;
  struct Values {
    const std::uint8_t* tile_v;

    __device__ void load(const std::uint8_t* tile) { tile_v = tile; }
  };

  template <typename TensorS, typename Meanwhile>
  __device__ static void compute_scores(const std::uint8_t* tile_k, const Element* q, TensorS& s,
                                        const Meanwhile&) {
    wgmma<false>(typename TilesInPlace::MmaQk{}, operand_k(tile_k), TilesInPlace::operand_q(q), s);
  }
  template <typename TensorO>
  __device__ static void compute_values(const Values& values, const Element* p, TensorO& o) {
    wgmma<true>(typename TilesInPlace::MmaPv{}, operand_v(values.tile_v),
                TilesInPlace::operand_p(p), o);
  }

  // The column of O that row i of this thread's accumulator is, where rows 0 and 1 are eight apart
  // in the tile of the GEMM, and each further pair 64.
  __device__ static int column(int warp, int g, int i) {
    return i / 2 * 64 + 16 * warp + i % 2 * 8 + g;
  }
};

// Of E4M3 tiles A is widened without the factor that belongs to it (widen_e4m3.cuh), which would
// take an instruction for two values. Of FP16's, 2^8, the scale makes up for, and what O is
// multiplied by at a part's end. BF16's, 2^120, would bring results out of FP32's range: there B,
// that is Q and P, has some of it. All are powers of two, so that no bit changes but in elements of
// O below 2^-85, which FP32 then has as subnormals, or as 0.
template <typename Config>
struct SwappedFactors {
  using Element = typename Config::Element;
  static constexpr bool kIsShared = Config::kIsE4m3 && cute::is_same_v<Element, cute::bfloat16_t>;
  static constexpr int kAll_log2 = Config::kIsE4m3 ? kE4m3Factor_log2<Element> : 0;
  static constexpr int kOfQ_log2 = kIsShared ? 60 : 0;  // |Q| is below 2^67
  static constexpr int kOfP_log2 = kIsShared ? 80 : 0;  // P, by descales of V's rows, below 2^47
  static constexpr float kOfScores = static_cast<float>(1ull << (kAll_log2 - kOfQ_log2));
  static constexpr float kOfO = static_cast<float>(1ull << (kAll_log2 - kOfP_log2));

  __device__ static uint4 of_q(const uint4& values) {
    return {of_q(values.x), of_q(values.y), of_q(values.z), of_q(values.w)};
  }
  __device__ static std::uint32_t of_p(std::uint32_t values) {
    return times_power_of_two<Element, kOfP_log2>(values);
  }

 private:
  __device__ static std::uint32_t of_q(std::uint32_t values) {
    return times_power_of_two<Element, kOfQ_log2>(values);
  }
};

// Of E4M3 tiles, in registers: each thread has words of four bytes, of K four columns of a key, of
// V two columns of two keys. The even and the odd bytes of a word go to different places of A. So
// of every 16 columns of K, the GEMM takes the even ones first, and Q has them in that order
// (QueryChunks). Of O, a thread's rows are neighbouring columns.
//
// A fragment of a tile is what one ldmatrix brings: of K 32 columns, of V 64 columns of 32 keys.
// While the tensor cores compute one, the next one is widened, and the one behind that is loaded.
template <typename Config, typename Element = typename Config::Element>
struct WidenedTiles
    : SwappedGemms<Config,
                   decltype(cute::make_tiled_mma(
                       cute::GMMA::rs_op_selector<Element, Element, float, ShapeQk<Config>>())),
                   decltype(cute::make_tiled_mma(
                       cute::GMMA::rs_op_selector<Element, Element, float, ShapePv<Config>>()))> {
 private:
  static constexpr int kFragmentK = 32;  // of the GEMM's K
  static constexpr int kFragmentsOfK = Config::C.head_dim / kFragmentK;
  static constexpr int kBlocks = Config::C.value_dim / 64;
  static constexpr int kFragmentsOfV = kDecodeTileKeys / kFragmentK * kBlocks;
  static constexpr bool kHasFewRows = Config::kRows < 32;  // and registers for a whole tile
  static constexpr int kBuffers = kHasFewRows ? kFragmentsOfK : 2;
  using FragmentA = decltype(cute::make_tensor<Element>(cute::partition_shape_A(
      typename WidenedTiles::MmaQk{}, cute::Shape<cute::_64, cute::Int<kFragmentK>>{})));

  struct CodedFragment {
    std::uint32_t words[4];
  };

 public:
  static constexpr bool kLoadsValuesEarly = kHasFewRows;
  struct Values {
    FragmentA fragments[kLoadsValuesEarly ? kFragmentsOfV : kBuffers];
    std::uint32_t address;  // of this lane's row of fragment 0
    CodedFragment next;     // the first one that is not widened yet

    __device__ void load(const std::uint8_t* tile_v) {
      address = address_in_v(tile_v);
      next = fragment_of_v(address, 0);
      if constexpr (kLoadsValuesEarly) {
#pragma unroll
        for (int i = 0; i < kFragmentsOfV; ++i) {
          widen(i, fragments[i]);
        }
      }
    }
    // Widens fragment i, whose words are there, and asks for those of the fragment behind it.
    __device__ void widen(int i, FragmentA& fragment) {
      const CodedFragment coded = next;
      if (i + 1 < kFragmentsOfV) {
        next = fragment_of_v(address, i + 1);
      }
      fragment = widened<1>(coded);
    }
  };

  template <typename TensorS, typename Meanwhile>
  __device__ static void compute_scores(const std::uint8_t* tile_k, const Element* q, TensorS& s,
                                        const Meanwhile& meanwhile) {
    const auto operand_q = WidenedTiles::operand_q(q);
    FragmentA fragments[kBuffers];
    CodedFragment next = fragment_of_k(tile_k, 0);
#pragma unroll
    for (int i = 0; i < kFragmentsOfK; ++i) {
      const CodedFragment coded = next;
      if (i + 1 < kFragmentsOfK) {
        next = fragment_of_k(tile_k, i + 1);
      }
      if (i >= kBuffers) {
        cute::warpgroup_wait<kBuffers - 1>();
      }
      FragmentA& fragment = fragments[i % kBuffers];
      fragment = widened<2>(coded);
      issue(typename WidenedTiles::MmaQk{}, i > 0, fragment, operand_q, i, s);
    }
    meanwhile();
    wgmma_wait<0>(s);
  }

  template <typename TensorO>
  __device__ static void compute_values(Values& values, const Element* p, TensorO& o) {
    using namespace cute;
    const auto operand_p = WidenedTiles::operand_p(p);
#pragma unroll
    for (int i = 0; i < kFragmentsOfV; ++i) {
      FragmentA& fragment = values.fragments[kLoadsValuesEarly ? i : i % kBuffers];
      if constexpr (!kLoadsValuesEarly) {
        if (i >= kBuffers) {
          warpgroup_wait<kBuffers - 1>();
        }
        values.widen(i, fragment);
      }
      auto of_block = make_tensor(o(_, i % kBlocks, _).data(),
                                  make_layout(layout<0>(o), Layout<_1>{}, layout<2>(o)));
      issue(typename WidenedTiles::MmaPv{}, true, fragment, operand_p, i / kBlocks, of_block);
    }
    wgmma_wait<0>(o);
  }

  __device__ static int column(int warp, int g, int i) {
    return i / 2 * 64 + 16 * warp + 2 * g + i % 2;
  }

 private:
  // Fragment i of K: 32 columns of this warp's keys.
  __device__ static CodedFragment fragment_of_k(const std::uint8_t* tile_k, int i) {
    const MatrixPlaces<Config::TileK::kRow_bytes, true> places;
    const int row0 = static_cast<int>(threadIdx.x) / 32 % 4 * 16;
    CodedFragment fragment;
    load_matrices(fragment.words, places.at(cute::cast_smem_ptr_to_uint(tile_k), row0, 2 * i));
    return fragment;
  }

  // Fragment i of V: of 32 keys, this warp's 16 columns of 64. `address` is that of this lane's row
  // of fragment 0.
  __device__ static CodedFragment fragment_of_v(std::uint32_t address, int i) {
    constexpr int kBlock_bytes = 64;
    CodedFragment fragment;
    load_transposed(fragment.words, (address ^ i % kBlocks * kBlock_bytes) +
                                        i / kBlocks * kFragmentK * Config::TileV::kBox_bytes);
    return fragment;
  }
  // It is found anew in each tile: no register keeps what follows from the thread's index.
  __device__ static std::uint32_t address_in_v(const std::uint8_t* tile_v) {
    static_assert(Config::TileV::kBoxes == 1);
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return cute::cast_smem_ptr_to_uint(tile_v) +
           Config::TileV::offset(thread % 32, thread / 32 % 4);
  }

  // The words of A that four words of bytes become. The odd bytes' are kApart behind the even
  // ones'.
  template <int kApart>
  __device__ static FragmentA widened(const CodedFragment& coded) {
    FragmentA fragment;
    auto words = cute::recast<std::uint32_t>(fragment);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int even = i / 2 * 4 + i % 2 * (2 / kApart);
      words(even) = widen_without_factor<Element>(spread<0, 2>(coded.words[i]));
      words(even + kApart) = widen_without_factor<Element>(spread<1, 3>(coded.words[i]));
    }
    return fragment;
  }

  // Issues C (+)= A B over fragment i of K.
  template <typename Mma, typename TensorB, typename TensorC>
  __device__ static void issue(Mma mma, bool accumulate, const FragmentA& a, const TensorB& tB,
                               int i, TensorC& tC) {
    using namespace cute;
    constexpr int kSteps = decltype(size<2>(a))::value;
    wgmma_issue_if(accumulate, mma, a, domain_offset(make_coord(_0{}, _0{}, i * kSteps), tB), tC);
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
    using Factors = SwappedFactors<Config>;
    *reinterpret_cast<uint4*>(line + (chunk ^ index % 8) * 16) = Factors::of_q(chunks.low);
    *reinterpret_cast<uint4*>(line + ((chunk + 1) ^ index % 8) * 16) = Factors::of_q(chunks.high);
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
