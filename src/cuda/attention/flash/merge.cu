// Merges the splits of an attention: each has un-normalised O, m and l over its own keys.
//
//   m' = max m_i, with the sink    l' = sum l_i exp(m_i - m')    O' = sum O_i exp(m_i - m')
//
// Source    FlashAttention-2 paper, section 3.1; FlashDecoding.
// Tiles     A warp computes a row; a lane has every 32nd pair of its columns.
// Limits    Each split is read once. Splits are summed in their order, so that runs are bit-equal.
#include "cuda/attention/flash/launch.hpp"
#include "cuda/attention/flash/store_rows.cuh"
#include "cuda/common/launch.cuh"

namespace tilewright::cuda {
namespace flash {

constexpr int kRowsPerBlock = 4;

template <typename Element>
__global__ void __launch_bounds__(32 * kRowsPerBlock)
    merge(const __grid_constant__ AttentionParams p, const __grid_constant__ AttentionParams parts,
          int splits) {
  const int row_index = static_cast<int>(blockIdx.x) * kRowsPerBlock + threadIdx.x / 32;
  if (row_index >= p.batch * p.q_len * p.heads) {
    return;
  }
  const int head = row_index % p.heads;
  const int row = row_index / p.heads % p.q_len;
  const int batch = row_index / p.heads / p.q_len;
  const int lane = threadIdx.x % 32;
  const auto part_max = [&](int part) {
    return *row_pointer<const float>(parts.row_max, parts.row_max_stride, part * p.batch + batch,
                                     row, head);
  };

  float m = kMinusInf;
  for (int part = 0; part < splits; ++part) {
    m = fmaxf(m, part_max(part));
  }
  const float reference = m == kMinusInf ? 0.0f : m;
  const auto weight = [&](int part) { return exp2_approx((part_max(part) - reference) * kLog2e); };
  float l = 0.0f;
  for (int part = 0; part < splits; ++part) {
    l += weight(part) * *row_pointer<const float>(parts.row_sum, parts.row_sum_stride,
                                                  part * p.batch + batch, row, head);
  }
  const RowResult result = row_result(p, head, m, l);
  if (lane == 0) {
    store_statistics(p, batch, row, head, result);
  }

  const bool is_normalized = p.row_max == nullptr;
  const float factor = !is_normalized     ? result.rescale
                       : result.l == 0.0f ? 0.0f
                                          : result.rescale / result.l;
  for (int column = 2 * lane; column < p.value_dim; column += 64) {
    float2 o{};
    for (int part = 0; part < splits; ++part) {
      const float2 term = *reinterpret_cast<const float2*>(
          row_pointer<const float>(parts.o, parts.o_stride, part * p.batch + batch, row, head) +
          column);
      o.x = fmaf(weight(part), term.x, o.x);
      o.y = fmaf(weight(part), term.y, o.y);
    }
    o = {o.x * factor, o.y * factor};
    if (is_normalized) {
      auto* const out = row_pointer<Element>(p.o, p.o_stride, batch, row, head) + column;
      *reinterpret_cast<std::uint32_t*>(out) = pack_x2<Element>(o.x, o.y);
    } else {
      *reinterpret_cast<float2*>(row_pointer<float>(p.o, p.o_stride, batch, row, head) + column) =
          o;
    }
  }
}

}  // namespace flash

void launch_flash_merge(const AttentionParams& p, const AttentionParams& parts, int splits,
                        Stream stream) {
  const int blocks = ceil_div(p.batch * p.q_len * p.heads, flash::kRowsPerBlock);
  constexpr int kThreads = 32 * flash::kRowsPerBlock;
  if (p.dtype == DType::fp16) {
    launch<flash::merge<cute::half_t>>(blocks, kThreads, 0, stream, p, parts, splits);
  } else {
    launch<flash::merge<cute::bfloat16_t>>(blocks, kThreads, 0, stream, p, parts, splits);
  }
}

}  // namespace tilewright::cuda
