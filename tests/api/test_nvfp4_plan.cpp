// The plan of the kernel nvfp4: which worker computes what, and the workspace. All is host code.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "cuda/gemm/nvfp4/plan.hpp"
#include "ran.hpp"

namespace tilewright {
namespace {

using cuda::GemmSchedule;
using cuda::kNvfp4ConfigCount;
using cuda::kNvfp4Configs;
using cuda::Nvfp4Config;
using cuda::Nvfp4Plan;
using cuda::PartWalk;
using cuda::TileOrder;
using cuda::TilePart;

constexpr int kSms = 132;

DeviceInfo h200() {
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 0};
  device.compute_capability = 90;
  device.multiprocessors = kSms;
  return device;
}

GemmNvfp4Problem problem(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.m = m, .n = n, .k = k, .b_is_packed = true};
}

struct WorkersPart {
  int worker;
  TilePart part;
};

// All parts of each tile, in the order of their chunks.
std::map<int, std::vector<WorkersPart>> parts_by_tile(const GemmSchedule& schedule) {
  std::map<int, std::vector<WorkersPart>> parts;
  for (int worker = 0; worker < schedule.workers; ++worker) {
    PartWalk walk(schedule, worker);
    for (TilePart part{}; walk.next(schedule, part);) {
      parts[part.tile].push_back({worker, part});
    }
  }
  for (auto& [tile, all] : parts) {
    std::ranges::sort(all, {}, [](const WorkersPart& each) { return each.part.begin; });
  }
  return parts;
}

void expect_each_chunk_once(const GemmSchedule& schedule) {
  const auto parts = parts_by_tile(schedule);
  ASSERT_EQ(parts.size(), static_cast<std::size_t>(schedule.tiles));
  for (const auto& [tile, all] : parts) {
    int at = 0;
    for (const WorkersPart& each : all) {
      ASSERT_EQ(each.part.begin, at) << "tile " << tile;
      ASSERT_LT(each.part.begin, each.part.end) << "tile " << tile;
      at = each.part.end;
    }
    ASSERT_EQ(at, schedule.chunks) << "tile " << tile;
  }
}

// A tile's reducer has its last chunks, and the workers before it hand over one part each. The
// reducer counts on that when it adds up their slots.
void expect_reducers_find_all_parts(const GemmSchedule& schedule) {
  std::set<int> slots_in_use;
  for (const auto& [tile, all] : parts_by_tile(schedule)) {
    const int reducer = all.back().worker;
    if (all.size() > 1) {
      ASSERT_EQ(cuda::first_worker(schedule, tile, reducer), all.front().worker);
      ASSERT_EQ(reducer - all.front().worker, static_cast<int>(all.size()) - 1);
    }
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
      ASSERT_EQ(all[i].worker, all.front().worker + static_cast<int>(i));
      ASSERT_TRUE(slots_in_use.insert(all[i].worker).second) << "hands over twice";
    }
  }
}

// A worker never waits before it has handed over its sums: its part for another comes first.
void expect_no_wait_before_handing_over(const GemmSchedule& schedule) {
  for (int worker = 0; worker < schedule.workers; ++worker) {
    PartWalk walk(schedule, worker);
    bool may_wait = false;
    for (TilePart part{}; walk.next(schedule, part);) {
      ASSERT_FALSE(may_wait && part.end < schedule.chunks) << "worker " << worker;
      may_wait |= part.begin > 0 && part.end == schedule.chunks;
    }
  }
}

// No worker is much later than the others, and none hands over fewer chunks than kLeastPart.
void expect_fair_parts(const GemmSchedule& schedule, int lag) {
  const int chunks = schedule.stream_k_tiles * schedule.chunks;
  const int even = (chunks + schedule.workers - 1) / schedule.workers;
  const int delay = std::max(lag, GemmSchedule::kLeastLag) + GemmSchedule::kLeastPart;
  for (int worker = 0; worker < schedule.workers; ++worker) {
    EXPECT_LE(schedule.range_begin(worker + 1) - schedule.range_begin(worker), even + delay);
  }
  for (const auto& [tile, all] : parts_by_tile(schedule)) {
    for (std::size_t i = 0; i + 1 < all.size(); ++i) {
      EXPECT_GE(all[i].part.end - all[i].part.begin, GemmSchedule::kLeastPart) << "tile " << tile;
    }
  }
}

