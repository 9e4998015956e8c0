// GEMMs with NVFP4 operands on the CPU, in FP32 on all cores.
//
// A task is a tile of C. It walks over K in steps, in which it converts tiles of A and B to FP32:
//
//   for each step of K:
//     dequantise A, row-major; dequantise B, transposed       (Br, Bk), (Bk, Bc)
//     C += A B, where each step's sum is computed before it is added
//   C * global scales + bias + residual -> C's dtype
//
// Tiles     Br = 96 rows, Bc = 64, Bk = 256.
// Scratch   212 KB for each thread, kept between calls, which the L2 cache holds.
// Registers A block of C: 12 rows x 16 columns with AVX-512, 6 x 16 with AVX2 and elsewhere.
// Order     Additions go along a step of K, then step by step, whatever M, L and the tile are.
// Limits    A tile of B is dequantised anew for every 96 rows of A.
#include <algorithm>
#include <array>
#include <memory>
#include <type_traits>

#include "common/gemm_epilogue.hpp"
#include "cpu/cpu_gemm_nvfp4.hpp"
#include "cpu/cpu_nvfp4.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/element.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vector.hpp"

namespace tilewright::cpu {
namespace {

using nvfp4::kBlock;

constexpr int kBr = 96;
constexpr int kBc = 64;
constexpr int kBk = 256;

// A tile of C.
struct Task {
  int batch;
  int row0;
  int rows;
  int column0;
  int columns;
};

struct Scratch {
  alignas(64) float a[kBr * kBk];
  alignas(64) float b[kBk * kBc];
  alignas(64) float step[kBr * kBc];
  alignas(64) float sum[kBr * kBc];
};

std::unique_ptr<Scratch>& thread_scratch() {
  thread_local std::unique_ptr<Scratch> scratch;
  return scratch;
}

// A tile of a packed weight, unpacked.
struct UnpackedTile {
  UnpackedWeight<std::uint8_t> weight() {
    constexpr int kBlocks = WeightTile::kColumns / kBlock;
    return {.codes = codes,
            .codes_stride = WeightTile::kColumns / 2,
            .scales = {.data = scales, .row_stride = kBlocks},
            .rows = WeightTile::kRows,
            .blocks = kBlocks,
            .scale_rows = WeightTile::kRows,
            .scale_blocks = kBlocks};
  }

