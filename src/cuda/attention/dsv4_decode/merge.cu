// Merges what dsv4_decode and dsv4_spread have left of items that several blocks computed (kernel
// dsv4_merge). The FMAs are those of one block, in the same order, so that the bits are the same.
//
// Whole parts, one slot each, follow each other in an item, and shared ones, with a slot for each
// pair that was left, behind them. A chain is the slots of all whole parts, or of one shared part.
// Slots are merged chain by chain, and then the chains.
//
// Tiles      64 rows of an item, and some of O's columns, which a warpgroup has as the accumulator
//            of a WGMMA: so they lie in the workspace. kGroups warpgroups share the chains.
// SMEM       Factors of each slot and chain for each row; O of the chains, if there are several.
// Registers  At most 128; with 128 columns, for E4M3, at most 255.
//
//   all threads         ask for O of the first slots
//   a thread a row      statistics of a chain's slots -> factors | sync | chains -> factors, ends
//   a warpgroup         O of its chains | sync | the first one: O of all chains, and stores it
//
// Code       It comes from memory, as the results do, so that less of it is faster. The first
//            blocks may be there before the launch ahead has ended: they execute it once for an
//            item without rows.
// Worklog    docs/worklog/dsv4-decode.md
#include <algorithm>

#include "cuda/attention/dsv4_decode/launch.cuh"
#include "cuda/attention/dsv4_decode/results.cuh"
#include "cuda/common/launch_order.cuh"

namespace tilewright::cuda {
namespace dsv4 {
namespace {

// Some slots, `step` apart. Their factors lie from number `factors` on.
struct Chain {
  int first;
  int count;
  int step;
  int factors;
};

// The chains of an item.
class Chains {
 public:
  __device__ Chains(const Launch& launch, const ItemRecord& its, int item)
      : launch_(launch), its_(its), item_(item) {
    while (whole_ < its.parts && !launch.is_shared(whole_ * launch.items + item)) {
      ++whole_;
    }
    count_ = its.parts - whole_ + (whole_ > 0);
  }

  __device__ int count() const { return count_; }
  __device__ Chain operator[](int chain) const {
    const int part = chain + whole_ - (whole_ > 0);
    if (part < whole_) {
      return {item_, whole_, launch_.items, 0};
    }
    const int all = pairs_of_tiles(its_.tiles);
    const int pairs = first_pair(part + 1, its_.parts, all) - first_pair(part, its_.parts, all);
    return {launch_.shared_slot(part * launch_.items + item_),
            1 + pairs - merged_pairs(pairs, launch_.shares, launch_.pair_slots), 1,
            whole_ + (part - whole_) * launch_.pair_slots};
  }

 private:
  const Launch& launch_;
  const ItemRecord& its_;
  int item_;
  int whole_ = 0;  // parts
  int count_;
};

// Of a row: what O is multiplied by before a slot or a chain is added, and what that is.
using Factors = float2;

// SMEM of a block, for items of so many chains and slots.
struct Sizes {
  int chains;
  int slots;
};

template <int kColumns>
struct Storage {
  float* sinks;     // (kRows)
  float* ends;      // (kRows): factors of O at last
  Factors* slots;   // (slots, kRows)
  Factors* chains;  // (chains, kRows)
  RowSoFar* rows;   // (chains, kRows)
  float4* o;        // (chains, kColumns / 8, kWarpgroupThreads), if there are several

  static constexpr std::size_t kO_bytes = kRows * kColumns * sizeof(float);

  static constexpr std::size_t bytes(const Sizes& sizes) {
    const std::size_t row_bytes = 2 * sizeof(float) + sizes.slots * sizeof(Factors) +
                                  sizes.chains * (sizeof(Factors) + sizeof(RowSoFar));
    return kRows * row_bytes + (sizes.chains > 1 ? sizes.chains * kO_bytes : 0);
  }
  __device__ Storage(char* smem, const Sizes& sizes)
      : sinks(reinterpret_cast<float*>(smem)),
        ends(sinks + kRows),
        slots(reinterpret_cast<Factors*>(ends + kRows)),
        chains(slots + sizes.slots * kRows),
        rows(reinterpret_cast<RowSoFar*>(chains + sizes.chains * kRows)),
        o(reinterpret_cast<float4*>(rows + sizes.chains * kRows)) {}

