// The emulated TMA against element-by-element copies, with CuTe's swizzles.
#include <cuda.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <cute/swizzle.hpp>
#include <numeric>
#include <random>
#include <vector>

#include "emulator/tma.hpp"

namespace tilewright::emulator {
namespace {

constexpr int kMaxRank = 5;
constexpr std::uint32_t kAddress = 3 * 128;  // where no swizzle's pattern begins
constexpr std::uint16_t kNan = 0x7fff;
constexpr int kChunk = 8;  // elements of 16 bytes

std::uint32_t swizzled(CUtensorMapSwizzle swizzle, std::uint32_t address) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return cute::Swizzle<1, 4, 3>::apply(address);
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return cute::Swizzle<2, 4, 3>::apply(address);
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return cute::Swizzle<3, 4, 3>::apply(address);
    default:
      return address;
  }
}

// A tensor of BF16 in global memory, whose rows have a margin behind them.
struct Problem {
  std::array<std::uint64_t, kMaxRank> size{20, 5, 4, 3, 2};
  std::array<std::uint32_t, kMaxRank> box{16, 3, 2, 2, 2};
  std::array<std::uint32_t, kMaxRank> element_strides{1, 1, 1, 1, 1};
  std::array<std::uint64_t, kMaxRank - 1> stride_bytes{};
  std::uint32_t rank = kMaxRank;
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_NONE;
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
  std::vector<std::uint16_t> storage;  // 16-byte aligned, as operator new has it
  std::vector<std::uint16_t> smem;
  CUtensorMap map{};

  Problem() {
    std::uint64_t bytes = 64;
    for (std::size_t i = 0; i < stride_bytes.size(); ++i) {
      stride_bytes[i] = bytes;
      bytes *= size[i + 1];
    }
    storage.resize(bytes / 2);
    std::iota(storage.begin(), storage.end(), std::uint16_t{1});
    smem.assign(8192, 0xdead);
  }

  CUresult encode() {
    return encode_tensor_map(&map, type, rank, storage.data(), size.data(), stride_bytes.data(),
                             box.data(), element_strides.data(), interleave, swizzle,
                             CU_TENSOR_MAP_L2_PROMOTION_NONE, fill);
  }

  SharedMemory memory() {
    return {reinterpret_cast<std::byte*>(smem.data()), static_cast<std::uint32_t>(smem.size() * 2)};
  }

  std::uint32_t elements() const {
    return std::accumulate(box.begin(), box.begin() + rank, 1u, std::multiplies<>{});
  }

  // Calls visit(SMEM element, global element or nullptr) for every element of the tile.
  template <typename Visit>
  void for_each_element(const std::vector<std::int32_t>& coordinates, Visit visit) {
    for (std::uint32_t i = 0; i < elements(); ++i) {
      std::uint32_t rest = i;
      std::int64_t offset = 0;
      bool inside = true;
      for (std::size_t dimension = 0; dimension < rank; ++dimension) {
        const std::int64_t at = coordinates[dimension] + std::int64_t{rest % box[dimension]};
        rest /= box[dimension];
        inside = inside && at >= 0 && at < static_cast<std::int64_t>(size[dimension]);
        offset +=
            at * (dimension == 0 ? 2 : static_cast<std::int64_t>(stride_bytes[dimension - 1]));
      }
      visit(smem[swizzled(swizzle, kAddress + 2 * i) / 2],
            inside ? &storage[static_cast<std::size_t>(offset) / 2] : nullptr);
    }
  }

  // Fails if TMA touches global memory outside the tensor's storage.
  GlobalCheck check() {
    return [this](const void* address, std::size_t bytes) {
      const auto* const begin = static_cast<const std::uint16_t*>(address);
      EXPECT_GE(begin, storage.data());
      EXPECT_LE(begin + bytes / 2, storage.data() + storage.size());
    };
  }
};