TEST(GemmSchedule, DealsChunksOutOnceAndInOrder) {
  std::mt19937 random(7);
  const auto between = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  test::Ran ran("schedules");
  for (int i = 0; i < 2000; ++i) {
    const int workers = between(1, kSms);
    const int chunks = between(1, 40);
    const int tiles = between(1, 300);
    const bool is_possible = tiles * chunks >= workers;
    const int stream_k_tiles = !is_possible || between(0, 3) == 0 ? 0
                               : tiles < workers                  ? tiles
                                                                  : tiles % workers + workers;
    if (stream_k_tiles > tiles) {
      continue;
    }
    ++ran;
    const int lag = between(0, 8);
    const GemmSchedule schedule(tiles, stream_k_tiles, chunks, workers, lag);
    SCOPED_TRACE(testing::Message() << tiles << " tiles, " << stream_k_tiles << " under stream-K, "
                                    << chunks << " chunks, " << workers << " workers, lag " << lag);
    expect_each_chunk_once(schedule);
    expect_reducers_find_all_parts(schedule);
    expect_no_wait_before_handing_over(schedule);
    expect_fair_parts(schedule, lag);
  }
}

// A worker that only hands over has fewer chunks, by the time that its sums take to arrive.
TEST(GemmSchedule, SumsArriveWhenTheReducerIsDone) {
  const GemmSchedule two_parts(64, 64, 56, kSms, 4);
  EXPECT_EQ(two_parts.range_begin(1), 26);
  EXPECT_EQ(two_parts.range_begin(2), 56);
  // A lag of 4 would cut tiles into more parts than a lag of 2.
  const GemmSchedule three_parts(56, 56, 128, kSms, 4);
  EXPECT_EQ(three_parts.range_begin(1), 54);
  EXPECT_EQ(three_parts.range_begin(2), 108);
  EXPECT_EQ(three_parts.range_begin(3), 164);
}

TEST(TileOrder, NumbersEveryTileOnce) {
  for (const TileOrder& order :
       {TileOrder{1, 1, 4, 8}, TileOrder{28, 1, 8, 8}, TileOrder{7, 5, 4, 8}, TileOrder{8, 3, 8, 8},
        TileOrder{3, 9, 16, 8}}) {
    constexpr int kBatch = 3;
    std::set<std::array<int, 3>> seen;
    for (int tile = 0; tile < kBatch * order.row_tiles * order.token_tiles; ++tile) {
      const TileOrder::Position at = order.at(tile);
      EXPECT_LT(at.row_tile, order.row_tiles);
      EXPECT_LT(at.token_tile, order.token_tiles);
      EXPECT_LT(at.batch, kBatch);
      seen.insert({at.batch, at.row_tile, at.token_tile});
    }
    EXPECT_EQ(seen.size(), static_cast<std::size_t>(kBatch * order.row_tiles * order.token_tiles));
  }
}

TEST(Nvfp4Plan, IsSoundForEveryProblemAndConfig) {
  test::Ran ran("schedules");
  for (const std::int64_t m : {1, 8, 9, 16, 33, 64, 65, 128, 129, 300, 1024, 16384}) {
    for (const auto& [n, k] : {std::pair{16, 16}, std::pair{336, 1040}, std::pair{4096, 7168},
                               std::pair{7168, 16384}, std::pair{57344, 8192}}) {
      for (const std::int64_t l : {1, 3}) {
        for (int index = -1; index < kNvfp4ConfigCount; ++index) {
          GemmNvfp4Problem p = problem(m, n, k);
          p.l = l;
          const Nvfp4Plan plan =
              index < 0 ? cuda::plan_nvfp4(p, kSms) : cuda::plan_nvfp4(p, kSms, index);
          const Nvfp4Config& config = kNvfp4Configs[plan.config];
          SCOPED_TRACE(testing::Message() << l << " x " << m << " x " << n << " x " << k
                                          << ", config " << plan.config);
          EXPECT_GE(std::int64_t{plan.order.row_tiles} * config.rows() * config.cluster, n);
          EXPECT_GE(std::int64_t{plan.order.token_tiles} * plan.order.tokens, m);
          EXPECT_LE(plan.order.tokens, config.tokens);
          EXPECT_EQ(plan.tiles, plan.order.row_tiles * plan.order.token_tiles * l);
          EXPECT_LE(plan.workers * config.cluster, kSms);
          EXPECT_GE(plan.workers, 1);
          if (plan.tiles * plan.chunks < 1 << 20) {
            ++ran;
            expect_each_chunk_once(plan.schedule());
            expect_reducers_find_all_parts(plan.schedule());
          }
        }
      }
    }
  }
}

TEST(Nvfp4Plan, TakesNoMoreWorkersThanAScheduleHasRoomFor) {
  const Nvfp4Plan plan = cuda::plan_nvfp4(problem(128, 7168, 16384), 200);
  EXPECT_EQ(plan.workers, GemmSchedule::kMaxWorkers);
  expect_each_chunk_once(plan.schedule());
}

