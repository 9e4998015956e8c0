// merge_states: a thread takes eight columns of a row, in all of its parts.
//
//   m' = max over the parts' m, and the sink
//   for each batch of parts: load m, l, o | weights, l' and o' in the order of the parts
//   sink | o' times the factor --> to the output's type --> store; the first thread: statistics
//
// Source    tilewright/merge_states.hpp has the arithmetic, FlashAttention-2's paper its origin.
// Tiles     Threads are numbered along a row's vectors first, then heads, then tokens: where rows
//           lie one after the other, a warp reads whole lines of each part.
// Batches   of four parts, whose loads do not wait for each other.
// SMEM      none: the threads of a row each read its m and l, from the L1 cache but for the first.
// Registers as many as the compiler takes.
// Limits    Dv is a multiple of 8; each row of o and out is aligned to 16 bytes.
#include "common/ceil_div.hpp"
#include "common/merged_row.hpp"
#include "cuda/common/eight_values.cuh"
#include "cuda/common/launch.cuh"
#include "ops/merge_states/params.hpp"

namespace tilewright::cuda {
namespace merge_states {

constexpr int kThreads = 256;
constexpr int kVector = 8;  // columns
constexpr int kBatch = 4;   // parts

__device__ float sink_of(const MergeStatesParams& p, int head) {
  return p.sinks.logits != nullptr ? p.sinks.logits[head * p.sinks.stride] : kMinusInf;
}

__device__ float part_max(const MergeStatesParams& p, int part, int token, int head) {
  return p.m[p.m_stride.offset(part, token, head)];
}

// Adds parts [first, first + kBatch) to the sums. All loads come before all sums.
template <typename In>
__device__ void add_parts(const MergeStatesParams& p, int first, int token, int head,
                          const In* column, MergedRow& row, Float8& sum) {
  float m[kBatch];
  float l[kBatch];
  Float8 o[kBatch];
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    const int part = first + i;
    m[i] = part < p.parts ? part_max(p, part, token, head) : kMinusInf;
    l[i] = 1.0f;
    o[i] = {};
    if (!is_empty_part(m[i])) {
      if (p.l != nullptr) {
        l[i] = p.l[p.l_stride.offset(part, token, head)];
      }
      o[i] = load_eight(column + part * p.o_stride.batch);
    }
  }
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    if (is_empty_part(m[i])) {
      continue;
    }
    const float weight = part_weight(m[i], row.m);
    row.l = fmaf(weight, l[i], row.l);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      sum.value[j] = fmaf(weight, o[i].value[j], sum.value[j]);
    }
  }
}

__device__ void store_statistics(const MergeStatesParams& p, int token, int head,
                                 const MergedRow& row) {
  if (p.lse_out != nullptr) {
    p.lse_out[p.lse_stride.offset(0, token, head)] = lse_of(row);
  }
  if (p.statistics.max != nullptr) {
    p.statistics.max[p.statistics.max_stride.offset(0, token, head)] = row_max_of(row);
    p.statistics.sum[p.statistics.sum_stride.offset(0, token, head)] = row.l;
  }
}

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads)
    merge(const __grid_constant__ MergeStatesParams p, const __grid_constant__ Divisor vectors,
          const __grid_constant__ Divisor heads) {
  const unsigned thread = blockIdx.x * kThreads + threadIdx.x;
  if (thread >= static_cast<unsigned>(p.tokens) * heads * vectors) {
    return;
  }
  const int row_index = static_cast<int>(thread) / vectors;
  const int vector = static_cast<int>(thread) - row_index * vectors;
  const int token = row_index / heads;
  const int head = row_index - token * heads;

  MergedRow row;
  for (int part = 0; part < p.parts; ++part) {
    row.m = raised(row.m, part_max(p, part, token, head));
  }
  const float sink = sink_of(p, head);
  row.m = raised(row.m, sink);

  const In* const column =
      static_cast<const In*>(p.o) + p.o_stride.offset(0, token, head) + vector * kVector;
  Float8 sum{};
  for (int part = 0; part < p.parts; part += kBatch) {
    add_parts(p, part, token, head, column, row, sum);
  }
  if (!is_empty_part(sink)) {
    row.l += part_weight(sink, row.m);
  }
  if (vector == 0) {
    store_statistics(p, token, head, row);
  }
  const float factor = output_factor(row, p.statistics.max == nullptr);
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    sum.value[j] *= factor;
  }
  store_eight(sum,
              static_cast<Out*>(p.out) + p.out_stride.offset(0, token, head) + vector * kVector);
}

template <typename In, typename Out>
void launch_merge(const MergeStatesParams& p, Stream stream) {
  const int vectors = p.head_dim / kVector;
  const std::int64_t threads = std::int64_t{p.tokens} * p.heads * vectors;
  launch<merge<In, Out>>(static_cast<unsigned>(ceil_div(threads, kThreads)), kThreads, 0, stream, p,
                         Divisor(vectors), Divisor(p.heads));
}

}  // namespace merge_states

void launch_merge_states(const MergeStatesParams& p, Stream stream) {
  using merge_states::launch_merge;
  if (p.dtype == DType::fp16) {
    return launch_merge<__half, __half>(p, stream);
  }
  if (p.dtype == DType::bf16) {
    return launch_merge<__nv_bfloat16, __nv_bfloat16>(p, stream);
  }
  switch (p.out_dtype) {
    case DType::fp16:
      return launch_merge<float, __half>(p, stream);
    case DType::bf16:
      return launch_merge<float, __nv_bfloat16>(p, stream);
    default:
      return launch_merge<float, float>(p, stream);
  }
}

}  // namespace tilewright::cuda
