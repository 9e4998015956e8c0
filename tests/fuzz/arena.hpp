// The memory that all tensors of a call lie in, where every byte that the call writes is seen.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fuzz/choices.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright::fuzz {

// Wide enough for the offsets of any strides.
__extension__ using Wide = __int128;

// The bytes that a tensor's elements lie between, from its data pointer: [first, last).
struct Extent {
  Wide first;
  Wide last;
};

Extent extent_of(const ConstTensorView& tensor);

// The number of elements of a tensor, and each one's offset in bytes.
Wide element_count(const ConstTensorView& tensor);
std::vector<std::int64_t> byte_offsets(const ConstTensorView& tensor);

// Which strides a tensor may have.
enum class Strides : std::uint8_t {
  any,
  rows,        // the last dimension is contiguous
  contiguous,  // all but a batch in front of two dimensions
};

class Arena {
 public:
  static constexpr std::size_t k_bytes = std::size_t{128} << 10;
  static constexpr std::byte kCanary{0xA5};  // the value of all bytes before the call

  // Forgets all tensors.
  void clear();

  // A new tensor with strides that are padded, permuted, negative or, for an input, 0. Nothing if
  // there is no room.
  std::optional<TensorView> tensor(DType dtype, std::span<const std::int64_t> shape,
                                   Strides strides, bool is_output, Choices& choices);

  // Whether all of a tensor lies here.
  bool holds(const ConstTensorView& tensor) const;

  // Whether two tensors that lie here share a byte; whether two elements of one do.
  bool overlap(const ConstTensorView& a, const ConstTensorView& b);
  bool overlaps_itself(const ConstTensorView& tensor);

  // From here on writes are detected.
  void remember();
  bool is_unchanged() const;
  bool is_unchanged_beside(std::span<const ConstTensorView> outputs);

 private:
  std::int64_t index_of(const ConstTensorView& tensor) const;
  bool mark(const ConstTensorView& tensor);

  alignas(256) std::array<std::byte, k_bytes> bytes_{};
  std::array<std::byte, k_bytes> remembered_{};
  std::array<std::uint32_t, k_bytes> marks_{};
  std::uint32_t mark_ = 0;
  std::size_t used_ = 0;
};

}  // namespace tilewright::fuzz
