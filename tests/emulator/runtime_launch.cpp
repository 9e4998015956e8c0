// Registration and launches of kernels of the stand-in for the CUDA runtime.
#include <cstdio>
#include <cstring>
#include <deque>
#include <unordered_map>

#include "emulator/runtime.hpp"

namespace tilewright::emulator {
namespace {

// The registered kernels and variables. Registration happens before main, in any order.
struct Registry {
  std::deque<RegisteredModule> modules;
  std::unordered_map<const void*, RegisteredKernel> kernels;
  std::unordered_map<const void*, RegisteredVariable> variables;
};

Registry& registry() {
  static Registry& instance = *new Registry;  // outlives whoever calls at the end of the program
  return instance;
}

struct FatbinWrapper {
  std::uint32_t magic;
  std::uint32_t version;
  const std::byte* data;
};

template <typename T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// The PTX in a fat binary: a header, then entries of a header and a payload each.
std::string find_ptx(const void* fatbin) {
  constexpr std::uint16_t kPtx = 1;
  constexpr std::uint64_t kCompressed = 0x2000 | 0x8000;
  const std::byte* at = static_cast<const FatbinWrapper*>(fatbin)->data;
  const std::byte* const end = at + read<std::uint16_t>(at + 6) + read<std::uint64_t>(at + 8);
  at += read<std::uint16_t>(at + 6);
  while (at < end) {
    const auto header = read<std::uint32_t>(at + 4);
    const auto bytes = read<std::uint64_t>(at + 8);
    if (read<std::uint16_t>(at) == kPtx) {
      if ((read<std::uint64_t>(at + 40) & kCompressed) != 0) {
        throw EmulationError("the PTX is compressed: compile with --no-compress");
      }
      const auto* const text = reinterpret_cast<const char*>(at + header);
      return std::string(text, strnlen(text, bytes));
    }
    at += header + bytes;
  }
  throw EmulationError("there is no PTX: compile with code=[compute_90a]");
}

Dim3 dim_of(dim3 size) { return {size.x, size.y, size.z}; }

// The shape of a launch, or why it is none.
cudaError_t shape_of(const cudaLaunchConfig_t& config, RegisteredKernel& registered,
                     const Kernel& kernel, LaunchShape* shape) {
  shape->grid = dim_of(config.gridDim);
  shape->block = dim_of(config.blockDim);
  shape->dynamic_shared_bytes = static_cast<std::uint32_t>(config.dynamicSmemBytes);
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) {
      shape->cluster = {attribute.val.clusterDim.x, attribute.val.clusterDim.y,
                        attribute.val.clusterDim.z};
      shape->has_cluster = true;
    }
  }
  if (!shape->has_cluster && kernel.required_cluster[0] != 0) {
    shape->cluster = {kernel.required_cluster[0], kernel.required_cluster[1],
                      kernel.required_cluster[2]};
    shape->has_cluster = true;
  }
  const std::uint64_t threads = shape->block.count();
  if (shape->grid.count() == 0 || threads == 0 || threads > 1024 || shape->grid.y > 65535 ||
      shape->grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  if (threads > kernel.max_threads.value_or(1024)) {
    return cudaErrorLaunchOutOfResources;
  }
  const std::uint64_t cluster = shape->cluster.count();
  if (cluster == 0 || cluster > 16 || shape->grid.x % shape->cluster.x != 0 ||
      shape->grid.y % shape->cluster.y != 0 || shape->grid.z % shape->cluster.z != 0) {
    return cudaErrorInvalidClusterSize;
  }
  constexpr std::uint32_t kMostShared_bytes = 227 * 1024;
  if (config.dynamicSmemBytes > static_cast<std::size_t>(registered.dynamic_shared_limit_bytes) ||
      shape->dynamic_shared_bytes + kernel.static_shared_bytes > kMostShared_bytes) {
    return cudaErrorInvalidValue;
  }
  return cudaSuccess;
}

cudaError_t report(const EmulationError& error) {
  std::fflush(stdout);
  std::fprintf(stderr, "emulator: %s\n", error.what());
  return fail(cudaErrorLaunchFailure);
}

cudaError_t run(const Kernel& kernel, const LaunchShape& shape,
                const std::vector<std::byte>& parameters) {
  Grid grid;
  grid.kernel = &kernel;
  grid.shape = shape;
  // Tensor maps among the parameters are aligned as on the device.
  constexpr std::size_t kAlignment = 128;
  grid.parameters_storage.resize(parameters.size() + kAlignment);
  void* place = grid.parameters_storage.data();
  std::size_t space = grid.parameters_storage.size();
  std::align(kAlignment, parameters.size(), place, space);
  grid.parameters = {static_cast<std::byte*>(place), parameters.size()};
  std::memcpy(place, parameters.data(), parameters.size());
  try {
    grid.run();
  } catch (const EmulationError& error) {
    return report(error);
  }
  return cudaSuccess;
}

cudaError_t launch(const cudaLaunchConfig_t& config, const void* stub, void** arguments) {
  const std::scoped_lock lock(runtime_mutex());
  RegisteredKernel* const registered = find_kernel(stub);
  if (registered == nullptr) {
    return fail(cudaErrorInvalidDeviceFunction);
  }
  try {
    const Kernel& kernel = registered->get();
    LaunchShape shape;
    if (const cudaError_t error = shape_of(config, *registered, kernel, &shape);
        error != cudaSuccess) {
      return fail(error);
    }
    std::vector<std::byte> parameters(kernel.parameter_bytes);
    for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
      std::memcpy(parameters.data() + kernel.parameters[i].offset, arguments[i],
                  kernel.parameters[i].bytes);
    }
    if (settings().trace) {
      std::fprintf(stderr, "emulator: %s grid (%u, %u, %u) block %u cluster %u smem %u\n",
                   kernel.name.c_str(), shape.grid.x, shape.grid.y, shape.grid.z,
                   static_cast<unsigned>(shape.block.count()),
                   static_cast<unsigned>(shape.cluster.count()), shape.dynamic_shared_bytes);
    }
    return enqueue(config.stream, cudaGraphNodeTypeKernel,
                   [&kernel, shape, parameters] { return run(kernel, shape, parameters); });
  } catch (const EmulationError& error) {
    return report(error);
  }
}

