// DeepSeek-V4's attention, one to eight new tokens a request (kernel dsv4_decode).
//
// K and V are one tensor: a key tile in SMEM is K for Q K^T and V for P V. Rows of the caches, of
// four formats, are widened to BF16 on their way there, by the producers' own loads: each row goes
// through registers once. Key tiles come in pairs. Each consumer computes the scores of one tile of
// the pair, and half of O's columns over both.
//
// Source    DeepSeek-V4 technical report, section 2.3; the division of labour between two consumers
//           is that of FlashMLA's description.
// Tiles     64 rows ((token, head) pairs), 64 keys, 512 dims; 512 threads; one block an SM.
// SMEM      Q 64 KB, a pair of key tiles 128 KB, P of both 16 KB: 208 KB (+ 15 KB).
// Registers 192 for a thread of a consumer, of which 128 hold O, and 32 S or P V of 64 columns;
//           64 for one of a producer, of which 32 hold rows on their way.
//
//   producer 0   K0: quarters 0 1 2 3 | wait for each: K2 | ...
//   producer 1   K1: quarters 0 1 2 3 | wait for each: K3 | ...
//   consumer 0   S = Q K0^T | maxima | P0 | sync | 4 x: O_L += (P0 P1) (V0 V1) | S = Q K2^T | ...
//   consumer 1   S = Q K1^T | maxima | P1 | sync | 4 x: O_R += (P0 P1) (V0 V1) | S = Q K3^T | ...
//
// What P V of a pair gives is added to O by FMAs, under O's reference so far (softmax.cuh). So the
// pairs of a unit can be computed in any blocks. Where units are too few for a round of all blocks,
// several share each: the first one merges its own pairs, the others leave the results of each pair
// in the workspace. Then the blocks of a cluster, or another launch (merge.cu), merge all that in
// the pairs' order. The bits are the same. Where there are few pairs, spread.cuh has another way.
//
// Kernels without BF16 rows have two other forms, with the same bits. Where a token has more than
// 64 heads and no cluster shares a unit, two blocks of a cluster are twins: each widens half of the
// rows of both (twin_produce.cuh). Where an item has at most 16 rows, S and O are transposed, and
// consumers have so few registers that four warpgroups load and widen rows (few_produce.cuh,
// consume_few.cuh): 768 threads, 112 and 64 registers, 190 KB.
//
// Limits    BF16 q. A NaN code of E4M3 under a scale that is not NaN counts as 480.
// Worklog   docs/worklog/dsv4-decode.md
#pragma once

#include "cuda/attention/dsv4_decode/consume.cuh"
#include "cuda/attention/dsv4_decode/consume_few.cuh"
#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/common/launch_order.cuh"
#include "cuda/common/warp_roles.cuh"

namespace tilewright::cuda::dsv4 {

constexpr int threads(Form form) { return (producers(form) + kConsumers) * kWarpgroupThreads; }

// The producers: they find the block's jobs and load their keys.
template <int kFormats, Form kForm>
class Producer {
 public:
  __device__ Producer(SharedStorage<kForm>& shared, const Params& p, const Launch& launch)
      : shared_(shared), p_(p), launch_(launch) {}

  __device__ __forceinline__ void run(const CUtensorMap& map_q) {
    arrive(shared_.job_full[JobAt(0).place]);
    Job* job = &shared_.jobs[JobAt(1).place];
    int number = 1;
    for (;;) {
      const JobAt at(number);
      shared_.job_empty[at.place].wait(at.phase ^ 1);
      find(*job, shared_.jobs[(at.place + 1) % kJobs], number);
      wait_for_launch_before();
      if (uniform(job->unit.index) >= launch_.units) {
        arrive(shared_.job_full[at.place]);
        return;
      }
      ask_for_places<kThreads>(job->places, p_, launch_, job->unit, uniform(job->first_tile),
                               uniform(job->end_tile));
      copy_sink(*job, p_, launch_);
      // Q comes behind the places in memory's queue, since everything waits for those.
      if (this_thread() == kWarpgroupThreads && job->is_first && job->first_tile < job->end_tile) {
        shared_.q_empty.wait(job->q_loads & 1);
        load_q<rows_in_shared(kForm)>(shared_.sQ[0], shared_.q_full, job->unit, launch_, map_q);
      }
      __syncwarp();
      check_places<kThreads>(job->places, p_, launch_, job->unit, uniform(job->first_tile),
                             uniform(job->end_tile));
      sync_producers<kThreads>();  // the places are there
      arrive(shared_.job_full[at.place]);
      if constexpr (kForm == Form::twins) {
        produce_for_twins<kFormats>(KeyTile{shared_.keys}, p_, launch_, *job);
      } else if constexpr (kForm == Form::few) {
        produce_few<kFormats>(FewKeyTile{shared_.keys}, p_, launch_, *job);
      } else {
        produce<kFormats>(KeyTile{shared_.keys}, p_, launch_, *job);
      }
      number = uniform(job->number) + 1;
      job = &shared_.jobs[JobAt(number).place];
    }
  }

