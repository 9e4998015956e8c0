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
  dsv4::Deal deal;
  int cluster;        // blocks that share a unit, and merge its pairs or spread it; 1: no such
  int blocks;         // of the launch
  int free_sms;       // beside those
  int pair_slots;     // of a unit that is shared or spread
  bool spreads;       // spread.cuh
  bool are_twins;     // twin_produce.cuh: two blocks bring the keys of two items together
  bool has_few_rows;  // consume_few.cuh: an item has few rows

  std::int64_t units() const { return items * most_parts; }
  // Slots for results of parts.
  std::int64_t part_slots() const { return most_parts > 1 ? units() : 0; }
  // Is there something to merge, by a launch of its own (merge.cu)?
  bool merges() const { return most_parts > 1 || (deal.shares > 1 && cluster == 1); }
};

// What lies where in the workspace, in bytes from its start. It is empty where one block computes
// each item.
struct Dsv4Workspace {
  std::size_t o;           // (slots) of 64 x 512 FP32
  std::size_t statistics;  // (slots) of 64 x 4 FP32
  std::size_t items;       // (items) dsv4::ItemRecord
  std::size_t bytes;
};

// What a Plan of this kernel has.
struct Dsv4Details {
  Dsv4Plan plan;
  Dsv4Workspace at;
};

// The configs: who computes the pairs of a unit.
struct Dsv4Config {
  enum class Blocks {
    one,      // a block
    several,  // blocks that leave results for another launch, where units are too few for a round
    cluster,  // blocks that merge their results at once, where an item is one unit
    spread,   // a cluster whose blocks share O's columns (spread.cuh)
  };
  Blocks blocks;
  int cluster = 1;
  int at_once = 0;  // clusters on 132 SMs, at most as many as an H200 runs (39 of three)
};
inline constexpr int kDsv4ClusterSms = 132;
inline constexpr std::array<Dsv4Config, 7> kDsv4Configs = {
    {{Dsv4Config::Blocks::one},
     {Dsv4Config::Blocks::several},
     {Dsv4Config::Blocks::cluster, 2, 66},
     {Dsv4Config::Blocks::cluster, 3, 36},
     {Dsv4Config::Blocks::cluster, 4, 30},
     {Dsv4Config::Blocks::cluster, 5, 22},
     {Dsv4Config::Blocks::spread, dsv4::kSpreadBlocks, 15}}};

// The config for `problem` on a GPU of `sms` SMs, as an index.
int best_dsv4_config(const Dsv4AttentionProblem& problem, int sms);

// Where a config cannot run a problem, the plan is one for the config before.
Dsv4Details plan_dsv4_decode(const Dsv4AttentionProblem& problem, int sms, int config);

}  // namespace tilewright::cuda
