// The schedule of a launch over dense or packed sequences.
#pragma once

#include <cstdint>

#include "common/ceil_div.hpp"
#include "cuda/attention/blocks/flash_tiles.cuh"
#include "cuda/common/epoch.hpp"
#include "ops/attention/params.hpp"

namespace tilewright::cuda {

struct DenseSchedule {
  FlashSchedule schedule;
  std::int64_t most_tiles;  // that there can be, if packed
};

// Plan and Config are those of a kernel like flash. `ticket` is where tickets are counted; null:
// tiles are taken by number.
template <typename Plan, typename Config>
DenseSchedule dense_schedule(const AttentionParams& p, const Plan& plan, const Config& config,
                             void* ticket) {
  FlashSchedule schedule{};
  schedule.row_tiles = ceil_div(p.q_len, config.br() * config.cluster);
  schedule.section = plan.section;
  schedule.group = p.heads / p.kv_heads;
  schedule.splits = plan.splits;
  schedule.split_tiles = plan.split_len / config.bc;
  std::int64_t most_tiles = (std::int64_t{schedule.row_tiles} + p.batch) * p.heads;
  if (p.packed_q.cu_seqlens == nullptr) {
    schedule.heads = p.batch * p.heads;
    schedule.tiles = schedule.row_tiles * schedule.heads * schedule.splits;
    most_tiles = schedule.tiles;
  }
  if (ticket != nullptr) {
    schedule.tickets = {.word = static_cast<std::uint64_t*>(ticket), .epoch = next_epoch()};
  }
  return {.schedule = schedule, .most_tiles = most_tiles};
}

}  // namespace tilewright::cuda
