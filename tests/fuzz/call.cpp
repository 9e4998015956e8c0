#include "fuzz/call.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "fuzz/check.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::fuzz {
namespace {

constexpr Wide kMostElements = 1 << 15;

constexpr std::array kDTypes = {DType::fp32,   DType::fp16, DType::bf16, DType::int32, DType::int64,
                                DType::e2m1x2, DType::e4m3, DType::e8m0, DType::u8};

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

// Sizes and strides at the ends of types.
constexpr std::array<std::int64_t, 20> kExtremes = {0,
                                                    -1,
                                                    1,
                                                    2,
                                                    -2,
                                                    16,
                                                    1 << 20,
                                                    (1 << 30) - 1,
                                                    1 << 30,
                                                    std::int64_t{1} << 31,
                                                    (std::int64_t{1} << 31) - 1,
                                                    std::int64_t{1} << 32,
                                                    std::int64_t{1} << 40,
                                                    std::int64_t{1} << 60,
                                                    std::int64_t{1} << 61,
                                                    std::int64_t{1} << 62,
                                                    -(std::int64_t{1} << 62),
                                                    kMost,
                                                    kLeast,
                                                    kLeast + 1};

TensorView writable(const ConstTensorView& t) {
  return {const_cast<void*>(t.data), t.dtype, t.device, t.rank, t.shape, t.stride};
}

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Extremes are moved, too.
std::int64_t wrapped_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

}  // namespace

void Call::add(std::string_view name, DType dtype, const std::vector<std::int64_t>& shape,
               Strides strides, bool is_output) {
  const auto tensor = arena_.tensor(dtype, shape, strides, is_output, choices_);
  has_room_ = has_room_ && tensor;
  arguments_.push_back(
      {.name = name, .tensor = tensor.value_or(TensorView{}), .is_output = is_output});
}

void Call::add_optional(std::string_view name, DType dtype, const std::vector<std::int64_t>& shape,
                        Strides strides, bool is_output, bool is_given) {
  add(name, dtype, shape, strides, is_output);
  arguments_.back().is_optional = true;
  arguments_.back().is_given = is_given;
}

const Argument& Call::operator[](std::string_view name) const {
  return *std::ranges::find(arguments_, name, &Argument::name);
}

std::optional<TensorView> Call::output(std::string_view name) const {
  return is_given(name) ? std::optional(tensor(name)) : std::nullopt;
}

std::optional<ConstTensorView> Call::input(std::string_view name) const {
  return is_given(name) ? std::optional<ConstTensorView>(tensor(name)) : std::nullopt;
}

void Call::put_somewhere(std::string_view name, const std::vector<float>& values) {
  if (is_given(name) && choices_.one_in(8)) {
    const std::vector<std::int64_t> offsets = byte_offsets(tensor(name));
    const auto element_bytes = static_cast<std::int64_t>(size_bytes(tensor(name).dtype));
    reference::store(tensor(name), choices_.one_of(offsets) / element_bytes,
                     choices_.one_of(values));
  }
}

void Call::replace(std::string_view name, const TensorView& tensor) {
  Argument& argument = *std::ranges::find(arguments_, name, &Argument::name);
  argument.tensor = tensor;
  argument.is_given = true;
}

void Call::withdraw(std::string_view name) {
  std::ranges::find(arguments_, name, &Argument::name)->is_given = false;
}

// ---- Spoiling

void Call::spoil() {
  if (choices_.one_in(6)) {
    spoil_options();
  } else {
    spoil_tensor();
  }
  update_outputs();
}

void Call::set_is_output(std::string_view name, bool is_output) {
  std::ranges::find(arguments_, name, &Argument::name)->is_output = is_output;
}

void Call::spoil_tensor() {
  Argument& argument = arguments_[choices_.below(arguments_.size())];
  switch (choices_.below(8)) {
    case 0:
      argument.is_given = argument.is_given != argument.is_optional;
      break;
    case 1:
    case 2:
    case 3:
      spoil_address(argument.tensor);
      break;
    default:
      spoil_description(argument.tensor);
  }
}

