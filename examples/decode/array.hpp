// Arrays that the host fills and reads, on the CPU or with a twin on a GPU.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "tilewright/tensor.hpp"
#ifdef DECODE_ON_GPU
#include <cuda_runtime.h>
#endif

// Numbers of 16 bits: the upper half of an FP32, which is enough for what is stored here.
struct Bf16 {
  std::uint16_t bits = 0;

  Bf16() = default;
  Bf16(float value) : bits(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16)) {}
  operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

template <typename T>
inline constexpr tilewright::DType kDType = tilewright::DType::u8;
template <>
inline constexpr tilewright::DType kDType<float> = tilewright::DType::fp32;
template <>
inline constexpr tilewright::DType kDType<Bf16> = tilewright::DType::bf16;
template <>
inline constexpr tilewright::DType kDType<std::int32_t> = tilewright::DType::int32;

#ifdef DECODE_ON_GPU
inline void check(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}
#endif

template <typename T, std::size_t Rank>
class Array {
 public:
  Array(tilewright::Device device, const std::array<std::int64_t, Rank>& shape)
      : device_(device), shape_(shape) {
    std::int64_t size = 1;
    for (const std::int64_t length : shape) size *= length;
    host_.resize(static_cast<std::size_t>(size));
#ifdef DECODE_ON_GPU
    if (device.kind == tilewright::DeviceKind::cuda) {
      void* memory = nullptr;
      check(cudaMalloc(&memory, bytes()));
      twin_ = {memory, [](void* pointer) { cudaFree(pointer); }};
      to_device();
    }
#endif
  }

  std::vector<T>& host() { return host_; }
  std::size_t bytes() const { return host_.size() * sizeof(T); }
  void* data() { return twin_ != nullptr ? twin_.get() : host_.data(); }

  tilewright::TensorView view() {
    return tilewright::contiguous<T, Rank>(static_cast<T*>(data()), kDType<T>, shape_, device_);
  }

  // What the host has written.
  void to_device() {
#ifdef DECODE_ON_GPU
    if (twin_ != nullptr) check(cudaMemcpy(data(), host_.data(), bytes(), cudaMemcpyHostToDevice));
#endif
  }

  // What was queued before is waited for.
  void to_host() {
#ifdef DECODE_ON_GPU
    if (twin_ != nullptr) check(cudaMemcpy(host_.data(), data(), bytes(), cudaMemcpyDeviceToHost));
#endif
  }

 private:
  tilewright::Device device_;
  std::array<std::int64_t, Rank> shape_;
  std::vector<T> host_;
  std::unique_ptr<void, void (*)(void*)> twin_{nullptr, nullptr};
};
