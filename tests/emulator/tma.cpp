#include "emulator/tma.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <optional>

namespace tilewright::emulator {
namespace {

constexpr std::size_t kMaxRank = 5;
constexpr std::uint32_t kMaxBox = 256;
constexpr std::uint32_t kChunkBytes = 16;  // a swizzle moves these as a whole
constexpr std::uint32_t kMaxElementBytes = 8;

// The emulator's encoding of a CUtensorMap.
struct TensorMap {
  static constexpr std::uint64_t kMagic = 0x746d6170656d7531;

  std::uint64_t magic;
  std::byte* base;
  std::array<std::uint64_t, kMaxRank> stride_bytes;  // of dimension 0: an element's size
  std::array<std::uint32_t, kMaxRank> last;          // the size less 1
  std::array<std::uint16_t, kMaxRank> box;
  std::uint8_t rank;
  NumberFormat format;
  std::uint8_t swizzle_span;  // in chunks: 8 for 128 bytes, 4, 2, or 1 for none
  bool fills_with_nan;

  std::uint32_t element_bytes() const { return static_cast<std::uint32_t>(stride_bytes[0]); }
  std::uint32_t row_bytes() const { return box[0] * element_bytes(); }
  std::uint32_t rows() const {
    std::uint32_t rows = 1;
    for (std::size_t i = 1; i < rank; ++i) {
      rows *= box[i];
    }
    return rows;
  }
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

std::optional<NumberFormat> format_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return NumberFormat::u8;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
      return NumberFormat::u16;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
      return NumberFormat::u32;
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
      return NumberFormat::s32;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
      return NumberFormat::u64;
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
      return NumberFormat::s64;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
      return NumberFormat::f16;
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return NumberFormat::bf16;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
      return NumberFormat::f32;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return NumberFormat::f64;
    default:
      return std::nullopt;
  }
}

std::optional<std::uint8_t> span_of(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      return 1;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      return 2;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      return 4;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      return 8;
    default:
      return std::nullopt;
  }
}

bool is_valid_dimension(std::uint64_t size, std::uint32_t box) {
  constexpr std::uint64_t kMaxSize = std::uint64_t{1} << 32;
  return size > 0 && size <= kMaxSize && box > 0 && box <= kMaxBox;
}

bool is_valid_stride(std::uint64_t bytes) {
  constexpr std::uint64_t kMaxStride = std::uint64_t{1} << 40;
  return bytes % 16 == 0 && bytes < kMaxStride;
}

// Whether the rows of a box are what the driver takes.
bool has_valid_rows(const TensorMap& map) {
  const bool fits = map.swizzle_span == 1 || map.row_bytes() <= map.swizzle_span * kChunkBytes;
  return map.row_bytes() % kChunkBytes == 0 && fits &&
         !(map.fills_with_nan && is_integer(map.format));
}

TensorMap map_at(const void* bytes) {
  TensorMap map;
  std::memcpy(&map, bytes, sizeof(map));
  if (map.magic != TensorMap::kMagic) {
    throw EmulationError("TMA: the operand is not a tensor map");
  }
  return map;
}

// One row of a box: its elements [first, first + count) are inside the tensor, at `global`.
struct Row {
  std::byte* global;
  std::uint32_t first;
  std::uint32_t count;
};

// Row `index` of the tile's box.
Row row_of(const TensorMap& map, std::span<const std::int32_t> coordinates, std::uint32_t index) {
  const auto is_inside = [&](std::size_t i, std::int64_t at) {
    return at >= 0 && at <= static_cast<std::int64_t>(map.last[i]);
  };
  std::byte* global = map.base;
  for (std::size_t i = 1; i < map.rank; ++i) {
    const std::int64_t at = std::int64_t{coordinates[i]} + index % map.box[i];
    index /= map.box[i];
    if (!is_inside(i, at)) {
      return {nullptr, 0, 0};
    }
    global += static_cast<std::uint64_t>(at) * map.stride_bytes[i];
  }
  const std::int64_t begin = coordinates[0];
  const std::int64_t size = std::int64_t{map.last[0]} + 1;
  const std::int64_t first = std::clamp<std::int64_t>(-begin, 0, map.box[0]);
  const std::int64_t end = std::clamp<std::int64_t>(size - begin, first, map.box[0]);
  return {global + (begin + first) * map.element_bytes(), static_cast<std::uint32_t>(first),
          static_cast<std::uint32_t>(end - first)};
}

