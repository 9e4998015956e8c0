// TMA: tensor maps, and the tiles that are moved with them between global memory and SMEM.
//
// Source    CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, "Tensors", cp.async.bulk.tensor.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "emulator/convert.hpp"
#include "emulator/shared_memory.hpp"

namespace tilewright::emulator {

// cuTensorMapEncodeTiled, with the emulator's own encoding. It refuses with
// CUDA_ERROR_INVALID_VALUE what the driver refuses, and with CUDA_ERROR_NOT_SUPPORTED what is not
// emulated: interleaved layouts, element strides other than 1, 4- and 6-bit elements.
CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                           void* address, const cuuint64_t* size, const cuuint64_t* stride_bytes,
                           const cuuint32_t* box, const cuuint32_t* element_strides,
                           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

// Called with each piece of global memory before it is touched; throws if that is not allowed.
using GlobalCheck = std::function<void(const void* address, std::size_t bytes)>;

// One tile: `map` as the kernel names it (128 bytes), and the coordinates of its first element,
// the innermost first, which must be at a multiple of 16 bytes. There must be as many as the map
// has dimensions.
struct TmaTile {
  const void* map = nullptr;
  std::span<const std::int32_t> coordinates;
};

// The bytes of a tile in SMEM, which a load adds to its barrier's count whether or not they are
// inside the tensor.
std::uint32_t tma_bytes(const void* map);

// cp.async.bulk.tensor between the tile and SMEM at `address`, a multiple of 128. Elements outside
// the tensor are filled in a load, and left alone in a store or a reduction. A multicast is one
// load for each block. They throw EmulationError.
void tma_load(const TmaTile& tile, SharedMemory shared, std::uint32_t address,
              const GlobalCheck& check);
void tma_store(const TmaTile& tile, SharedMemory shared, std::uint32_t address,
               const GlobalCheck& check);
void tma_reduce_add(const TmaTile& tile, SharedMemory shared, std::uint32_t address,
                    const GlobalCheck& check);

// destination[i] += source[i], rounded to nearest even, for cp.reduce.async.bulk and red.
void reduce_add(NumberFormat format, std::byte* destination, const std::byte* source,
                std::size_t count);

}  // namespace tilewright::emulator