TEST(Nvfp4Plan, BatchInvariantCallsHaveNoStreamK) {
  for (const std::int64_t m : {1, 16, 17, 100, 5000}) {
    GemmNvfp4Problem p = problem(m, 7168, 2048);
    p.batch_invariant = true;
    const Nvfp4Plan plan = cuda::plan_nvfp4(p, kSms);
    EXPECT_EQ(plan.stream_k_tiles, 0);
    EXPECT_EQ(kNvfp4Configs[plan.config].column_consumers, 1);
    EXPECT_EQ(cuda::nvfp4_workspace(p, plan).bytes, 0U);
  }
}

TEST(Nvfp4Plan, TilesAreUnderStreamKWhereThatSavesEnough) {
  const auto stream_k_tiles = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return cuda::plan_nvfp4(problem(m, n, k), kSms).stream_k_tiles;
  };
  EXPECT_EQ(stream_k_tiles(16, 7168, 2048), 0) << "0.3 of 2 chunks";
  EXPECT_GT(stream_k_tiles(16, 7168, 16384), 0) << "2.4 of 16 chunks";
  EXPECT_GT(stream_k_tiles(32, 7168, 16384), 0);
  EXPECT_GT(stream_k_tiles(16, 4096, 7168), 0) << "3.6 of 7 chunks";
  EXPECT_EQ(stream_k_tiles(4096, 7168, 16384), 0) << "54 of 1792 chunks, but the rounds are full";
  EXPECT_GT(stream_k_tiles(3328, 7168, 16384), 0) << "124 of 1536 chunks";
}

TEST(Nvfp4Plan, WorkspaceHoldsEveryPart) {
  const GemmNvfp4Problem p = problem(128, 7168, 16384);
  const Nvfp4Plan plan = cuda::plan_nvfp4(p, kSms);
  const Nvfp4Config& config = kNvfp4Configs[plan.config];
  ASSERT_GT(plan.stream_k_tiles, 0);
  const cuda::Nvfp4Workspace at = cuda::nvfp4_workspace(p, plan);
  const std::size_t slots = static_cast<std::size_t>(plan.workers * config.cluster);
  EXPECT_GE(at.flags - at.sums, slots * config.rows() * config.tokens * sizeof(float));
  EXPECT_GE(at.activations - at.flags, slots * sizeof(std::uint64_t));
  EXPECT_EQ(at.bytes, at.activations);

  GemmNvfp4Problem w4a4 = p;
  w4a4.a_dtype = DType::e2m1x2;
  EXPECT_EQ(cuda::nvfp4_workspace(w4a4, plan).bytes, at.bytes + 2 * 128 * 16384);

  GemmNvfp4Problem codes = p;
  codes.b_is_packed = false;
  EXPECT_EQ(cuda::nvfp4_workspace(codes, plan).bytes, at.bytes + 7168 * 16384 * 9 / 16);
}

TEST(Nvfp4Plan, TakesTheTablesConfigs) {
  const auto tokens = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return kNvfp4Configs[cuda::plan_nvfp4(problem(m, n, k), kSms).config].tokens;
  };
  EXPECT_EQ(tokens(1, 7168, 16384), 8);
  EXPECT_EQ(tokens(16, 7168, 16384), 16);
  EXPECT_EQ(tokens(17, 7168, 16384), 32);
  EXPECT_EQ(tokens(17, 7168, 2048), 32);
  EXPECT_EQ(tokens(64, 7168, 16384), 64);
  EXPECT_EQ(tokens(128, 7168, 16384), 128);
  EXPECT_EQ(tokens(128, 7168, 2048), 64);  // few columns
  EXPECT_EQ(tokens(64, 4096, 7168), 64);   // one round
  EXPECT_EQ(tokens(128, 4096, 7168), 64);  // one round of full tiles, 128 for 132 workers
  EXPECT_EQ(tokens(96, 4096, 7168), 128);
  EXPECT_EQ(tokens(128, 3584, 7168), 128);   // 112 tiles of 64 tokens
  EXPECT_EQ(tokens(256, 7168, 16384), 128);  // few tiles
  EXPECT_EQ(tokens(512, 7168, 16384), 256);
  EXPECT_EQ(tokens(640, 7168, 16384), 128);  // more would be padded
  const auto config = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return variant_of(*find_kernel<GemmNvfp4>("nvfp4"), problem(m, n, k), h200())->info.name;
  };
  EXPECT_EQ(config(4096, 7168, 16384), "nvfp4/8");  // 896 of 924 tiles
  EXPECT_EQ(config(3328, 7168, 16384), "nvfp4/9");  // 728 of 792
  EXPECT_EQ(config(1024, 7168, 2048), "nvfp4/8");   // 224 of 264, few columns
}

}  // namespace
}  // namespace tilewright