  // A thread's piece of eight columns of a chain's O.
  __device__ float4& piece(int chain, int i) const {
    return o[(chain * (kColumns / 8) + i) * kWarpgroupThreads + this_thread() % kWarpgroupThreads];
  }
};

// Appends statistics, and tells the factors of O.
__device__ __forceinline__ Factors append(RowSoFar& row, const RowSoFar& later) {
  const Appended appended(row, later);
  row = appended.row;
  return {appended.before, appended.behind};
}

// Finds the factors of a chain's slots for a row, and its statistics.
__device__ __forceinline__ RowSoFar merge_rows(const Launch& launch, const Chain& chain, int row,
                                               Factors* factors) {
  constexpr int kAtOnce = 8;
  RowSoFar so_far;
#pragma unroll 1
  for (int i = 0; i < chain.count; i += kAtOnce) {
    float4 its[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (i + k < chain.count) {
        const int slot = chain.first + (i + k) * chain.step;
        its[k] = __ldcg(&launch.statistics[std::int64_t{slot} * kRows + row]);
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (i + k < chain.count) {
        factors[(chain.factors + i + k) * kRows + row] =
            append(so_far, {its[k].x, its[k].y, its[k].z, its[k].w});
      }
    }
  }
  return so_far;
}

// Of a thread's columns, which are its share of an accumulator.
template <int kColumns>
struct Columns {
  typename Output<kColumns>::Fragment tOrO;

  // Nothing, to which even -0 may be added.
  __device__ __forceinline__ void clear() { cute::fill(tOrO, -0.0f); }

  // Appends a piece of eight columns under the factors of both rows.
  __device__ __forceinline__ void append(int i, const float4& x, const Factors& row0,
                                         const Factors& row1) {
    tOrO(4 * i) = fmaf(x.x, row0.y, tOrO(4 * i) * row0.x);
    tOrO(4 * i + 1) = fmaf(x.y, row0.y, tOrO(4 * i + 1) * row0.x);
    tOrO(4 * i + 2) = fmaf(x.z, row1.y, tOrO(4 * i + 2) * row1.x);
    tOrO(4 * i + 3) = fmaf(x.w, row1.y, tOrO(4 * i + 3) * row1.x);
  }
};

__device__ ItemRecord record_of(const Launch& launch, int item) {
  static_assert(sizeof(ItemRecord) == 2 * sizeof(int4));
  const auto* const words = reinterpret_cast<const int4*>(launch.records + item);
  const int4 first = __ldcg(words);
  const int4 second = __ldcg(words + 1);
  return {first.x, first.y, first.z, first.w, second.x, second.y, second.z};
}

// Where items are one unit each, only the last ones may be shared.
__host__ __device__ int first_item(int most_parts, int whole_units) {
  return most_parts > 1 ? 0 : whole_units;
}

// A block, which merges kColumns columns of an item.
template <int kColumns, int kGroups>
class Merger {
 public:
  __device__ Merger(const Params& p, const Launch& launch, const Sizes& sizes, char* smem)
      : p_(p), launch_(launch), shared_(smem, sizes) {}

  __device__ __forceinline__ void run(const ItemRecord& its, int item, int column0) {
    const Chains chains(launch_, its, item);
    const bool has_rows = warp_has_rows(launch_);
    const bool are_several = chains.count() > 1;
    Unit unit;
    unit.request = its.request;
    unit.token0 = its.token0;
    unit.tokens = its.tokens;
    unit.head0 = its.head0;
    unit.heads = its.heads;
    const int row0 = row_of_thread(0);
    const int row1 = row_of_thread(1);
    const int group = this_thread() / kWarpgroupThreads;
    Columns<kColumns> columns;
    columns.clear();
    Chain chain{};
    int number = group;
    int slot = 0;  // of the chain
    bool is_first = true;
#pragma unroll 1
    do {
      if (slot == 0 && number < chains.count()) {
        chain = chains[number];
      }
      float4 x[kAtOnce][kColumns / 8];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (has_rows && slot + k < chain.count) {
          const float4* const pieces =
              pieces_of(launch_, chain.first + (slot + k) * chain.step, column0);
#pragma unroll
          for (int i = 0; i < kColumns / 8; ++i) {
            x[k][i] = __ldcg(pieces + i * kWarpgroupThreads);
          }
        }
      }
      if (is_first) {
        find_factors(chains, unit, column0);
        is_first = false;
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        if (has_rows && slot + k < chain.count) {
          const Factors* const factors = shared_.slots + (chain.factors + slot + k) * kRows;
          const Factors factors0 = factors[row0];
          const Factors factors1 = factors[row1];
#pragma unroll
          for (int i = 0; i < kColumns / 8; ++i) {
            columns.append(i, x[k][i], factors0, factors1);
          }
        }
      }
      slot += kAtOnce;
      if (slot >= chain.count) {
        if (are_several && number < chains.count()) {
          put(number, columns);
          columns.clear();
        }
        number += kGroups;
        slot = 0;
      }
    } while (number < chains.count());
    __syncthreads();  // the ends and all chains are there
    if (group == 0) {
      if (are_several) {
        merge_chains(chains.count(), row0, row1, columns);
      }
      auto rO = by_rows<typename Output<kColumns>::Mma>(columns.tOrO);
      store_columns<kColumns, 0>(p_, unit, column0, rO, row_of(unit, launch_.shape, row0),
                                 shared_.ends[row0]);
      store_columns<kColumns, 1>(p_, unit, column0, rO, row_of(unit, launch_.shape, row1),
                                 shared_.ends[row1]);
    }
  }

 private:
  // Slots whose O is under way at once.
  static constexpr int kAtOnce = std::max(std::min(64 / kColumns, 8), 1);

  // Finds all factors, and stores the statistics of rows.
  __device__ __forceinline__ void find_factors(const Chains& chains, const Unit& unit,
                                               int column0) const {
    const int count = chains.count();
#pragma unroll 1
    for (int i = this_thread(); i < count * kRows; i += kGroups * kWarpgroupThreads) {
      shared_.rows[i] = merge_rows(launch_, chains[i / kRows], i % kRows, shared_.slots);
    }
    __syncthreads();
    const int row = this_thread();
    if (row >= kRows) {
      return;
    }
    RowSoFar so_far = shared_.rows[row];
    shared_.chains[row] = {0.0f, 1.0f};
#pragma unroll 1
    for (int chain = 1; chain < count; ++chain) {
      const int i = chain * kRows + row;
      shared_.chains[i] = append(so_far, shared_.rows[i]);
    }
    const Row of_unit = row_of(unit, launch_.shape, row);
    if (p_.sinks.logits != nullptr && of_unit.exists) {
      shared_.sinks[row] = __ldg(&p_.sinks.logits[of_unit.head * p_.sinks.stride]);
    }
    const RowEnd end(p_, launch_, unit, shared_.sinks, so_far, row);
    shared_.ends[row] = end.factor;
    if (column0 == 0 && end.row.exists) {
      store_statistics(p_, unit, end);
    }
  }

  __device__ __forceinline__ void put(int chain, const Columns<kColumns>& columns) const {
    const auto& o = columns.tOrO;
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      shared_.piece(chain, i) = {o(4 * i), o(4 * i + 1), o(4 * i + 2), o(4 * i + 3)};
    }
  }