std::vector<std::vector<std::int32_t>> random_coordinates(const Problem& problem) {
  std::mt19937 random(5);
  std::vector<std::vector<std::int32_t>> all(40, std::vector<std::int32_t>(problem.rank));
  for (auto& coordinates : all) {
    for (std::size_t i = 0; i < problem.rank; ++i) {
      const int end = static_cast<int>(problem.size[i]) + 2;
      coordinates[i] =
          std::uniform_int_distribution(-static_cast<int>(problem.box[i]), end)(random);
    }
    coordinates[0] -= coordinates[0] % kChunk;
  }
  return all;
}

template <typename Check>
void for_each_problem(Check check) {
  for (std::uint32_t rank = 1; rank <= kMaxRank; ++rank) {
    for (const auto& [swizzle, columns] : {std::pair{CU_TENSOR_MAP_SWIZZLE_NONE, 24u},
                                           {CU_TENSOR_MAP_SWIZZLE_32B, 16u},
                                           {CU_TENSOR_MAP_SWIZZLE_64B, 32u},
                                           {CU_TENSOR_MAP_SWIZZLE_128B, 64u}}) {
      Problem problem;
      problem.rank = rank;
      problem.swizzle = swizzle;
      problem.box[0] = columns;
      ASSERT_EQ(problem.encode(), CUDA_SUCCESS);
      ASSERT_EQ(tma_bytes(&problem.map), 2 * problem.elements());
      for (const auto& coordinates : random_coordinates(problem)) {
        check(problem, coordinates);
      }
    }
  }
}

TEST(Tma, LoadsTilesAndFillsTheRest) {
  for_each_problem([](Problem& problem, const std::vector<std::int32_t>& coordinates) {
    for (const bool nan : {false, true}) {
      problem.fill = nan ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA
                         : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;
      ASSERT_EQ(problem.encode(), CUDA_SUCCESS);
      tma_load({&problem.map, coordinates}, problem.memory(), kAddress, problem.check());
      problem.for_each_element(coordinates, [&](std::uint16_t shared, const std::uint16_t* global) {
        ASSERT_EQ(shared, global != nullptr ? *global : nan ? kNan : 0);
      });
      ASSERT_EQ(problem.smem[kAddress / 2 - 1], 0xdead);
      ASSERT_EQ(problem.smem[kAddress / 2 + std::max(problem.elements(), 512u)], 0xdead);
    }
  });
}

TEST(Tma, StoresAndAddsWhatIsInside) {
  for_each_problem([](Problem& problem, const std::vector<std::int32_t>& coordinates) {
    const std::vector<std::uint16_t> before = problem.storage;
    std::mt19937 random(9);
    for (std::uint16_t& value : problem.smem) {
      value = static_cast<std::uint16_t>(0x3f80 + random() % 256);  // 1 to 4
    }
    const TmaTile tile{&problem.map, coordinates};
    auto expected = before;
    problem.for_each_element(coordinates, [&](std::uint16_t shared, const std::uint16_t* global) {
      if (global != nullptr) {
        expected[static_cast<std::size_t>(global - problem.storage.data())] = shared;
      }
    });
    tma_store(tile, problem.memory(), kAddress, problem.check());
    ASSERT_EQ(problem.storage, expected);
    problem.for_each_element(coordinates, [&](std::uint16_t shared, const std::uint16_t* global) {
      if (global != nullptr) {
        const double sum = 2 * decode(NumberFormat::bf16, shared);
        expected[static_cast<std::size_t>(global - problem.storage.data())] =
            static_cast<std::uint16_t>(encode(NumberFormat::bf16, sum));
      }
    });
    tma_reduce_add(tile, problem.memory(), kAddress, problem.check());
    ASSERT_EQ(problem.storage, expected);
    problem.storage = before;
  });
}