 private:
  static constexpr int kThreads = producers(kForm) * kWarpgroupThreads;

  // Finds the block's next job: a stretch of its share of the next unit, or of that of the job
  // before. All producers call it: warp 0 does it, and warp 1 executes the same code ahead of it
  // while the launch before may still run, which brings that to the SM's instruction caches.
  __device__ void find(Job& job, const Job& before, int number) const {
    const int warp = this_thread() / 32;
    const bool is_rehearsal = warp == 1;
    const bool is_first = before.is_last;
    if (is_first && (warp == 0 || (is_rehearsal && number == 1))) {
      find_unit_behind(is_rehearsal ? shared_.rehearsed : job.unit, p_, launch_, before.unit.index,
                       is_rehearsal ? Finding::rehearsal : Finding::search);
    }
    if (warp == 0) {
      if (!is_first) {
        copy_unit(job.unit, before.unit);
      }
      __syncwarp();
      if (this_thread() == 0) {
        job.number = number;
        job.is_first = is_first;
        share(job, launch_);
        if (!is_first) {
          job.first_tile = before.end_tile;
        }
        job.end_tile = min(job.first_tile + kStretchTiles, job.share_end);
        job.is_last = job.end_tile == job.share_end;
        job.first_pair = before.end_pair;
        job.end_pair = job.first_pair + pairs_of_tiles(job.end_tile - job.first_tile);
        job.q_loads = before.q_loads + (is_first && job.first_tile < job.end_tile);
      }
    }
    sync_producers<kThreads>();
  }

  SharedStorage<kForm>& shared_;
  const Params& p_;
  const Launch& launch_;
};

template <Form kForm>
using ConsumerOf = std::conditional_t<kForm == Form::few, FewConsumer, Consumer<kForm>>;

template <int kFormats, Form kForm>
__global__ void __launch_bounds__(threads(kForm), 1)
    dsv4_decode(const __grid_constant__ Params p, const __grid_constant__ CUtensorMap map_q,
                const __grid_constant__ Launch launch) {
  extern __shared__ __align__(1024) char smem[];
  auto& shared = *reinterpret_cast<SharedStorage<kForm>*>(smem);
  if (threadIdx.x == 0) {
    shared.init();
  } else if (threadIdx.x == 32) {
    write_empty_job(shared.jobs[0], launch);
  }
  if constexpr (kForm == Form::few) {
    shared.rows.init();
  }
  let_next_launch_start();
  if constexpr (kForm == Form::twins) {
    cute::cluster_arrive();
    cute::cluster_wait();
  } else {
    __syncthreads();  // the barriers and job 0 are there
  }
  const int warpgroup = cutlass::canonical_warp_group_idx();
  if (warpgroup < producers(kForm)) {
    cutlass::arch::warpgroup_reg_dealloc<64>();
    Producer<kFormats, kForm>(shared, p, launch).run(map_q);
  } else {
    cutlass::arch::warpgroup_reg_alloc<kForm == Form::few ? 112 : 192>();
    ConsumerOf<kForm>(shared, p, launch).run();
  }
  if constexpr (kForm == Form::twins) {  // none ends while the other may arrive at its barriers
    cute::cluster_arrive();
    cute::cluster_wait();
  }
}

template <int kFormats>
void launch_formats(const Params& p, const Dsv4Details& details, Stream stream) {
  const Dsv4Plan& plan = details.plan;
  const auto launch = [&](auto form) {
    launch_with<dsv4_decode<kFormats, form>>(
        {.cluster = form == Form::twins ? kTwins : plan.cluster, .may_start_early = true},
        plan.blocks, threads(form), sizeof(SharedStorage<form>), stream, p, map_of_q(p, plan.shape),
        launch_of(p, details));
  };
  if constexpr (!kDsv4Formats[kFormats].has(KvRowFormat::bf16)) {
    if (plan.are_twins) {
      return launch(std::integral_constant<Form, Form::twins>{});
    }
    if (plan.has_few_rows) {
      return launch(std::integral_constant<Form, Form::few>{});
    }
  }
  launch(std::integral_constant<Form, Form::wide>{});
}

}  // namespace tilewright::cuda::dsv4
