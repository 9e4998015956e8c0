// What the library can run: the kernels of every operation, what they take, and why a kernel cannot
// run a problem. The operations are types, called Op below; they are in attention_kernels.hpp,
// attention_with_kvcache_kernels.hpp, gemm_bf16_kernels.hpp, gemm_nvfp4_kernels.hpp and
// nvfp4_kernels.hpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// What a kernel takes of an argument, in words: {"head_dim", "64, 128"}, {"window", "none"}.
struct Limit {
  std::string argument;
  std::string allowed;
};

// What is known of every kernel, whatever its operation.
struct KernelInfo {
  std::string name = {};                // what an operation's `kernel` option takes
  std::string_view operation = {};      // "attention", "gemm_nvfp4", ...
  std::string_view summary = {};        // one line
  DeviceKind device = DeviceKind::cpu;  // where its tensors live
  std::vector<int> architectures = {};  // compute capabilities, 90 for sm_90a; none on a CPU
  std::vector<DType> dtypes = {};       // of the first input, or of the output
  int alignment_bytes = 1;              // of base pointers and outer strides of large tensors
  std::string_view doc = {};            // its page, relative to the repository
  std::vector<Limit> limits = {};       // what else it takes
  bool is_built = false;                // whether this build of the library has code for it
};

// A device's properties that decide which kernels run there.
struct DeviceInfo {
  Device device{};
  std::string name;              // "NVIDIA H200", or the CPU's model name
  int compute_capability = 0;    // 90 for Hopper; 0 for the CPU
  int multiprocessors = 0;       // SMs, or the threads that the CPU backend will use
  std::size_t memory_bytes = 0;  // all of it, in use or not
  std::size_t l2_bytes = 0;
  std::size_t smem_per_block_bytes = 0;  // the largest that a block may ask for
};

// Why a kernel cannot run a problem: the contents of the Error that a call would throw.
struct Reason {
  ErrorCode code;
  std::string argument;
  std::string message;
};

// How a kernel runs a problem: decided on the host, from the problem and the device alone.
class Plan;

// A row of an operation's table: all about one kernel.
template <class Op>
struct Kernel {
  KernelInfo info = {};
  typename Op::Facts facts = {};

  // Why it cannot run a problem that `facts` allow; nothing if it can. Null: it always can.
  std::optional<Reason> (*refuses)(const Kernel& kernel, const typename Op::Problem& problem,
                                   const DeviceInfo& device) = nullptr;
  // Null: there is nothing to decide, and no workspace.
  Plan (*plan)(const typename Op::Problem& problem, const DeviceInfo& device) = nullptr;
  // Queues the kernel. Null where this build has no code for it.
  void (*launch)(const typename Op::Params& params, const Plan& plan, Stream stream) = nullptr;

  // Its configs, each as a kernel of its own: "flash/0" and on. They are there to be measured: one
  // runs every problem that it can, whether or not it is the best config for it.
  std::span<const Kernel> variants = {};
};

// An operation's table, which the functions below read.
template <class Op>
struct Table {
  using Problem = typename Op::Problem;

  static std::span<const Kernel<Op>> rows();
  static const Kernel<Op>* find(std::string_view name);
  static std::optional<Reason> can_run(const Kernel<Op>& kernel, const Problem& problem,
                                       const DeviceInfo& device);
  static const Kernel<Op>* variant_of(const Kernel<Op>& kernel, const Problem& problem,
                                      const DeviceInfo& device);
  static std::size_t workspace_bytes(const Kernel<Op>& kernel, const Problem& problem,
                                     const DeviceInfo& device);
};

// An operation's kernels, in ascending order of speed, whether or not this build or machine can run
// them. "auto" takes the last one that can run the problem.
template <class Op>
std::span<const Kernel<Op>> kernels() {
  return Table<Op>::rows();
}

// The kernels of all operations, without their variants. Those of an operation follow each other.
std::span<const KernelInfo* const> kernels();

// An operation's kernel or variant of that name, or null.
template <class Op>
const Kernel<Op>* find_kernel(std::string_view name) {
  return Table<Op>::find(name);
}

// Returns nothing if `kernel` runs `problem` on `device`, else the first reason why it does not. It
// depends on its arguments and on how the library was built, on nothing else.
template <class Op>
std::optional<Reason> can_run(const Kernel<Op>& kernel, const typename Op::Problem& problem,
                              const DeviceInfo& device) {
  return Table<Op>::can_run(kernel, problem, device);
}

// The same, with a look at the device alone: whatever the problem.
std::optional<Reason> can_run(const KernelInfo& kernel, const DeviceInfo& device);

// The variant in which `kernel` runs `problem` on `device`; null if it cannot run the problem or
// has no variants.
template <class Op>
const Kernel<Op>* variant_of(const Kernel<Op>& kernel, const typename Op::Problem& problem,
                             const DeviceInfo& device) {
  return Table<Op>::variant_of(kernel, problem, device);
}

// The bytes of workspace that `kernel` needs for `problem` on `device`. Throws if the kernel cannot
// run the problem there; the size of the device's memory does not matter.
template <class Op>
std::size_t workspace_bytes(const Kernel<Op>& kernel, const typename Op::Problem& problem,
                            const DeviceInfo& device) {
  return Table<Op>::workspace_bytes(kernel, problem, device);
}

// What a build without CUDA says of itself, and how to get one with it; empty in a build with CUDA.
std::string_view cpu_only_notice();

// The number of CUDA devices; 0 if there is no driver or this build has no CUDA.
int cuda_device_count();

// Reads a device's properties, and caches them. Throws no_device if there is no such device.
const DeviceInfo& device_info(Device device);

// Waits until a CUDA device has done what is queued on the stream; on the CPU nothing ever is.
// Throws no_device if there is no such device, and cuda with the error that the work ended in.
void synchronize(Device device, Stream stream);

}  // namespace tilewright
