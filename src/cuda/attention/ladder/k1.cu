// K1: naive attention, the baseline of the ladder.
//
// K1 makes three launches, one for each line of the definition. S (B, H, Nq, Nk) lies between them
// in global memory, as FP32:
//
//   scores    S = scale * Q K^T, masked     one thread per element of S, blocks of 16 x 16
//   softmax   P = softmax(S) in place, LSE  one thread per row, blocks of 256 rows
//   output    O = P V                       one thread per element of O, blocks of 16 x 16
//
// Source    the definition of attention; S, P and O are named as in the FlashAttention paper.
// Tiles     none: threads share data through the caches alone.
// SMEM      none.
// Registers as many as the compiler takes; nothing depends on their number.
// Traffic   24 bytes of GMEM per score. S is written, then read three times by `softmax`, which
//           writes P in its place; `output` reads P. Workspace and time both grow with Nq * Nk.
// Limits    D = 64 or 128, as the registry says (the code takes any); S must fit in memory.
// Worklog   docs/worklog/k1.md
#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/row_pointer.cuh"
#include "cuda/attention/blocks/tile_walk.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/common/numeric.cuh"
#include "ops/attention/kernels.hpp"

namespace tilewright::cuda {
namespace k1 {

using bf16 = __nv_bfloat16;

constexpr int kSide = 16;
constexpr int kSoftmaxRows = 256;

// The row of S for query `row` of head `bh`, counted over all batches.
__device__ float* score_row(const AttentionParams& p, int bh, int row) {
  return static_cast<float*>(p.workspace) +
         (static_cast<std::int64_t>(bh) * p.q_len + row) * p.kv_len;
}

__global__ void __launch_bounds__(kSide* kSide)
    scores(const __grid_constant__ AttentionParams p, int column_tiles, int row_tiles) {
  const int key = blockIdx.x % column_tiles * kSide + threadIdx.x % kSide;
  const int row = blockIdx.x / column_tiles % row_tiles * kSide + threadIdx.x / kSide;
  const int bh = blockIdx.x / column_tiles / row_tiles;
  if (key >= p.kv_len || row >= p.q_len) {
    return;
  }
  float s = kMinusInf;
  if (key < KeyRange(p).limit(row)) {
    const int batch = bh / p.heads;
    const int head = bh % p.heads;
    const auto* const q = row_pointer<const bf16>(p.q, p.q_stride, batch, row, head);
    const auto* const k =
        row_pointer<const bf16>(p.k, p.k_stride, batch, key, head / (p.heads / p.kv_heads));
    float dot = 0.0f;
    for (int d = 0; d < p.head_dim; ++d) {
      dot += __bfloat162float(q[d]) * __bfloat162float(k[d]);
    }
    s = p.scale * dot;
  }
  score_row(p, bh, row)[key] = s;
}

__global__ void __launch_bounds__(kSoftmaxRows) softmax(const __grid_constant__ AttentionParams p) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kSoftmaxRows + threadIdx.x;
  if (index >= static_cast<std::int64_t>(p.batch) * p.heads * p.q_len) {
    return;
  }
  const int row = static_cast<int>(index % p.q_len);
  const int bh = static_cast<int>(index / p.q_len);
  const int seen = KeyRange(p).limit(row);
  float* const s = score_row(p, bh, row);

  float max = kMinusInf;
  for (int j = 0; j < seen; ++j) {
    max = fmaxf(max, s[j]);
  }
  const float reference = max == kMinusInf ? 0.0f : max;
  float sum = 0.0f;
  for (int j = 0; j < seen; ++j) {
    sum += exp2_approx((s[j] - reference) * kLog2e);
  }
  const float inverse_sum = sum == 0.0f ? 0.0f : 1.0f / sum;
  for (int j = 0; j < seen; ++j) {
    s[j] = exp2_approx((s[j] - reference) * kLog2e) * inverse_sum;
  }
  if (p.lse != nullptr) {
    *row_pointer<float>(p.lse, p.lse_stride, bh / p.heads, row, bh % p.heads) =
        log_sum_exp(max, sum, 1.0f);
  }
}

__global__ void __launch_bounds__(kSide* kSide)
    output(const __grid_constant__ AttentionParams p, int column_tiles, int row_tiles) {
  const int column = blockIdx.x % column_tiles * kSide + threadIdx.x % kSide;
  const int row = blockIdx.x / column_tiles % row_tiles * kSide + threadIdx.x / kSide;
  const int bh = blockIdx.x / column_tiles / row_tiles;
  if (column >= p.head_dim || row >= p.q_len) {
    return;
  }
  const int batch = bh / p.heads;
  const int head = bh % p.heads;
  const auto* const v =
      row_pointer<const bf16>(p.v, p.v_stride, batch, 0, head / (p.heads / p.kv_heads)) + column;
  const float* const probability = score_row(p, bh, row);
  const int seen = KeyRange(p).limit(row);
  float o = 0.0f;
  for (int j = 0; j < seen; ++j) {
    o += probability[j] * __bfloat162float(v[j * p.v_stride.seq]);
  }
  row_pointer<bf16>(p.o, p.o_stride, batch, row, head)[column] = __float2bfloat16(o);
}

}  // namespace k1

void launch_k1(const AttentionParams& p, Stream stream) {
  const int row_tiles = ceil_div(p.q_len, k1::kSide);
  const int key_tiles = ceil_div(p.kv_len, k1::kSide);
  const int column_tiles = ceil_div(p.head_dim, k1::kSide);
  const auto bh = static_cast<unsigned>(p.batch * p.heads);
  const auto rows = static_cast<std::int64_t>(bh) * p.q_len;
  constexpr int kThreads = k1::kSide * k1::kSide;

  launch<k1::scores>(bh * row_tiles * key_tiles, kThreads, 0, stream, p, key_tiles, row_tiles);
  launch<k1::softmax>(static_cast<unsigned>((rows + k1::kSoftmaxRows - 1) / k1::kSoftmaxRows),
                      k1::kSoftmaxRows, 0, stream, p);
  launch<k1::output>(bh * row_tiles * column_tiles, kThreads, 0, stream, p, column_tiles,
                     row_tiles);
}

}  // namespace tilewright::cuda
