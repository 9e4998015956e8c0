// TMA tensor maps: how TMA sees an operand.
#pragma once

#include <array>
#include <cstdint>

#include "common/strides.hpp"

struct CUtensorMap_st;

namespace tilewright::cuda {

enum class TmaSwizzle : std::uint8_t { none, b64, b128 };

// A swizzle's width: so long is a row of a box that is loaded or stored with it.
constexpr int width_bytes(TmaSwizzle swizzle) {
  return swizzle == TmaSwizzle::b128 ? 128 : swizzle == TmaSwizzle::b64 ? 64 : 0;
}

// The arguments of cuTensorMapEncodeTiled. Dimensions run from the contiguous one outwards:
// (head_dim, seqlen, heads, batch).
struct TensorMapSpec {
  std::array<std::uint64_t, 4> size{};          // elements
  std::array<std::uint64_t, 3> stride_bytes{};  // of dimensions 1, 2, 3
  std::array<std::uint32_t, 4> box{};           // elements of one load or store
  TmaSwizzle swizzle = TmaSwizzle::none;
  int element_bytes = 2;  // or 1
  // How much of a line of memory comes to L2 when a part of it is loaded. 256 bytes serve tiles
  // that several blocks load; where a box is 128 bytes wide and nobody else reads the rest, they
  // cost a tenth of the bandwidth.
  int promotion_bytes = 256;
};

// A TMA load brings `rows` rows of one head. Without a swizzle the box spans the whole head dim.
// With one, a row of the box is as long as the swizzle is wide, 64 or 128 bytes, and a tile of a
// wider head dim takes several loads. Reads outside the tensor give zeros.
constexpr TensorMapSpec tile_map_spec(int batch, int seqlen, int heads, int head_dim,
                                      const OuterStrides& stride, int rows, TmaSwizzle swizzle,
                                      int element_bytes = 2) {
  // TMA never steps over a dimension of size 1: any legal stride will do. Over a larger one a
  // stride of 0 stays as it is: it is legal, and an expanded tensor has it.
  const auto bytes = [&](std::int64_t elements, int size) {
    const std::int64_t stepped = size > 1 ? elements : head_dim;
    return static_cast<std::uint64_t>(stepped) * static_cast<std::uint64_t>(element_bytes);
  };
  const int columns = swizzle == TmaSwizzle::none ? head_dim : width_bytes(swizzle) / element_bytes;
  return {.size = {static_cast<std::uint64_t>(head_dim), static_cast<std::uint64_t>(seqlen),
                   static_cast<std::uint64_t>(heads), static_cast<std::uint64_t>(batch)},
          .stride_bytes = {bytes(stride.seq, seqlen), bytes(stride.head, heads),
                           bytes(stride.batch, batch)},
          .box = {static_cast<std::uint32_t>(columns), static_cast<std::uint32_t>(rows), 1, 1},
          .swizzle = swizzle,
          .element_bytes = element_bytes};
}

// Encodes the map of a tensor of 16-bit or 8-bit elements. It looks up the driver's encoder at run
// time, so that nothing links libcuda. Throws ErrorCode::cuda.
CUtensorMap_st encode_tensor_map(const void* base, const TensorMapSpec& spec);

}  // namespace tilewright::cuda
