// Problems of attention over KV caches in GPU memory.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "device_tensor.hpp"
#include "problems/kvcache_problem.hpp"
#include "tilewright/attention_with_kvcache.hpp"

namespace tilewright::test {

using KvCacheDeviceTensors = KvCacheTensorSet<DeviceTensor>;

inline KvCacheDeviceTensors to_device(const KvCacheHostTensors& host) {
  const auto copy = [](const std::optional<reference::HostTensor>& tensor) {
    return tensor ? std::optional<DeviceTensor>(std::in_place, *tensor) : std::nullopt;
  };
  return {.q = DeviceTensor(host.q),
          .caches = DeviceTensor(host.caches),
          .o = DeviceTensor(host.o),
          .lse = DeviceTensor(host.lse),
          .cache_seqlens = DeviceTensor(host.cache_seqlens),
          .k_layout = host.k_layout,
          .v_layout = host.v_layout,
          .block_table = copy(host.block_table),
          .cache_batch_idx = copy(host.cache_batch_idx),
          .leftpad_k = copy(host.leftpad_k),
          .prefix_groups = copy(host.prefix_groups),
          .prefix_seqlens = copy(host.prefix_seqlens),
          .cu_seqlens_q = copy(host.cu_seqlens_q),
          .k = copy(host.k),
          .v = copy(host.v),
          .q_descale = copy(host.q_descale),
          .k_descale = copy(host.k_descale),
          .v_descale = copy(host.v_descale),
          .tree_mask = copy(host.tree_mask),
          .sinks = copy(host.sinks),
          .row_max = copy(host.row_max),
          .row_sum = copy(host.row_sum)};
}

// Tensors on the device, with outputs full of NaN, ready to run.
class KvCacheDeviceProblem {
 public:
  explicit KvCacheDeviceProblem(KvCacheHostTensors host)
      : host_(std::move(host)), device_(to_device(host_)) {}

  AttentionWithKvCacheTensors views() { return device_.views(); }

  // Makes outputs and caches what they were.
  void reset_outputs() {
    const auto from = host_.outputs();
    const auto to = device_.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i]->upload(*from[i]);
    }
  }

  // Makes all tensors those of another problem of the same sizes.
  void upload(const KvCacheHostTensors& host) {
    host_ = host;
    device_.q.upload(host.q);
    device_.cache_seqlens.upload(host.cache_seqlens);
    const auto upload = [](const auto& from, auto& to) {
      if (from) {
        to->upload(*from);
      }
    };
    upload(host.block_table, device_.block_table);
    upload(host.cache_batch_idx, device_.cache_batch_idx);
    upload(host.leftpad_k, device_.leftpad_k);
    upload(host.prefix_groups, device_.prefix_groups);
    upload(host.prefix_seqlens, device_.prefix_seqlens);
    upload(host.cu_seqlens_q, device_.cu_seqlens_q);
    upload(host.k, device_.k);
    upload(host.v, device_.v);
    upload(host.q_descale, device_.q_descale);
    upload(host.k_descale, device_.k_descale);
    upload(host.v_descale, device_.v_descale);
    upload(host.tree_mask, device_.tree_mask);
    upload(host.sinks, device_.sinks);
    reset_outputs();
  }

  // The host's tensors with the outputs and caches that are on the device.
  KvCacheHostTensors results() {
    KvCacheHostTensors results = host_;
    const auto from = device_.outputs();
    const auto to = results.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      from[i]->download(*to[i]);
    }
    return results;
  }

  bool guards_untouched() {
    return std::ranges::all_of(device_.outputs(),
                               [](const auto* tensor) { return tensor->guards_untouched(); });
  }

 private:
  KvCacheHostTensors host_;
  KvCacheDeviceTensors device_;
};

// A call with a workspace of its own, which holds random bytes at first.
class KvCacheDeviceCall {
 public:
  KvCacheDeviceCall(const AttentionWithKvCacheTensors& tensors,
                    const AttentionWithKvCacheOptions& options)
      : tensors_(tensors),
        options_(options),
        workspace_(attention_with_kvcache_workspace_bytes(tensors, options)) {}

  void launch(Stream stream) const {
    attention_with_kvcache(tensors_, options_, workspace_.view(), stream);
  }

 private:
  AttentionWithKvCacheTensors tensors_;
  AttentionWithKvCacheOptions options_;
  DeviceWorkspace workspace_;
};

inline void run(const AttentionWithKvCacheTensors& tensors,
                const AttentionWithKvCacheOptions& options) {
  KvCacheDeviceCall(tensors, options).launch(nullptr);
  cuda_ok(cudaDeviceSynchronize());
}

}  // namespace tilewright::test
