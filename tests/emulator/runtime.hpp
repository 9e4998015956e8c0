// What the parts of the stand-in for the CUDA runtime share.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/machine.hpp"
#include "emulator/parser.hpp"

namespace tilewright::emulator {

// A kernel's registration: the module is parsed when it is first launched.
struct RegisteredModule {
  const void* fatbin = nullptr;
  std::unique_ptr<Module> module;
  Module& get();  // throws EmulationError
};

struct RegisteredKernel {
  RegisteredModule* module = nullptr;
  std::string name;
  int dynamic_shared_limit_bytes = 48 * 1024;
  const Kernel& get() { return module->get().kernel(name); }
};

// By the address of the host's stub, or what cudaGetKernel gave for it. Null if there is none.
RegisteredKernel* find_kernel(const void* stub);

// A variable of the device by its host shadow's address.
struct RegisteredVariable {
  RegisteredModule* module = nullptr;
  std::string name;
};
RegisteredVariable* find_variable(const void* shadow);

// The runtime is called from several threads; one at a time is let in.
std::recursive_mutex& runtime_mutex();

// Sets the thread's last error, and returns it.
cudaError_t fail(cudaError_t error);

// Runs work now, or records it if the stream is being captured.
struct GraphNode {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  std::function<cudaError_t()> work;
};
cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type, std::function<cudaError_t()> work);

}  // namespace tilewright::emulator
