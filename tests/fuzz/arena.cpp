#include "fuzz/arena.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace tilewright::fuzz {
namespace {

using Shape = std::span<const std::int64_t>;

// Dimensions from the outermost to the innermost, as they lie in memory.
std::vector<std::size_t> memory_order(std::size_t rank, Strides strides, Choices& choices) {
  std::vector<std::size_t> order(rank);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t movable = strides == Strides::any ? rank : rank - 1;
  if (strides != Strides::contiguous && movable > 1 && choices.one_in(4)) {
    std::swap(order[choices.below(movable)], order[choices.below(movable)]);
  }
  return order;
}

// Whether a dimension's stride is free.
bool is_free(std::size_t dim, std::size_t rank, Strides strides) {
  return strides == Strides::any || (strides == Strides::rows && dim + 1 < rank) ||
         (strides == Strides::contiguous && dim + 2 < rank);
}

void choose_strides(TensorView& tensor, Shape shape, Strides strides, bool is_output,
                    Choices& choices) {
  const std::vector<std::size_t> order = memory_order(shape.size(), strides, choices);
  std::int64_t step = 1;
  for (auto dim = order.rbegin(); dim != order.rend(); ++dim) {
    std::int64_t& stride = tensor.stride[*dim];
    const bool may_change = is_free(*dim, shape.size(), strides);
    if (may_change && choices.one_in(8)) {
      step += choices.between(1, 5);
    }
    stride = step;
    step *= shape[*dim];
    if (may_change && choices.one_in(16)) {
      stride = -stride;
    } else if (may_change && !is_output && choices.one_in(16)) {
      stride = 0;
    } else if (may_change && shape[*dim] == 1 && choices.one_in(8)) {
      stride = choices.between(-3, 3) << choices.between(0, 60);  // it is never stepped over
    }
  }
}

}  // namespace

Extent extent_of(const ConstTensorView& tensor) {
  Wide first = 0;
  Wide last = 1;
  for (int i = 0; i < tensor.rank; ++i) {
    const Wide span = static_cast<Wide>(tensor.stride[i]) * (tensor.shape[i] - 1);
    (span < 0 ? first : last) += span;
  }
  const auto bytes = static_cast<Wide>(size_bytes(tensor.dtype));
  return {.first = first * bytes, .last = last * bytes};
}

Wide element_count(const ConstTensorView& tensor) {
  Wide count = 1;
  for (int i = 0; i < tensor.rank; ++i) {
    count *= tensor.shape[i];
  }
  return count;
}

std::vector<std::int64_t> byte_offsets(const ConstTensorView& tensor) {
  std::vector<std::int64_t> offsets = {0};
  for (int i = 0; i < tensor.rank; ++i) {
    std::vector<std::int64_t> inner;
    for (const std::int64_t offset : offsets) {
      for (std::int64_t j = 0; j < tensor.shape[i]; ++j) {
        inner.push_back(offset +
                        j * tensor.stride[i] * static_cast<std::int64_t>(size_bytes(tensor.dtype)));
      }
    }
    offsets = std::move(inner);
  }
  return offsets;
}

void Arena::clear() {
  used_ = 0;
  bytes_.fill(kCanary);
}

std::optional<TensorView> Arena::tensor(DType dtype, Shape shape, Strides strides, bool is_output,
                                        Choices& choices) {
  TensorView tensor{.dtype = dtype, .rank = static_cast<int>(shape.size())};
  std::ranges::copy(shape, tensor.shape.begin());
  choose_strides(tensor, shape, strides, is_output, choices);
  const auto [first, last] = extent_of(tensor);
  const std::size_t gap = size_bytes(dtype) * choices.below(8);
  const std::size_t begin = (used_ + 7) / 8 * 8 + gap;
  if (last - first > static_cast<Wide>(k_bytes) - static_cast<Wide>(begin)) {
    return std::nullopt;
  }
  used_ = begin + static_cast<std::size_t>(last - first);
  tensor.data = bytes_.data() + begin - static_cast<std::int64_t>(first);
  return tensor;
}

std::int64_t Arena::index_of(const ConstTensorView& tensor) const {
  return reinterpret_cast<std::intptr_t>(tensor.data) -
         reinterpret_cast<std::intptr_t>(bytes_.data());
}

bool Arena::holds(const ConstTensorView& tensor) const {
  const auto [first, last] = extent_of(tensor);
  const Wide index = index_of(tensor);
  return index + first >= 0 && index + last <= static_cast<Wide>(k_bytes);
}

// Whether no byte had this mark before.
bool Arena::mark(const ConstTensorView& tensor) {
  bool is_new = true;
  for (const std::int64_t offset : byte_offsets(tensor)) {
    for (std::size_t i = 0; i < size_bytes(tensor.dtype); ++i) {
      std::uint32_t& marked = marks_[static_cast<std::size_t>(index_of(tensor) + offset) + i];
      is_new = is_new && marked != mark_;
      marked = mark_;
    }
  }
  return is_new;
}

bool Arena::overlaps_itself(const ConstTensorView& tensor) {
  ++mark_;
  return !mark(tensor);
}

bool Arena::overlap(const ConstTensorView& a, const ConstTensorView& b) {
  ++mark_;
  mark(a);
  const std::uint32_t of_a = mark_;
  for (const std::int64_t offset : byte_offsets(b)) {
    const auto* const at = marks_.data() + index_of(b) + offset;
    if (std::find(at, at + size_bytes(b.dtype), of_a) != at + size_bytes(b.dtype)) {
      return true;
    }
  }
  return false;
}

void Arena::remember() { remembered_ = bytes_; }

bool Arena::is_unchanged() const { return bytes_ == remembered_; }

bool Arena::is_unchanged_beside(std::span<const ConstTensorView> outputs) {
  ++mark_;
  for (const ConstTensorView& output : outputs) {
    mark(output);
  }
  for (std::size_t i = 0; i < k_bytes; ++i) {
    if (bytes_[i] != remembered_[i] && marks_[i] != mark_) {
      return false;
    }
  }
  return true;
}

}  // namespace tilewright::fuzz
