// How a consumer of dsv4_decode goes through its block's jobs, in either form.
#pragma once

#include "cuda/attention/dsv4_decode/storage.cuh"
#include "cuda/common/launch_order.cuh"

namespace tilewright::cuda::dsv4 {

// `Derived` derives from it, and has
//   void begin(Output& o)                    O and its statistics over no keys
//   void run_pairs(const Job&, Output& o)    adds a job's pairs, or leaves them to others
//   void finish(const Job&, Output& o)       stores a unit's results, or leaves them
//   enum State                               the bits of its state, among them
//     kOddUnit       have an odd number of units had keys here?
//     kLeavesPairs   does the block leave the results of each pair of the unit?
//     kIsSecond      is this the second consumer? It is the highest bit
// All of the state lies in one register, and a uniform one, as the compiler sees that it is the
// same in all lanes.
template <Form kForm, typename Output, typename Derived>
class JobConsumer {
 public:
  __device__ JobConsumer(SharedStorage<kForm>& shared, const Launch& launch)
      : shared_(shared),
        launch_(launch),
        state_((uniform(this_thread() / kWarpgroupThreads) - producers(kForm)) *
               Derived::kIsSecond) {}

  __device__ __forceinline__ void run() {
    Output o;
    for (int count = 0;; ++count) {
      if (count == 1) {
        wait_for_launch_before();
      }
      const Job* job = &next_job(count);
      if (uniform(job->unit.index) >= launch_.units) {
        return;
      }
      derived().begin(o);
#pragma unroll 1
      for (;;) {
        derived().run_pairs(*job, o);
        if (job->is_last) {
          break;
        }
        arrive(shared_.job_empty[JobAt(count).place]);
        job = &next_job(++count);
      }
      derived().finish(*job, o);
      arrive(shared_.job_empty[JobAt(count).place]);
    }
  }

 protected:
  __device__ bool leaves_pairs() const { return (state_ & Derived::kLeavesPairs) != 0; }
  // The consumer, 0 or 1, and its tile of a pair.
  __device__ int number() const { return static_cast<int>(state_ / Derived::kIsSecond); }

  // Begins a job. If it is a unit's first one and has keys, Q is there then.
  __device__ __forceinline__ void enter(const Job& job, bool has_keys) {
    if (job.is_first) {
      state_ =
          (state_ & ~Derived::kLeavesPairs) | (uniform(job.share) > 0 ? Derived::kLeavesPairs : 0);
      if (has_keys) {
        shared_.q_full.wait((state_ & Derived::kOddUnit) != 0);
        state_ ^= Derived::kOddUnit;
      }
    }
  }

  SharedStorage<kForm>& shared_;
  const Launch& launch_;
  std::uint32_t state_;  // of State

 private:
  __device__ Derived& derived() { return static_cast<Derived&>(*this); }

  // Waits for the block's job `count`.
  __device__ const Job& next_job(int count) {
    const JobAt at(count);
    shared_.job_full[at.place].wait(at.phase);
    return shared_.jobs[at.place];
  }
};

}  // namespace tilewright::cuda::dsv4
