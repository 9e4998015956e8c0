// Tensors as the library sees them: a pointer and a description, owned by the caller.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

namespace tilewright {

enum class DType : std::uint8_t {
  fp32,
  fp16,
  bf16,
  int32,
  int64,
  e2m1x2,  // a byte of two FP4 values; shapes and strides count bytes
  e4m3,    // FP8 without infinities (e4m3fn); of block scales the sign is 0
  e8m0,    // an exponent only: 2^(byte - 127), and 255 is NaN
  u8,      // bytes whose meaning their operation defines
};

constexpr std::size_t size_bytes(DType dtype) {
  switch (dtype) {
    case DType::int64:
      return 8;
    case DType::fp32:
    case DType::int32:
      return 4;
    case DType::fp16:
    case DType::bf16:
      return 2;
    case DType::e2m1x2:
    case DType::e4m3:
    case DType::e8m0:
    case DType::u8:
      return 1;
  }
  return 0;
}

// "fp32", "fp16", "e4m3", ...: the spelling used in messages, results files and on the command
// line.
constexpr std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return "fp32";
    case DType::fp16:
      return "fp16";
    case DType::bf16:
      return "bf16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::e2m1x2:
      return "e2m1x2";
    case DType::e4m3:
      return "e4m3";
    case DType::e8m0:
      return "e8m0";
    case DType::u8:
      return "u8";
  }
  return "unknown";
}

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  friend constexpr bool operator==(Device, Device) = default;
};

// "cpu" or "cuda:0".
inline std::string name(Device device) {
  return device.kind == DeviceKind::cpu ? "cpu" : "cuda:" + std::to_string(device.index);
}

inline constexpr int kMaxRank = 5;

// A strided tensor in memory that the caller owns.
//   shape, stride   the first `rank` entries count; strides are in elements, as in DLPack.
//   Void            `void` for outputs, `const void` for inputs.
// A tensor that an operation takes has sizes from 1 to 2^30 - 1, a data pointer that is aligned to
// elements, and elements that lie at most 2^60 bytes apart. The stride of a dimension of size 1
// does not matter.
template <typename Void>
struct BasicTensorView {
  static_assert(std::is_void_v<Void>);

  Void* data = nullptr;
  DType dtype = DType::fp32;
  Device device{};
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> stride{};

  // An output may be read: TensorView converts to ConstTensorView.
  template <typename Other>
  requires(std::is_const_v<Other> && !std::is_const_v<Void>) operator BasicTensorView<Other>()
      const {
    return {data, dtype, device, rank, shape, stride};
  }
};

using TensorView = BasicTensorView<void>;
using ConstTensorView = BasicTensorView<const void>;

// A view of dense row-major memory: the last dimension contiguous, no padding.
template <typename T, std::size_t Rank>
BasicTensorView<std::conditional_t<std::is_const_v<T>, const void, void>> contiguous(
    T* data, DType dtype, const std::array<std::int64_t, Rank>& shape, Device device = {}) {
  static_assert(Rank >= 1 && Rank <= kMaxRank);
  BasicTensorView<std::conditional_t<std::is_const_v<T>, const void, void>> view;
  view.data = data;
  view.dtype = dtype;
  view.device = device;
  view.rank = static_cast<int>(Rank);
  std::int64_t step = 1;
  for (std::size_t i = Rank; i-- > 0;) {
    view.shape[i] = shape[i];
    view.stride[i] = step;
    step *= shape[i];
  }
  return view;
}

}  // namespace tilewright
