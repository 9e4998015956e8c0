// split_keys: where sequences that share prefixes have their keys, for two passes of attention.
//
//   each sequence: its group | where its tokens begin in the prefix pass, its prefix, its keys
//   each row of q: to its place in (T, H, D)                only if its tokens lie at no one stride
//
// Source    none: it prepares what a cascade of two levels reads.
// Tiles     A thread takes a sequence, and looks at all groups; a warp takes a row of q.
// SMEM      none.
// Registers as many as the compiler takes.
// Limits    D is a multiple of 8 (of E4M3, of 16), up to 256; rows of q are aligned to 16 bytes.
//           split.hpp says what values out of range count as.
#include <algorithm>

#include "common/ceil_div.hpp"
#include "common/divisor.hpp"
#include "cuda/attention/shared_prefix/launch.hpp"
#include "cuda/common/launch.cuh"
#include "cuda/common/launch_order.cuh"

namespace tilewright::cuda {
namespace split_keys {

using Params = AttentionWithKvCacheParams;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kVector = 8;       // elements of 16 bits
constexpr int kBlocksPerSm = 4;  // that copy q

// Copies rows of q, a warp each, so that they lie one after the other.
__device__ void pack(const Params& p, uint4* target, const Divisor& heads, const Divisor& q_len) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors = p.head_dim / kVector;
  const int rows = p.batch * p.q_len * p.heads;
  const int warps = static_cast<int>(gridDim.x) * kWarps;
  for (int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
       row < rows; row += warps) {
    const int token = row / heads;
    const int batch = token / q_len;
    const std::int64_t offset =
        p.q_stride.offset(batch, token - batch * q_len, row - token * heads);
    if (lane < vectors) {
      const auto* const source = static_cast<const std::uint16_t*>(p.q) + offset;
      target[std::int64_t{row} * vectors + lane] = reinterpret_cast<const uint4*>(source)[lane];
    }
  }
}

// Rows of E4M3 are copied as rows of half as many elements of 16 bits.
Params with_16_bits(Params p) {
  if (p.dtype == DType::e4m3) {
    p.head_dim /= 2;
    p.q_stride = {
        .batch = p.q_stride.batch / 2, .seq = p.q_stride.seq / 2, .head = p.q_stride.head / 2};
  }
  return p;
}

__global__ void __launch_bounds__(kThreads)
    split_keys(const __grid_constant__ Params p, const __grid_constant__ SplitLengths lengths,
               uint4* packed_q, const __grid_constant__ Divisor heads,
               const __grid_constant__ Divisor q_len) {
  let_next_launch_start();
  wait_for_launch_before();
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (thread <= p.batch) {
    split(p, lengths, thread);
  }
  if (packed_q != nullptr) {
    pack(p, packed_q, heads, q_len);
  }
}

}  // namespace split_keys

void launch_split_keys(const AttentionWithKvCacheParams& p, const SplitLengths& lengths,
                       void* packed_q, Stream stream) {
  using namespace split_keys;
  const int of_sequences = ceil_div(p.batch + 1, kThreads);
  const int blocks =
      packed_q == nullptr ? of_sequences : std::max(of_sequences, kBlocksPerSm * p.multiprocessors);
  launch_with<split_keys::split_keys>({.may_start_early = true}, blocks, kThreads, 0, stream,
                                      with_16_bits(p), lengths, static_cast<uint4*>(packed_q),
                                      Divisor(p.heads), Divisor(p.q_len));
}

}  // namespace tilewright::cuda