  std::uint8_t codes[WeightTile::kCode_bytes];
  std::uint8_t scales[WeightTile::kScale_bytes];
};

constexpr auto kE2m1Values = [] {
  std::array<float, 16> values{};
  for (std::uint32_t code = 0; code < 16; ++code) {
    values[code] = e2m1_to_float(code);
  }
  return values;
}();

// Writes a block's 16 values, codes times scale exactly, `stride` apart.
TILEWRIGHT_INLINE void dequantize_block(const std::uint8_t* codes, std::uint8_t scale_bits,
                                        float* out, int stride) {
  const float scale = e4m3_to_float(scale_bits);
  for (int i = 0; i < kBlock / 2; ++i) {
    out[2 * i * stride] = kE2m1Values[codes[i] & 15] * scale;
    out[(2 * i + 1) * stride] = kE2m1Values[codes[i] >> 4] * scale;
  }
}

// Converts rows row0, row0 + 1, ... of A over [k0, k0 + count) to rows of the tile.
template <typename T>
TILEWRIGHT_INLINE void load_a(const GemmNvfp4Params& p, const Task& task, int k0, int count,
                              float* tile) {
  const auto* const a = static_cast<const T*>(p.a) + task.batch * p.a_stride.batch;
  for (int i = 0; i < task.rows; ++i) {
    const T* const row = a + (task.row0 + i) * p.a_stride.row + k0;
    for (int k = 0; k < count; ++k) {
      tile[i * kBk + k] = to_float(row[k]);
    }
  }
}

TILEWRIGHT_INLINE void dequantize_a(const GemmNvfp4Params& p, const Task& task, int k0, int count,
                                    float* tile) {
  const auto* const a = static_cast<const std::uint8_t*>(p.a) + task.batch * p.a_stride.batch;
  Scales<const std::uint8_t> scales = p.sfa;
  scales.data += task.batch * p.sfa_batch_stride;
  for (int i = 0; i < task.rows; ++i) {
    const std::uint8_t* const codes = a + (task.row0 + i) * p.a_stride.row;
    for (int k = k0; k < k0 + count; k += kBlock) {
      dequantize_block(codes + k / 2, scales.at(task.row0 + i, k / kBlock),
                       tile + i * kBk + (k - k0), 1);
    }
  }
}

// Dequantises rows column0, ... of B over [k0, k0 + count) to columns of the tile.
TILEWRIGHT_INLINE void dequantize_codes_of_b(const GemmNvfp4Params& p, const Task& task, int k0,
                                             int count, float* tile) {
  const std::uint8_t* const b = p.b + task.batch * p.b_stride.batch;
  Scales<const std::uint8_t> scales = p.sfb;
  scales.data += task.batch * p.sfb_batch_stride;
  for (int j = 0; j < task.columns; ++j) {
    const std::uint8_t* const codes = b + (task.column0 + j) * p.b_stride.row;
    for (int k = k0; k < k0 + count; k += kBlock) {
      dequantize_block(codes + k / 2, scales.at(task.column0 + j, k / kBlock),
                       tile + (k - k0) * kBc + j, kBc);
    }
  }
}

// The same for a packed weight, whose tiles have as many rows as a task has columns.
TILEWRIGHT_INLINE void dequantize_packed_b(const GemmNvfp4Params& p, const Task& task, int k0,
                                           int count, float* tile) {
  static_assert(kBc == WeightTile::kRows && kBk % WeightTile::kColumns == 0);
  const WeightTiles tiles(p.l, p.n, p.k / kBlock);
  const std::uint8_t* const b = p.b + task.batch * p.b_stride.batch;
  UnpackedTile unpacked;
  for (int first = 0; first < count; first += WeightTile::kColumns) {
    unpack_weight_tile(b + tiles.offset({task.batch, task.column0, k0 + first}), unpacked.weight(),
                       {});
    for (int j = 0; j < task.columns; ++j) {
      for (int k = 0; k < std::min(count - first, WeightTile::kColumns); k += kBlock) {
        dequantize_block(unpacked.codes + (j * WeightTile::kColumns + k) / 2,
                         unpacked.scales[(j * WeightTile::kColumns + k) / kBlock],
                         tile + (first + k) * kBc + j, kBc);
      }
    }
  }
}

// Dequantises B, packed or not. Columns beyond N become 0.
TILEWRIGHT_INLINE void dequantize_b(const GemmNvfp4Params& p, const Task& task, int k0, int count,
                                    float* tile) {
  if (p.b_is_packed) {
    dequantize_packed_b(p, task, k0, count, tile);
  } else {
    dequantize_codes_of_b(p, task, k0, count, tile);
  }
  for (int k = 0; k < count; ++k) {
    std::fill(tile + k * kBc + task.columns, tile + (k + 1) * kBc, 0.0f);
  }
}

TILEWRIGHT_INLINE float scaled(float sum, const RowScales& scales, int batch, int row) {
  return scales.data == nullptr
             ? sum
             : scale_globally(sum,
                              scales.data[batch * scales.stride.batch + row * scales.stride.row],
                              scales.kind);
}

template <typename T>
void store_c(const GemmNvfp4Params& p, const Task& task, const float* sum) {
  const auto at = [&](auto* matrix, const MatrixStrides& stride, int row) {
    return matrix + task.batch * stride.batch + row * stride.row;
  };
  for (int i = 0; i < task.rows; ++i) {
    const int row = task.row0 + i;
    T* const c = at(static_cast<T*>(p.c), p.c_stride, row);
    for (int j = 0; j < task.columns; ++j) {
      const int column = task.column0 + j;
      float value = scaled(sum[i * kBc + j], p.global_b, task.batch, column);
      value = scaled(value, p.global_a, task.batch, row);
      if (p.bias != nullptr) {
        value += to_float(static_cast<const T*>(p.bias)[column * p.bias_stride]);
      }
      if (p.residual != nullptr) {
        value += to_float(at(static_cast<const T*>(p.residual), p.residual_stride, row)[column]);
      }
      from_float(value, c[column]);
    }
  }
}

struct MultiplyTile {
  template <int kRows>
  TILEWRIGHT_INLINE static void run(const GemmNvfp4Params& p, const Task& task, Scratch& s) {
    std::fill(s.sum, s.sum + task.rows * kBc, 0.0f);
    for (int k0 = 0; k0 < p.k; k0 += kBk) {
      const int count = std::min(kBk, p.k - k0);
      if (p.a_dtype == DType::e2m1x2) {
        dequantize_a(p, task, k0, count, s.a);
      } else if (p.a_dtype == DType::bf16) {
        load_a<Bf16>(p, task, k0, count, s.a);
      } else {
        load_a<Fp16>(p, task, k0, count, s.a);
      }
      dequantize_b(p, task, k0, count, s.b);
      multiply<kRows, false>(s.a, kBk, s.b, kBc, s.step, kBc, task.rows, kBc, count);
      for (int i = 0; i < task.rows * kBc; ++i) {
        s.sum[i] += s.step[i];
      }
    }
  }
};

void store_any(const GemmNvfp4Params& p, const Task& task, const float* sum) {
  switch (p.c_dtype) {
    case DType::fp32:
      return store_c<float>(p, task, sum);
    case DType::fp16:
      return store_c<Fp16>(p, task, sum);
    case DType::bf16:
      return store_c<Bf16>(p, task, sum);
    default:  // refused by the checks
      return;
  }
}

}  // namespace

void gemm_nvfp4(const GemmNvfp4Params& p, Stream) {
  static const auto multiply_task =
      best_for_this_cpu<MultiplyTile, const GemmNvfp4Params&, const Task&, Scratch&>();
  const std::int64_t row_tiles = (p.m + kBr - 1) / kBr;
  const std::int64_t column_tiles = (p.n + kBc - 1) / kBc;
  const auto reserve = [] {
    if (thread_scratch() == nullptr) {
      thread_scratch() = std::make_unique<Scratch>();
    }
  };
  parallel_for(p.l * row_tiles * column_tiles, 1, reserve, [&](std::int64_t i) {
    Scratch& scratch = *thread_scratch();
    const auto row0 = static_cast<int>(i / column_tiles % row_tiles) * kBr;
    const auto column0 = static_cast<int>(i % column_tiles) * kBc;
    const Task task{.batch = static_cast<int>(i / column_tiles / row_tiles),
                    .row0 = row0,
                    .rows = std::min(kBr, p.m - row0),
                    .column0 = column0,
                    .columns = std::min(kBc, p.n - column0)};
    multiply_task(p, task, scratch);
    store_any(p, task, scratch.sum);
  });
}

}  // namespace tilewright::cpu
