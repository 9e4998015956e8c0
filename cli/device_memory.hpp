// A machine's memory, freed when the object that allocated it is destroyed.
#pragma once

#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <vector>

#include "cli/machine.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::cli {

// An output on a machine, and in host memory once it has been run.
struct Output {
  reference::HostTensor host;
  TensorView view;
};

class DeviceMemory {
 public:
  // What outputs are full of before a run. Repeated it is a NaN in every dtype.
  static constexpr int kPoison = 0xFF;

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

  Output output(reference::HostTensor host) {
    const TensorView view = upload(host);
    return {std::move(host), view};
  }
  Output output(DType dtype, std::vector<std::int64_t> shape) {
    return output(reference::HostTensor(dtype, std::move(shape)));
  }

  // A workspace in place of the last one; an empty one if `bytes` is 0.
  Workspace workspace(std::size_t bytes) {
    workspace_.reset();  // frees the last one before the next one is allocated
    if (bytes > 0) {
      workspace_ = machine_.allocate(bytes);
    }
    return {workspace_.get(), bytes};
  }

  // Runs a launch once, with its outputs poisoned before, and brings them to the host.
  void run(const Launch& launch, std::initializer_list<Output*> outputs) {
    for (Output* const output : outputs) {
      std::memset(output->host.data(), kPoison, output->host.bytes());
      machine_.upload(output->view.data, output->host.data(), output->host.bytes());
    }
    machine_.run(launch);
    for (Output* const output : outputs) {
      machine_.download(output->host.data(), output->view.data, output->host.bytes());
    }
  }

 private:
  Machine& machine_;
  std::vector<Memory> memory_;
  Memory workspace_;
};

}  // namespace tilewright::cli
