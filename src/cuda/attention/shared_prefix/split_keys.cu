// split_keys: where sequences that share prefixes have their keys, for two passes of attention.
//
//   each sequence: its group | where its rows begin in the prefix pass, its prefix, its keys
//   each row of q: to its place in (Hk, T * G, D), token by token for each KV head
//
// Source    none: it prepares what a cascade of two levels reads.
// Tiles     A thread takes a sequence, and looks at all groups; a warp takes a row of q.
// SMEM      none.
// Registers as many as the compiler takes.
// Limits    D is a multiple of 8, up to 256; rows of q are aligned to 16 bytes. split.hpp says what
//           values out of range count as.
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

// What the tokens' and heads' numbers are divided by.
struct Divisors {
  Divisor heads;
  Divisor group;  // query heads that share a KV head
  Divisor q_len;
};

// Copies rows of q, a warp each, so that those of a KV head lie one after the other.
__device__ void pack(const Params& p, uint4* target, const Divisors& by) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int vectors = p.head_dim / kVector;
  const int tokens = all_tokens(p);
  const int rows = tokens * p.heads;
  const int warps = static_cast<int>(gridDim.x) * kWarps;
  for (int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
       row < rows; row += warps) {
    const int token = row / by.heads;
    const int head = row - token * p.heads;
    const int batch = is_packed(p) ? 0 : token / by.q_len;
    const std::int64_t offset = p.q_stride.offset(batch, token - batch * p.q_len, head);
    const PrefixRow its = prefix_row(token, head, by.group);
    const std::int64_t place = std::int64_t{its.kv_head} * tokens * int{by.group} + its.row;
    if (lane < vectors) {
      const auto* const source = static_cast<const std::uint16_t*>(p.q) + offset;
      target[place * vectors + lane] = reinterpret_cast<const uint4*>(source)[lane];
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    split_keys(const __grid_constant__ Params p, const __grid_constant__ SplitLengths lengths,
               uint4* prefix_q, const __grid_constant__ Divisors by) {
  let_next_launch_start();
  wait_for_launch_before();
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (thread <= p.batch) {
    split(p, lengths, thread);
  }
  pack(p, prefix_q, by);
}

}  // namespace split_keys

void launch_split_keys(const AttentionWithKvCacheParams& p, const SplitLengths& lengths,
                       void* prefix_q, Stream stream) {
  using namespace split_keys;
  const int of_rows = ceil_div(all_tokens(p) * p.heads, kWarps);
  const int blocks = std::max(ceil_div(p.batch + 1, kThreads),
                              std::min(of_rows, kBlocksPerSm * p.multiprocessors));
  launch_with<split_keys::split_keys>({.may_start_early = true}, blocks, kThreads, 0, stream, p,
                                      lengths, static_cast<uint4*>(prefix_q),
                                      Divisors{.heads = Divisor(p.heads),
                                               .group = Divisor(p.heads / p.kv_heads),
                                               .q_len = Divisor(p.q_len)});
}

}  // namespace tilewright::cuda
