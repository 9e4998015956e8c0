// TMA tensor maps: how the copy engine sees an operand.
#pragma once

#include <array>
#include <cstdint>

#include "common/strides.hpp"

struct CUtensorMap_st;

namespace tilewright::cuda {

enum class TmaSwizzle : std::uint8_t { none, b64, b128 };

// What cuTensorMapEncodeTiled is asked for. Dimensions run from the contiguous one outwards:
// (head_dim, seqlen, heads, batch).
struct TensorMapSpec {
  std::array<std::uint64_t, 4> size{};          // elements
  std::array<std::uint64_t, 3> stride_bytes{};  // of dimensions 1, 2, 3
  std::array<std::uint32_t, 4> box{};           // elements per copy
  TmaSwizzle swizzle = TmaSwizzle::none;
};

// One copy brings `rows` rows of one head. Unswizzled, the box spans the whole head dim. Swizzled,
// a row of the box is as long as the swizzle is wide, 64 or 128 bytes, so that a tile of wider head
// dim takes several copies. Reads outside the tensor give zeros.
constexpr TensorMapSpec tile_map_spec(int batch, int seqlen, int heads, int head_dim,
                                      const OuterStrides& stride, int rows, TmaSwizzle swizzle) {
  constexpr std::uint64_t kElement_bytes = 2;
  // Over a dimension of size 1 TMA never steps: any legal value will do. Over a larger one a stride
  // of 0 stays: it is legal, and that of an expanded tensor.
  const auto bytes = [&](std::int64_t elements, int size) {
    return size > 1 ? static_cast<std::uint64_t>(elements) * kElement_bytes
                    : static_cast<std::uint64_t>(head_dim) * kElement_bytes;
  };
  const std::uint32_t columns = swizzle == TmaSwizzle::b128  ? 64
                                : swizzle == TmaSwizzle::b64 ? 32
                                                             : static_cast<std::uint32_t>(head_dim);
  return {.size = {static_cast<std::uint64_t>(head_dim), static_cast<std::uint64_t>(seqlen),
                   static_cast<std::uint64_t>(heads), static_cast<std::uint64_t>(batch)},
          .stride_bytes = {bytes(stride.seq, seqlen), bytes(stride.head, heads),
                           bytes(stride.batch, batch)},
          .box = {columns, static_cast<std::uint32_t>(rows), 1, 1},
          .swizzle = swizzle};
}

// Encodes the map of a tensor of 16-bit elements. The driver's encoder is looked up at run time:
// nothing links libcuda. Throws ErrorCode::cuda.
CUtensorMap_st encode_tensor_map(const void* base, const TensorMapSpec& spec);

}  // namespace tilewright::cuda