void Call::spoil_description(TensorView& tensor) {
  const std::size_t dim = choices_.below(kMaxRank);
  switch (choices_.below(7)) {
    case 0:
      tensor.dtype = choices_.one_of(kDTypes);
      break;
    case 1:
      tensor.rank = static_cast<int>(choices_.between(-1, kMaxRank + 2));
      break;
    case 2:
      tensor.shape[dim] = wrapped_sum(tensor.shape[dim], choices_.coin() ? 1 : -1);
      break;
    case 3:
      tensor.shape[dim] = choices_.one_of(kExtremes);
      break;
    case 4:
      tensor.stride[dim] = wrapped_sum(tensor.stride[dim], choices_.between(-3, 3));
      break;
    case 5:
      tensor.stride[dim] = choices_.one_of(kExtremes);
      break;
    default:
      tensor.device = {DeviceKind::cuda, static_cast<int>(choices_.between(-1, 1))};
  }
}

void Call::spoil_address(TensorView& tensor) {
  const auto move = [&](const void* from, std::int64_t bytes) {
    tensor.data = reinterpret_cast<void*>(reinterpret_cast<std::intptr_t>(from) + bytes);
  };
  switch (choices_.below(4)) {
    case 0:
      tensor.data = nullptr;
      break;
    case 1:
      move(tensor.data, choices_.between(-3, 3));
      break;
    case 2:
      move(tensor.data, 64 * choices_.between(-64, 64));
      break;
    default:
      move(choices_.one_of(arguments_).tensor.data, 4 * choices_.between(-4, 4));
  }
}

// ---- Making

bool Call::can_be_made() const {
  return std::ranges::all_of(arguments_, [&](const Argument& argument) {
    return !argument.is_given ||
           (arena_.holds(argument.tensor) && element_count(argument.tensor) <= kMostElements);
  });
}

bool Call::inputs_overlap() const {
  const auto is_input = [](const Argument& argument) {
    return argument.is_given && !argument.is_output;
  };
  for (const Argument& a : arguments_) {
    for (const Argument& b : arguments_) {
      if (&a != &b && is_input(a) && is_input(b) && arena_.overlap(a.tensor, b.tensor)) {
        return true;
      }
    }
  }
  return false;
}

void fill_normal(const std::optional<ConstTensorView>& tensor, std::uint64_t seed) {
  if (tensor) {
    reference::fill_normal(writable(*tensor), seed);
  }
}

void fill_bytes(const std::optional<ConstTensorView>& tensor, std::uint64_t seed, int least,
                int most) {
  if (tensor) {
    for (const std::int64_t offset : byte_offsets(*tensor)) {
      seed = mixed(seed + 0x9e3779b97f4a7c15u);
      static_cast<std::uint8_t*>(writable(*tensor).data)[offset] = static_cast<std::uint8_t>(
          least + static_cast<int>(seed % static_cast<std::uint64_t>(most - least + 1)));
    }
  }
}

void check_near(const ConstTensorView& actual, const std::vector<double>& expected,
                const std::vector<double>& bounds, const char* message) {
  const auto element_bytes = static_cast<std::int64_t>(size_bytes(actual.dtype));
  std::size_t i = 0;
  for (const std::int64_t offset : byte_offsets(actual)) {
    const double value = reference::load(actual, offset / element_bytes);
    const double right = expected[i];
    const bool is_right = std::isnan(right)   ? std::isnan(value)
                          : std::isinf(right) ? value == right
                                              : std::abs(value - right) <= bounds[i];
    check(is_right, std::string(message) + " is " + std::to_string(value) + " at element " +
                        std::to_string(i) + ", must be " + std::to_string(right) + " within " +
                        std::to_string(bounds[i]));
    ++i;
  }
}

double rounding_of(DType dtype, double value) {
  const int digits = dtype == DType::bf16 ? 8 : dtype == DType::fp16 ? 11 : 24;
  const int least = dtype == DType::fp16 ? -14 : -126;
  const int exponent = value == 0 ? least : std::max(std::ilogb(value), least);
  return std::ldexp(1.0, exponent - digits);
}

}  // namespace tilewright::fuzz
