// SMEM of a block of dsv4_decode, and the forms of the kernel.
#pragma once

#include "cuda/attention/dsv4_decode/few_produce.cuh"
#include "cuda/attention/dsv4_decode/few_rows.cuh"

namespace tilewright::cuda::dsv4 {

// Who the consumers are, and whether blocks share the loading.
enum class Form {
  wide,   // 64 rows (consume.cuh)
  twins,  // the same, and two blocks load rows together (twin_produce.cuh)
  few,    // up to kFewRows rows, transposed (consume_few.cuh)
};

// Producers of a block, warpgroups.
constexpr int producers(Form form) { return form == Form::few ? 4 : kProducers; }

// The rows of Q and of P in SMEM.
constexpr int rows_in_shared(Form form) { return form == Form::few ? kFewRows : kRows; }

template <Form kForm>
struct SharedStorage {
  static constexpr int kBlock_values = rows_in_shared(kForm) * kBlockDims;

  alignas(1024) Element sQ[kBlocks][kBlock_values];
  Keys<kForm == Form::few ? kFewLocated : 1> keys;
  alignas(1024) Element sP[kPairTiles][kBlock_values];
  std::conditional_t<kForm == Form::few, FewExchange, TileRows[kPairTiles]> rows;
  Job jobs[kJobs];
  Unit rehearsed;  // which nobody reads
  TmaBarrier q_full;
  cutlass::arch::ClusterBarrier q_empty;
  cutlass::arch::ClusterBarrier job_full[kJobs];
  cutlass::arch::ClusterBarrier job_empty[kJobs];

  __device__ void init() {
    constexpr int kWarps = 4;  // of a warpgroup
    constexpr int kReading = kConsumers * kConsumerWarps;
    q_full.init(1);
    q_empty.init(kReading);
    keys.init(producers(kForm) / kPairTiles * kWarps,
              (kForm == Form::twins ? kTwins : 1) * kReading);
    for (int place = 0; place < kJobs; ++place) {
      job_full[place].init(producers(kForm) * kWarps);
      job_empty[place].init(kReading);
    }
    cutlass::arch::fence_barrier_init();
  }
};
static_assert(sizeof(SharedStorage<Form::wide>) <= 227 * 1024);
static_assert(sizeof(SharedStorage<Form::few>) <= 227 * 1024);

}  // namespace tilewright::cuda::dsv4
