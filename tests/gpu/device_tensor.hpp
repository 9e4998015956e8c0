// A host tensor's twin in GPU memory, between guard bytes.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::test {

inline void cuda_ok(cudaError_t status) {
  ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
}

// Copies between host and GPU, and returns when the bytes are there: from pageable memory
// cudaMemcpy alone may return before, and streams other than the default one do not wait for it.
inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  cuda_ok(cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
  cuda_ok(cudaStreamSynchronize(cudaStreamLegacy));
}

class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t bytes) {
    cuda_ok(cudaMalloc(&data_, std::max<std::size_t>(bytes, 1)));
  }
  ~DeviceBuffer() { cudaFree(data_); }
  DeviceBuffer(DeviceBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

// A call's workspace, which holds random bytes at first.
class DeviceWorkspace {
 public:
  explicit DeviceWorkspace(std::size_t bytes) : bytes_(bytes), buffer_(bytes) { scramble(); }

  Workspace view() const { return {buffer_.data(), bytes_}; }

  void scramble() {
    std::vector<std::uint32_t> noise(std::min(bytes_, kNoise_bytes) / 4 + 1);
    std::generate(noise.begin(), noise.end(), std::ref(random_));
    for (std::size_t first = 0; first < bytes_; first += kNoise_bytes) {
      copy_bytes(buffer_.data() + first, noise.data(), std::min(bytes_ - first, kNoise_bytes));
    }
  }

 private:
  static constexpr std::size_t kNoise_bytes = std::size_t{1} << 20;

  std::size_t bytes_;
  DeviceBuffer buffer_;
  std::mt19937 random_;
};

// Holds a copy of the host tensor's bytes, gaps between strides included. The bytes on both sides
// carry a pattern that guards_untouched() looks for.
class DeviceTensor {
 public:
  explicit DeviceTensor(const reference::HostTensor& host)
      : description_(host.view()), bytes_(host.bytes()), buffer_(host.bytes() + 2 * kGuard_bytes) {
    cuda_ok(cudaMemset(buffer_.data(), kPattern, bytes_ + 2 * kGuard_bytes));
    upload(host);
  }

  TensorView view() const {
    return {buffer_.data() + kGuard_bytes,
            description_.dtype,
            {DeviceKind::cuda, 0},
            description_.rank,
            description_.shape,
            description_.stride};
  }

  void upload(const reference::HostTensor& host) { copy_bytes(view().data, host.data(), bytes_); }

  void download(reference::HostTensor& host) const { copy_bytes(host.data(), view().data, bytes_); }

  bool guards_untouched() const {
    std::vector<std::byte> all(bytes_ + 2 * kGuard_bytes);
    copy_bytes(all.data(), buffer_.data(), all.size());
    const auto intact = [](std::byte b) { return b == std::byte{kPattern}; };
    return std::all_of(all.begin(), all.begin() + kGuard_bytes, intact) &&
           std::all_of(all.end() - kGuard_bytes, all.end(), intact);
  }

 private:
  static constexpr std::size_t kGuard_bytes = 4096;
  static constexpr unsigned char kPattern = 0xA5;

  ConstTensorView description_;
  std::size_t bytes_;
  DeviceBuffer buffer_;
};

}  // namespace tilewright::test
