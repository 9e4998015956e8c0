// A chain of WGMMAs that all add to one accumulator: what `tilewright probe-accumulator` looks at.
//
// A block makes one sum. Every row of A holds the first factors of its products and every row of B
// the second ones, so that all 64 x N elements of the accumulator are that sum. An instruction is
// issued while the one before may still run: between them the accumulator stays where it is.
//
// Source    PTX ISA, wgmma.mma_async.
// Tiles     64 x N, K = 32 bytes of elements for each instruction; 128 threads.
// SMEM      sA 64 x K, sB N x K, for each of up to 16 instructions: 10 KB each at N = 256.
// Layouts   K-major, swizzled by 32 bytes: one row of an atom is one instruction's K.
// Limits    The factors must be values of the elements' format.
#include <cutlass/arch/barrier.h>

#include <cute/tensor.hpp>
#include <utility>

#include "cli/wgmma_chain_kernel.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/wgmma.cuh"

namespace tilewright::cli {
namespace {

using namespace cute;

template <typename Element, int kN>
struct Tile {
  using K = Int<32 / sizeof(Element)>;
  using Mma = decltype(make_tiled_mma(
      GMMA::ss_op_selector<Element, Element, float, Shape<_64, Int<kN>, K>>()));
  using Atom = GMMA::Layout_K_SW32_Atom<Element>;
  using LayoutA = decltype(tile_to_shape(Atom{}, Shape<_64, K, Int<kMostInstructions>>{}));
  using LayoutB = decltype(tile_to_shape(Atom{}, Shape<Int<kN>, K, Int<kMostInstructions>>{}));

  static constexpr int kSmem_bytes = (cosize_v<LayoutA> + cosize_v<LayoutB>)*sizeof(Element);
};

// Writes the factors of all instructions into each row.
template <typename TensorS>
__device__ void fill_rows(TensorS& sX, const float* x, int instructions) {
  using Element = typename TensorS::value_type;
  constexpr int kRows = decltype(size<0>(sX))::value;
  constexpr int kK = decltype(size<1>(sX))::value;
  for (int i = threadIdx.x; i < instructions * kRows * kK; i += blockDim.x) {
    const int k = i % kK;
    const int instruction = i / (kRows * kK);
    sX(i / kK % kRows, k, instruction) = static_cast<Element>(x[instruction * kK + k]);
  }
}

template <typename Element, int kN>
__global__ void __launch_bounds__(cuda::kWarpgroupThreads) wgmma_chain(WgmmaChainParams p) {
  using T = Tile<Element, kN>;
  extern __shared__ __align__(1024) std::uint8_t smem[];
  auto* const a = reinterpret_cast<Element*>(smem);
  Tensor sA = make_tensor(make_smem_ptr(a), typename T::LayoutA{});  // (64, K, instructions)
  Tensor sB = make_tensor(make_smem_ptr(a + cosize_v<typename T::LayoutA>),
                          typename T::LayoutB{});  // (N, K, instructions)
  const int sum = blockIdx.x;
  const int k = p.instructions * typename T::K{};
  fill_rows(sA, p.x + sum * k, p.instructions);
  fill_rows(sB, p.y + sum * k, p.instructions);
  cutlass::arch::fence_view_async_shared();  // WGMMA reads what was written
  __syncthreads();

  const typename T::Mma mma;
  const auto thread_mma = mma.get_thread_slice(threadIdx.x);
  const Tensor tA = thread_mma.partition_fragment_A(sA);         // (MMA, 1, 1, instructions)
  const Tensor tB = thread_mma.partition_fragment_B(sB);         // (MMA, 1, 1, instructions)
  Tensor tC = partition_fragment_C(mma, Shape<_64, Int<kN>>{});  // (MMA, 1, 1)
  fill(tC, p.start[sum]);
#pragma unroll 1
  for (int i = 0; i < p.instructions; ++i) {
    cuda::wgmma_issue<true>(mma, tA(_, _, _, i), tB(_, _, _, i), tC);
    warpgroup_wait<1>();
  }
  cuda::wgmma_wait<0>(tC);

  if (threadIdx.x == 0) {
    p.sum[sum] = tC(0);
  }
  __syncthreads();
  const float first = p.sum[sum];
  bool differs = false;
#pragma unroll
  for (int i = 0; i < size(tC); ++i) {
    differs |= __float_as_uint(tC(i)) != __float_as_uint(first);
  }
  differs = __syncthreads_or(differs);
  if (threadIdx.x == 0) {
    p.differs[sum] = differs ? 1 : 0;
  }
}

template <typename Element, int kN>
void launch(const WgmmaChainParams& params, int sums, Stream stream) {
  cuda::launch<wgmma_chain<Element, kN>>(dim3(sums), cuda::kWarpgroupThreads,
                                         Tile<Element, kN>::kSmem_bytes, stream, params);
}

// Launches the kernel of the chain's N.
template <typename Element, std::size_t... kIndices>
void launch_columns(int n, const WgmmaChainParams& params, int sums, Stream stream,
                    std::index_sequence<kIndices...>) {
  const auto launch_if = [&]<int kN>() {
    return n == kN && (launch<Element, kN>(params, sums, stream), true);
  };
  (launch_if.template operator()<kWgmmaColumns[kIndices]>() || ...);
}

}  // namespace

void launch_wgmma_chains(const WgmmaChain& chain, const WgmmaChainParams& params, int sums,
                         Stream stream) {
  const auto every_n = std::make_index_sequence<kWgmmaColumns.size()>{};
  if (chain.dtype == DType::e4m3) {
    launch_columns<float_e4m3_t>(chain.n, params, sums, stream, every_n);
  } else {
    launch_columns<bfloat16_t>(chain.n, params, sums, stream, every_n);
  }
}

}  // namespace tilewright::cli