using RowBuffer = std::array<std::byte, kMaxBox * kMaxElementBytes>;

// Calls visit(where in the row, where in SMEM) for every chunk of a row that begins, but for the
// swizzle, at `address`.
template <typename Visit>
void for_each_chunk(const TensorMap& map, SharedMemory shared, std::uint32_t address, Visit visit) {
  for (std::uint32_t offset = 0; offset < map.row_bytes(); offset += kChunkBytes) {
    const std::uint32_t linear = address + offset;
    const std::uint32_t mask = map.swizzle_span - 1u;
    visit(offset, shared.at(linear ^ (linear >> 7 & mask) * kChunkBytes, kChunkBytes, kChunkBytes));
  }
}

// Calls visit(row, its address in SMEM but for the swizzle) for every row of the tile.
template <typename Visit>
void for_each_row(const TensorMap& map, const TmaTile& tile, std::uint32_t address, Visit visit) {
  if (tile.coordinates.size() != map.rank) {
    throw EmulationError("TMA: the number of coordinates is not the tensor map's rank");
  }
  if (address % 128 != 0) {
    throw EmulationError("TMA: the SMEM address must be a multiple of 128");
  }
  if (std::int64_t{tile.coordinates[0]} * map.element_bytes() % kChunkBytes != 0) {
    throw EmulationError("TMA: the innermost coordinate must be at a multiple of 16 bytes");
  }
  if (map.swizzle_span > 1 && map.row_bytes() != map.swizzle_span * kChunkBytes) {
    throw EmulationError("TMA: boxes narrower than the swizzle are not emulated");
  }
  for (std::uint32_t index = 0; index < map.rows(); ++index) {
    visit(row_of(map, tile.coordinates, index), address + index * map.row_bytes());
  }
}

// What TMA writes for elements outside the tensor, over a whole row.
RowBuffer filling(const TensorMap& map) {
  RowBuffer row{};
  if (map.fills_with_nan) {
    const std::uint64_t nan = encode(map.format, std::numeric_limits<double>::quiet_NaN());
    for (std::uint32_t offset = 0; offset < map.row_bytes(); offset += map.element_bytes()) {
      std::memcpy(row.data() + offset, &nan, map.element_bytes());
    }
  }
  return row;
}

// Calls write(global, values, count) for the part of each row that is inside the tensor.
template <typename Write>
void write_tile(const TensorMap& map, const TmaTile& tile, SharedMemory shared,
                std::uint32_t address, const GlobalCheck& check, Write write) {
  for_each_row(map, tile, address, [&](const Row& row, std::uint32_t row_address) {
    RowBuffer values;
    for_each_chunk(map, shared, row_address, [&](std::uint32_t offset, const std::byte* chunk) {
      std::memcpy(values.data() + offset, chunk, kChunkBytes);
    });
    if (row.count > 0) {
      check(row.global, row.count * map.element_bytes());
      write(row.global, values.data() + row.first * map.element_bytes(), row.count);
    }
  });
}

template <typename T>
void add(std::byte* destination, const std::byte* source, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    T sum, addend;
    std::memcpy(&sum, destination + i * sizeof(T), sizeof(T));
    std::memcpy(&addend, source + i * sizeof(T), sizeof(T));
    sum += addend;
    std::memcpy(destination + i * sizeof(T), &sum, sizeof(T));
  }
}

// A double holds the sum of two 16-bit floats, or so much of it that it rounds as the sum does.
template <NumberFormat kFormat>
struct Half {
  std::uint16_t bits;

  Half& operator+=(Half other) {
    bits = static_cast<std::uint16_t>(
        encode(kFormat, decode(kFormat, bits) + decode(kFormat, other.bits)));
    return *this;
  }
};

}  // namespace

CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                           void* address, const cuuint64_t* size, const cuuint64_t* stride_bytes,
                           const cuuint32_t* box, const cuuint32_t* element_strides,
                           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion /*promotion*/, CUtensorMapFloatOOBfill fill) {
  if (map == nullptr || rank < 1 || rank > kMaxRank || address == nullptr ||
      reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto format = format_of(type);
  const auto span = span_of(swizzle);
  if (!format || !span || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      std::any_of(element_strides, element_strides + rank, [](auto step) { return step != 1; })) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  TensorMap encoded{.magic = TensorMap::kMagic,
                    .base = static_cast<std::byte*>(address),
                    .stride_bytes = {static_cast<std::uint64_t>(bits_of(*format)) / 8},
                    .last = {},
                    .box = {},
                    .rank = static_cast<std::uint8_t>(rank),
                    .format = *format,
                    .swizzle_span = *span,
                    .fills_with_nan = fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE};
  for (std::size_t i = 0; i < rank; ++i) {
    if (!is_valid_dimension(size[i], box[i]) || (i > 0 && !is_valid_stride(stride_bytes[i - 1]))) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    encoded.last[i] = static_cast<std::uint32_t>(size[i] - 1);
    encoded.box[i] = static_cast<std::uint16_t>(box[i]);
    if (i > 0) {
      encoded.stride_bytes[i] = stride_bytes[i - 1];
    }
  }
  if (!has_valid_rows(encoded)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::memset(map, 0, sizeof(*map));
  std::memcpy(map, &encoded, sizeof(encoded));
  return CUDA_SUCCESS;
}

std::uint32_t tma_bytes(const void* map) {
  const TensorMap decoded = map_at(map);
  return decoded.rows() * decoded.row_bytes();
}

void tma_load(const TmaTile& tile, SharedMemory shared, std::uint32_t address,
              const GlobalCheck& check) {
  const TensorMap map = map_at(tile.map);
  const RowBuffer outside = filling(map);
  for_each_row(map, tile, address, [&](const Row& row, std::uint32_t row_address) {
    RowBuffer values = outside;
    if (row.count > 0) {
      const std::uint32_t bytes = row.count * map.element_bytes();
      check(row.global, bytes);
      std::memcpy(values.data() + row.first * map.element_bytes(), row.global, bytes);
    }
    for_each_chunk(map, shared, row_address, [&](std::uint32_t offset, std::byte* chunk) {
      std::memcpy(chunk, values.data() + offset, kChunkBytes);
    });
  });
}

void tma_store(const TmaTile& tile, SharedMemory shared, std::uint32_t address,
               const GlobalCheck& check) {
  const TensorMap map = map_at(tile.map);
  write_tile(map, tile, shared, address, check,
             [&](std::byte* global, const std::byte* values, std::uint32_t count) {
               std::memcpy(global, values, count * map.element_bytes());
             });
}

void tma_reduce_add(const TmaTile& tile, SharedMemory shared, std::uint32_t address,
                    const GlobalCheck& check) {
  const TensorMap map = map_at(tile.map);
  write_tile(map, tile, shared, address, check,
             [&](std::byte* global, const std::byte* values, std::uint32_t count) {
               reduce_add(map.format, global, values, count);
             });
}

void reduce_add(NumberFormat format, std::byte* destination, const std::byte* source,
                std::size_t count) {
  switch (format) {
    case NumberFormat::f16:
      return add<Half<NumberFormat::f16>>(destination, source, count);
    case NumberFormat::bf16:
      return add<Half<NumberFormat::bf16>>(destination, source, count);
    case NumberFormat::f32:
      return add<float>(destination, source, count);
    case NumberFormat::f64:
      return add<double>(destination, source, count);
    case NumberFormat::u32:
    case NumberFormat::s32:
      return add<std::uint32_t>(destination, source, count);
    case NumberFormat::u64:
    case NumberFormat::s64:
      return add<std::uint64_t>(destination, source, count);
    default:
      throw EmulationError("reductions do not add this format");
  }
}

}  // namespace tilewright::emulator