  __device__ __forceinline__ void merge_chains(int count, int row0, int row1,
                                               Columns<kColumns>& columns) const {
#pragma unroll 1
    for (int chain = 0; chain < count; ++chain) {
      const Factors* const factors = shared_.chains + chain * kRows;
      const Factors factors0 = factors[row0];
      const Factors factors1 = factors[row1];
#pragma unroll
      for (int i = 0; i < kColumns / 8; ++i) {
        columns.append(i, shared_.piece(chain, i), factors0, factors1);
      }
    }
  }

  const Params& p_;
  const Launch& launch_;
  Storage<kColumns> shared_;
};

// The blocks of an SM, at least.
template <int kColumns, int kGroups>
inline constexpr int kBlocksOfSm = kGroups == 1 && kColumns <= 32 ? 4 : 1;

// A block merges a strip of kColumns columns of an item, if there is something to merge.
template <int kColumns, int kGroups>
__global__ void __launch_bounds__(kGroups* kWarpgroupThreads, kBlocksOfSm<kColumns, kGroups>)
    dsv4_merge(const __grid_constant__ Params p, const __grid_constant__ Launch launch,
               const __grid_constant__ Sizes sizes, int early) {
  constexpr int kStrips = kDims / kColumns;
  extern __shared__ __align__(16) char smem[];
  let_next_launch_start();
  const int block = static_cast<int>(blockIdx.x);
  const int item = first_item(launch.most_parts, launch.whole_units) + block / kStrips;
  Merger<kColumns, kGroups> merger(p, launch, sizes, smem);
#pragma unroll 1
  for (int pass = block < early ? 0 : 1; pass < 2; ++pass) {
    ItemRecord its{.parts = launch.most_parts, .tiles = launch.most_parts * 2 * kPairTiles};
    if (pass > 0) {
      wait_for_launch_before();
      its = record_of(launch, item);
      if (its.tokens == 0 || (its.parts == 1 && !launch.is_shared(item))) {
        return;
      }
    }
    merger.run(its, item, block % kStrips * kColumns);
    __syncthreads();  // SMEM has been read
  }
}

template <int kColumns, int kGroups>
void launch_merge(const Params& p, const Dsv4Details& details, int items, const Sizes& sizes,
                  Stream stream) {
  constexpr std::size_t kMostSmem_bytes = 227 * 1024;
  allow_smem<dsv4_merge<kColumns, kGroups>>(kMostSmem_bytes);
  launch_with<dsv4_merge<kColumns, kGroups>>(
      {.may_start_early = true}, static_cast<unsigned>(items * (kDims / kColumns)),
      kGroups * kWarpgroupThreads, Storage<kColumns>::bytes(sizes), stream, p,
      launch_of(p, details), sizes, 2 * details.plan.free_sms);
}

}  // namespace
}  // namespace dsv4