struct Configuration {
  dim3 grid, block;
  std::size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Configuration> configurations;

cudaLaunchConfig_t config_of(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return config;
}

}  // namespace

Module& RegisteredModule::get() {
  if (module == nullptr) {
    module = std::make_unique<Module>(find_ptx(fatbin));
  }
  return *module;
}

RegisteredKernel* find_kernel(const void* stub) {
  const auto found = registry().kernels.find(stub);
  return found == registry().kernels.end() ? nullptr : &found->second;
}

RegisteredVariable* find_variable(const void* shadow) {
  const auto found = registry().variables.find(shadow);
  return found == registry().variables.end() ? nullptr : &found->second;
}

}  // namespace tilewright::emulator

using namespace tilewright::emulator;

extern "C" {

void** __cudaRegisterFatBinary(void* fatbin) {
  RegisteredModule& module = registry().modules.emplace_back();
  module.fatbin = fatbin;
  return reinterpret_cast<void**>(&module);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** module, const char* stub, char*, const char* name, int, void*,
                            void*, void*, void*, int*) {
  registry().kernels[stub] = {reinterpret_cast<RegisteredModule*>(module), name};
}

void __cudaRegisterVar(void** module, char* shadow, char*, const char* name, int, std::size_t, int,
                       int) {
  registry().variables[shadow] = {reinterpret_cast<RegisteredModule*>(module), name};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes,
                                     cudaStream_t stream) {
  configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes,
                                       void* stream) {
  if (configurations.empty()) {
    return cudaErrorMissingConfiguration;
  }
  const Configuration configuration = configurations.back();
  configurations.pop_back();
  *grid = configuration.grid;
  *block = configuration.block;
  *shared_bytes = configuration.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = configuration.stream;
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared_bytes, cudaStream_t stream) {
  return launch(config_of(grid, block, shared_bytes, stream), kernel, arguments);
}

cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  return launch(config_of(grid, block, shared_bytes, stream), stub, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub,
                                void** arguments) {
  return launch(*config, stub, arguments);
}

cudaError_t cudaFuncSetAttribute(const void* stub, cudaFuncAttribute attribute, int value) {
  const std::scoped_lock lock(runtime_mutex());
  RegisteredKernel* const registered = find_kernel(stub);
  if (registered == nullptr) {
    return fail(cudaErrorInvalidDeviceFunction);
  }
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    if (value < 0 || value > 227 * 1024) {
      return fail(cudaErrorInvalidValue);
    }
    registered->dynamic_shared_limit_bytes = value;
  }
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* stub,
                                           const cudaLaunchConfig_t* config) {
  const std::scoped_lock lock(runtime_mutex());
  RegisteredKernel* const registered = find_kernel(stub);
  if (registered == nullptr) {
    return fail(cudaErrorInvalidDeviceFunction);
  }
  try {
    Grid grid;
    grid.kernel = &registered->get();
    if (const cudaError_t error = shape_of(*config, *registered, *grid.kernel, &grid.shape);
        error != cudaSuccess) {
      return fail(error);
    }
    *clusters = static_cast<int>(grid.resident_clusters());
  } catch (const EmulationError& error) {
    return report(error);
  }
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* stub,
                                                                   int threads,
                                                                   std::size_t shared_bytes,
                                                                   unsigned) {
  const cudaLaunchConfig_t config =
      config_of(dim3(1), dim3(static_cast<unsigned>(threads)), shared_bytes, nullptr);
  int all = 0;
  const cudaError_t error = cudaOccupancyMaxActiveClusters(&all, stub, &config);
  *blocks = all / settings().multiprocessors;
  return error;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* stub,
                                                          int threads, std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, stub, threads, shared_bytes,
                                                                0);
}

}  // extern "C"
