#include "fuzz/contract.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

namespace tilewright::fuzz {
namespace {

constexpr std::int64_t kMostSize = (std::int64_t{1} << 30) - 1;
constexpr Wide kMostSpan_bytes = Wide{1} << 60;
constexpr Wide kSpanSlack_bytes = 1 << 12;  // the library adds spans up in floating point

Wide magnitude(std::int64_t value) { return value < 0 ? -Wide{value} : Wide{value}; }

std::span<const std::int64_t> sizes_of(const TensorView& tensor) {
  return {tensor.shape.data(), static_cast<std::size_t>(tensor.rank)};
}

// Does every dimension step over all that lies below it?
bool is_nested(const ConstTensorView& tensor) {
  std::vector<std::pair<Wide, Wide>> dims;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] > 1) {
      dims.emplace_back(magnitude(tensor.stride[i]), tensor.shape[i]);
    }
  }
  std::ranges::sort(dims);
  Wide below = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= below) {
      return false;
    }
    below += stride * (size - 1);
  }
  return true;
}

bool has_broadcast(const ConstTensorView& tensor) {
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.shape[i] > 1 && tensor.stride[i] == 0) {
      return true;
    }
  }
  return false;
}

// Whether two tensors, wherever they are, lie one behind the other.
bool are_disjoint(const ConstTensorView& a, const ConstTensorView& b) {
  const auto at = [](const ConstTensorView& t) {
    return Wide{reinterpret_cast<std::intptr_t>(t.data)};
  };
  const Extent of_a = extent_of(a);
  const Extent of_b = extent_of(b);
  return at(a) + of_a.last <= at(b) + of_b.first || at(b) + of_b.last <= at(a) + of_a.first;
}

}  // namespace

std::int64_t known(std::int64_t size) { return size >= 1 && size <= kMostSize ? size : kAny; }

bool Contract::may_name(std::string_view argument) const {
  const auto has = [&](const std::vector<std::string>& names) {
    return std::ranges::find(names, argument) != names.end();
  };
  return is_refused_for_device_ || has(broken_) || has(broken_contents_) || has(doubts_);
}

std::string Contract::text() const {
  return fmt::format("{} {}", fmt::join(broken_, " "), fmt::join(broken_contents_, " "));
}

bool Contract::has_shape(const Argument& argument, const std::vector<std::int64_t>& shape) {
  const TensorView& tensor = argument.tensor;
  if (tensor.rank != static_cast<int>(shape.size())) {
    refuse(argument.name);
    return false;
  }
  const std::int64_t* expected = shape.data();
  bool has_sizes = true;
  for (const std::int64_t size : sizes_of(tensor)) {
    if (size < 1 || size > kMostSize || (*expected != kAny && size != *expected)) {
      refuse(argument.name);
    }
    has_sizes = has_sizes && size >= 1;
    ++expected;
  }
  const auto address = reinterpret_cast<std::intptr_t>(tensor.data);
  if (address == 0 || address % static_cast<std::intptr_t>(size_bytes(tensor.dtype)) != 0) {
    refuse(argument.name);
  }
  if (has_sizes && has_extent(argument) && address != 0) {
    sound_.emplace_back(argument.name);
  }
  return true;
}

// Whether its elements lie near enough to each other.
bool Contract::has_extent(const Argument& argument) {
  const auto [first, last] = extent_of(argument.tensor);
  const Wide span = last - first - static_cast<Wide>(size_bytes(argument.tensor.dtype));
  if (span > kMostSpan_bytes + kSpanSlack_bytes) {
    refuse(argument.name);
    return false;
  }
  if (span > kMostSpan_bytes) {
    doubt(argument.name);
  }
  return true;
}

void Contract::has_dtype(const Argument& argument, std::initializer_list<DType> dtypes) {
  if (std::ranges::find(dtypes, argument.tensor.dtype) == dtypes.end()) {
    refuse(argument.name);
  }
}

void Contract::has_strides(const Argument& argument, Strides strides) {
  const TensorView& tensor = argument.tensor;
  const int last = tensor.rank - 1;
  const auto must_be = [&](int dim, std::int64_t stride) {
    if (tensor.stride[dim] != stride) {
      tensor.shape[dim] > 1 ? refuse(argument.name) : doubt(argument.name);
    }
  };
  if (strides != Strides::any) {
    must_be(last, 1);
  }
  if (strides == Strides::contiguous && last > 0) {
    must_be(last - 1, tensor.shape[last]);
  }
}

void Contract::on_one_device(const std::vector<Argument>& arguments) {
  const Device device = arguments.front().tensor.device;
  for (const Argument& argument : arguments) {
    if (argument.is_given && argument.tensor.device != device) {
      refuse(argument.name);
    }
  }
  if (device.kind != DeviceKind::cpu) {
    refuse_device();
  }
}

void Contract::outputs_are_apart(
    const std::vector<Argument>& arguments,
    std::optional<std::pair<std::string_view, std::string_view>> ignored) {
  for (const Argument& output : arguments) {
    if (!output.is_output || !is_sound(output)) {
      continue;
    }
    is_apart_from_itself(output);
    for (const Argument& other : arguments) {
      if (is_sound(other) && other.name != output.name &&
          (!ignored || ignored->first != output.name || ignored->second != other.name)) {
        is_apart(output, other);
      }
    }
  }
}

bool Contract::is_sound(const Argument& argument) const {
  return argument.is_given && std::ranges::find(sound_, argument.name) != sound_.end();
}

void Contract::is_apart_from_itself(const Argument& output) {
  const bool is_here =
      arena_.holds(output.tensor) && element_count(output.tensor) <= Arena::k_bytes;
  if (has_broadcast(output.tensor) || (is_here && arena_.overlaps_itself(output.tensor))) {
    refuse(output.name);
  } else if (!is_nested(output.tensor)) {
    doubt(output.name);  // elements interleave without meeting
  }
}

void Contract::is_apart(const Argument& output, const Argument& other) {
  const auto is_here = [&](const Argument& argument) {
    return arena_.holds(argument.tensor) && element_count(argument.tensor) <= Arena::k_bytes;
  };
  if (is_here(output) && is_here(other)) {
    if (arena_.overlap(output.tensor, other.tensor)) {
      refuse(output.name);
      refuse(other.name);
    }
  } else if (!are_disjoint(output.tensor, other.tensor)) {
    doubt(output.name);
    doubt(other.name);
  }
}

}  // namespace tilewright::fuzz
