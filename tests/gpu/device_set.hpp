// Sets of a problem's tensors on the device, and calls on them in a graph.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "captured_graph.hpp"
#include "device_problem.hpp"
#include "device_tensor.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::test {

inline std::optional<DeviceTensor> device_copy(const std::optional<reference::HostTensor>& tensor) {
  return tensor ? std::optional<DeviceTensor>(std::in_place, *tensor) : std::nullopt;
}

// A set on the host, and its copy on the device.
template <template <typename> class Set>
class DeviceSet {
 public:
  DeviceSet(Set<reference::HostTensor> host, Set<DeviceTensor> device)
      : host_(std::move(host)), device_(std::move(device)) {}

  auto views() { return device_.views(); }

  // Outputs as the host has them.
  void reset_outputs() {
    const auto from = host_.outputs();
    const auto to = device_.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i]->upload(*from[i]);
    }
  }

  // The host's set with the outputs that are on the device, when that has done its work.
  Set<reference::HostTensor> results() {
    cuda_ok(cudaDeviceSynchronize());
    Set<reference::HostTensor> results = host_;
    const auto from = device_.outputs();
    const auto to = results.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      from[i]->download(*to[i]);
    }
    return results;
  }

  bool guards_untouched() {
    const auto outputs = device_.outputs();
    return std::ranges::all_of(outputs,
                               [](const auto* tensor) { return tensor->guards_untouched(); });
  }

 private:
  Set<reference::HostTensor> host_;
  Set<DeviceTensor> device_;
};

// Captures launch(stream) in a graph, and replays it twice, between before() and after().
template <typename Launch, typename Before, typename After>
void replay(Launch launch, Before before, After after) {
  const CapturedGraph graph(launch);
  for (int time = 0; time < 2; ++time) {
    before();
    graph.replay();
    after();
  }
}

}  // namespace tilewright::test
