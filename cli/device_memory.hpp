// A machine's memory, freed when the object that allocated it is destroyed.
#pragma once

#include <cstddef>
#include <vector>

#include "cli/machine.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::cli {

class DeviceMemory {
 public:
  explicit DeviceMemory(Machine& machine) : machine_(machine) {}

  std::byte* allocate(std::size_t bytes) {
    return memory_.emplace_back(machine_.allocate(bytes)).get();
  }

  // Copies the tensor to the machine, with the gaps between its elements.
  TensorView upload(reference::HostTensor& tensor) {
    TensorView view = tensor.view();
    view.data = allocate(tensor.bytes());
    view.device = machine_.device();
    machine_.upload(view.data, tensor.data(), tensor.bytes());
    return view;
  }

  // A workspace; an empty one if `bytes` is 0.
  Workspace workspace(std::size_t bytes) {
    return bytes > 0 ? Workspace{.data = allocate(bytes), .bytes = bytes} : Workspace{};
  }

 private:
  Machine& machine_;
  std::vector<Memory> memory_;
};

}  // namespace tilewright::cli
