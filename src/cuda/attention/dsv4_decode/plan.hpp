// How the kernel dsv4_decode runs a problem: decided on the host, from shapes and the number of
// SMs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cuda/attention/dsv4_decode/schedule.hpp"
#include "tilewright/dsv4_attention_kernels.hpp"

namespace tilewright::cuda {

struct Dsv4Plan {
  dsv4::ItemShape shape;
  std::int64_t items;
  int most_parts;  // of an item, as far as shapes tell
  int cluster;     // blocks that share a part
  int blocks;      // of the launch
  int pair_slots;  // of a part, for what its cluster's blocks leave each other; without clusters 1
  bool spreads;    // spread.cuh: the cluster's blocks share O's columns, and exchange P
  bool are_twins;  // twin_produce.cuh: two blocks bring the keys of two items together

  // Slots for results of parts.
  int part_slots() const { return most_parts > 1 ? static_cast<int>(items) * most_parts : 0; }
};

// What lies where in the workspace, in bytes from its start. Without parts and clusters there is
// none.
struct Dsv4Workspace {
  std::size_t o;           // (slots) of 64 x 512 FP32
  std::size_t statistics;  // (slots) of 64 x 4 FP32
  std::size_t counters;    // (items, cluster) 8 bytes each
  std::size_t bytes;
};

// What a Plan of this kernel has.
struct Dsv4Details {
  Dsv4Plan plan;
  Dsv4Workspace at;
};

// The configs: the blocks of a cluster, how many clusters an H200, with 132 SMs, runs at once, and
// whether they spread a part (spread.cuh) or share its pairs (dsv4_decode.cuh).
struct Dsv4Cluster {
  int blocks;
  int at_once;
  bool spreads = false;
};
inline constexpr int kDsv4ClusterSms = 132;
inline constexpr std::array<Dsv4Cluster, 7> kDsv4Clusters = {
    {{1, 132}, {2, 66}, {3, 40}, {4, 30}, {5, 22}, {8, 15}, {8, 15, true}}};

// The config for `problem` on a GPU of `sms` SMs, as an index.
int best_dsv4_config(const Dsv4AttentionProblem& problem, int sms);

Dsv4Details plan_dsv4_decode(const Dsv4AttentionProblem& problem, int sms, int config);

}  // namespace tilewright::cuda
