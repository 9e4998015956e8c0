// Problems in GPU memory, and calls on them.
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "device_tensor.hpp"
#include "problems/problem.hpp"
#include "tilewright/attention.hpp"

namespace tilewright::test {

using DeviceTensors = TensorSet<DeviceTensor>;

inline DeviceTensors to_device(const HostTensors& host) {
  const auto copy = [](const std::optional<reference::HostTensor>& tensor) {
    return tensor ? std::optional<DeviceTensor>(std::in_place, *tensor) : std::nullopt;
  };
  return {.q = DeviceTensor(host.q),
          .k = DeviceTensor(host.k),
          .v = DeviceTensor(host.v),
          .o = DeviceTensor(host.o),
          .lse = DeviceTensor(host.lse),
          .sinks = copy(host.sinks),
          .cu_seqlens_q = copy(host.cu_seqlens_q),
          .cu_seqlens_k = copy(host.cu_seqlens_k),
          .seqused_k = copy(host.seqused_k),
          .row_max = copy(host.row_max),
          .row_sum = copy(host.row_sum)};
}

// Tensors on the device, with outputs full of NaN, ready to run.
class DeviceProblem {
 public:
  explicit DeviceProblem(const Problem& problem) : DeviceProblem(make_tensors(problem)) {}
  explicit DeviceProblem(HostTensors host) : host_(std::move(host)), device_(to_device(host_)) {}

  AttentionTensors views() { return device_.views(); }

  void reset_outputs() {
    const auto from = host_.outputs();
    const auto to = device_.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i]->upload(*from[i]);
    }
  }

  // The host's tensors with the outputs that are on the device.
  HostTensors results() {
    HostTensors results = host_;
    download_outputs(results);
    return results;
  }

  void download_outputs(HostTensors& results) {
    const auto from = device_.outputs();
    const auto to = results.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      from[i]->download(*to[i]);
    }
  }

  bool guards_untouched() {
    const auto outputs = device_.outputs();
    return std::ranges::all_of(outputs,
                               [](const auto* tensor) { return tensor->guards_untouched(); });
  }

 private:
  HostTensors host_;
  DeviceTensors device_;
};

// A call with a workspace of its own, which holds random bytes at first.
class DeviceCall {
 public:
  DeviceCall(const AttentionTensors& tensors, const AttentionOptions& options)
      : tensors_(tensors),
        options_(options),
        workspace_(attention_workspace_bytes(tensors, options)) {}

  void launch(Stream stream) const { attention(tensors_, options_, workspace_.view(), stream); }

  void scramble_workspace() { workspace_.scramble(); }

 private:
  AttentionTensors tensors_;
  AttentionOptions options_;
  DeviceWorkspace workspace_;
};

inline void run(const AttentionTensors& tensors, const AttentionOptions& options) {
  DeviceCall(tensors, options).launch(nullptr);
  cuda_ok(cudaDeviceSynchronize());
}

// A stream that does not wait for the default one.
class DeviceStream {
 public:
  DeviceStream() { cuda_ok(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~DeviceStream() { cudaStreamDestroy(stream_); }
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  Stream get() const { return stream_; }
  bool is_idle() const { return cudaStreamQuery(stream_) == cudaSuccess; }
  void wait() const { cuda_ok(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace tilewright::test