TEST(Tma, EncodingRefusesWhatTheDriverRefuses) {
  const auto result = [](auto spoil) {
    Problem problem;
    spoil(problem);
    return problem.encode();
  };
  EXPECT_EQ(result([](Problem&) {}), CUDA_SUCCESS);
  EXPECT_EQ(result([](Problem& p) { p.rank = 0; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(result([](Problem& p) { p.rank = 6; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(result([](Problem& p) { p.size[2] = 0; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(result([](Problem& p) { p.box[1] = 257; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(result([](Problem& p) { p.box[0] = 4; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(result([](Problem& p) { p.stride_bytes[1] = 24; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(result([](Problem& p) { p.stride_bytes[3] = 1ull << 40; }), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(result([](Problem& p) {
              p.swizzle = CU_TENSOR_MAP_SWIZZLE_64B;
              p.box[0] = 40;
            }),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(result([](Problem& p) { p.element_strides[1] = 2; }), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_EQ(result([](Problem& p) { p.interleave = CU_TENSOR_MAP_INTERLEAVE_16B; }),
            CUDA_ERROR_NOT_SUPPORTED);
}

TEST(Tma, ChecksItsOperands) {
  Problem problem;
  ASSERT_EQ(problem.encode(), CUDA_SUCCESS);
  const std::vector<std::int32_t> origin(kMaxRank, 0);
  const auto load = [&](std::uint32_t address, std::span<const std::int32_t> coordinates) {
    tma_load({&problem.map, coordinates}, problem.memory(), address, problem.check());
  };
  EXPECT_NO_THROW(load(0, origin));
  EXPECT_THROW(load(64, origin), EmulationError);
  EXPECT_THROW(load(0, std::span(origin).first(4)), EmulationError);
  EXPECT_THROW(load(problem.memory().bytes - 128, origin), EmulationError);
  const CUtensorMap nothing{};
  EXPECT_THROW(tma_bytes(&nothing), EmulationError);
  problem.swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  ASSERT_EQ(problem.encode(), CUDA_SUCCESS);
  EXPECT_THROW(load(0, origin), EmulationError);  // a box of 32 bytes
}

TEST(Tma, RefusesInnermostCoordinatesWithinSixteenBytes) {
  Problem problem;
  ASSERT_EQ(problem.encode(), CUDA_SUCCESS);
  const auto move = [&](auto tma, std::int32_t innermost) {
    const std::vector<std::int32_t> coordinates{innermost, 1, 0, 0, 0};
    tma({&problem.map, coordinates}, problem.memory(), 0, problem.check());
  };
  for (const auto& tma : {tma_load, tma_store, tma_reduce_add}) {
    for (const int right : {-kChunk, 0, kChunk, 2 * kChunk}) {
      EXPECT_NO_THROW(move(tma, right));
    }
    for (const int wrong : {-kChunk - 1, -1, 1, kChunk / 2, kChunk + 4}) {
      EXPECT_THROW(move(tma, wrong), EmulationError);
    }
  }
}

TEST(ReduceAdd, AddsEveryFormat) {
  const auto sum = []<typename T>(NumberFormat format, T a, T b) {
    reduce_add(format, reinterpret_cast<std::byte*>(&a), reinterpret_cast<const std::byte*>(&b), 1);
    return a;
  };
  EXPECT_EQ(sum(NumberFormat::f32, 1.5f, 2.0f), 3.5f);
  EXPECT_EQ(sum(NumberFormat::f64, 1.5, 2.0), 3.5);
  EXPECT_EQ(sum(NumberFormat::s32, -1, 3), 2);
  EXPECT_EQ(sum(NumberFormat::u64, ~0ull, 3ull), 2u);
  EXPECT_EQ(sum(NumberFormat::f16, std::uint16_t{0x3c00}, std::uint16_t{0x3c00}), 0x4000);
  EXPECT_THROW(sum(NumberFormat::e4m3, std::uint8_t{0}, std::uint8_t{0}), EmulationError);
}

}  // namespace
}  // namespace tilewright::emulator