void launch_dsv4_merge(const Dsv4AttentionParams& p, const Dsv4Details& details, Stream stream) {
  const Dsv4Plan& plan = details.plan;
  const auto all = static_cast<int>(plan.items);
  const int items = all - dsv4::first_item(plan.most_parts, plan.deal.whole);
  const int shared = plan.deal.shares > 1
                         ? ceil_div(static_cast<int>(plan.units()) - plan.deal.whole, all)
                         : 0;  // parts of an item
  const dsv4::Sizes sizes{.chains = std::min(shared + 1, plan.most_parts),
                          .slots = plan.most_parts + shared * plan.pair_slots};
  if (p.o_scale != nullptr) {
    dsv4::launch_merge<dsv4::kOutputColumns, 1>(p, details, items, sizes, stream);
  } else if (sizes.chains > 1 && items <= 2) {
    dsv4::launch_merge<8, 4>(p, details, items, sizes, stream);
  } else if (sizes.chains > 1 && items <= 8) {
    dsv4::launch_merge<16, 4>(p, details, items, sizes, stream);
  } else if (items <= 8) {
    dsv4::launch_merge<8, 1>(p, details, items, sizes, stream);
  } else {
    dsv4::launch_merge<32, 1>(p, details, items, sizes, stream);
  }
}

}  // namespace tilewright::cuda
