// Problems of DeepSeek-V4's attention in GPU memory.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "device_tensor.hpp"
#include "problems/dsv4_problem.hpp"

namespace tilewright::test {

using Dsv4DeviceTensors = Dsv4TensorSet<DeviceTensor>;

inline Dsv4DeviceTensors to_device(const Dsv4HostTensors& host) {
  const auto copy = [](const std::optional<reference::HostTensor>& tensor) {
    return tensor ? std::optional<DeviceTensor>(std::in_place, *tensor) : std::nullopt;
  };
  const auto copy_scope = [&](const std::optional<Dsv4ScopeSet<reference::HostTensor>>& scope)
      -> std::optional<Dsv4ScopeSet<DeviceTensor>> {
    if (!scope) {
      return std::nullopt;
    }
    return Dsv4ScopeSet<DeviceTensor>{.rows = DeviceTensor(scope->rows),
                                      .range_end = copy(scope->range_end),
                                      .range_begin = copy(scope->range_begin),
                                      .block_table = copy(scope->block_table),
                                      .indices = copy(scope->indices),
                                      .list_lengths = copy(scope->list_lengths),
                                      .ring = scope->ring,
                                      .most_keys = scope->most_keys};
  };
  return {.q = DeviceTensor(host.q),
          .o = DeviceTensor(host.o),
          .lse = DeviceTensor(host.lse),
          .window = copy_scope(host.window),
          .compressed = copy_scope(host.compressed),
          .fresh_rows = copy(host.fresh_rows),
          .sinks = copy(host.sinks),
          .row_max = copy(host.row_max),
          .row_sum = copy(host.row_sum),
          .rotary_cos = copy(host.rotary_cos),
          .rotary_sin = copy(host.rotary_sin),
          .positions = copy(host.positions),
          .o_scale = copy(host.o_scale),
          .cu_seqlens_q = copy(host.cu_seqlens_q)};
}

// Tensors on the device, with outputs full of NaN, ready to run.
class Dsv4DeviceProblem {
 public:
  explicit Dsv4DeviceProblem(Dsv4HostTensors host)
      : host_(std::move(host)), device_(to_device(host_)) {}

  Dsv4AttentionTensors views() { return device_.views(); }

  void reset_outputs() { upload(host_.outputs(), device_.outputs()); }

  // Makes all tensors those of another problem of the same sizes.
  void upload(const Dsv4HostTensors& host) {
    host_ = host;
    upload(host_.inputs(), device_.inputs());
    reset_outputs();
  }

  // The host's tensors with the outputs that are on the device.
  Dsv4HostTensors results() {
    Dsv4HostTensors results = host_;
    const auto from = device_.outputs();
    const auto to = results.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      from[i]->download(*to[i]);
    }
    return results;
  }

  bool guards_untouched() {
    const auto intact = [](const DeviceTensor* tensor) { return tensor->guards_untouched(); };
    return std::ranges::all_of(device_.outputs(), intact) &&
           std::ranges::all_of(device_.inputs(), intact);
  }

 private:
  static void upload(const std::vector<reference::HostTensor*>& from,
                     const std::vector<DeviceTensor*>& to) {
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i]->upload(*from[i]);
    }
  }

  Dsv4HostTensors host_;
  Dsv4DeviceTensors device_;
};

// A call with a workspace of its own, which holds random bytes at first.
class Dsv4DeviceCall {
 public:
  Dsv4DeviceCall(const Dsv4AttentionTensors& tensors, const Dsv4AttentionOptions& options)
      : tensors_(tensors),
        options_(options),
        workspace_(dsv4_attention_workspace_bytes(tensors, options)) {}

  void launch(Stream stream) const {
    dsv4_attention(tensors_, options_, workspace_.view(), stream);
  }

 private:
  Dsv4AttentionTensors tensors_;
  Dsv4AttentionOptions options_;
  DeviceWorkspace workspace_;
};

inline void run(const Dsv4AttentionTensors& tensors, const Dsv4AttentionOptions& options) {
  Dsv4DeviceCall(tensors, options).launch(nullptr);
  cuda_ok(cudaDeviceSynchronize());
}

}  // namespace tilewright::test
