// What the library can run: the kernels of every operation, what they take, and why one cannot run
// a problem. The operations themselves are in attention_kernels.hpp, gemm_kernels.hpp and
// nvfp4_kernels.hpp: each is a type, Op below.
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

// What every kernel has, whatever its operation.
struct KernelInfo {
  std::string name = {};                // what an operation's `kernel` option takes
  std::string_view operation = {};      // "attention", "gemm_nvfp4", ...
  std::string_view summary = {};        // one line
  DeviceKind device = DeviceKind::cpu;  // where its tensors live
  std::vector<int> architectures = {};  // compute capabilities, 90 for sm_90a; none on a CPU
  std::vector<DType> dtypes = {};       // of the first input, or of the output
  int alignment_bytes = 1;              // of base pointers and outer strides of large tensors
  std::string_view doc = {};            // its page, relative to the repository
  std::vector<Limit> limits = {};       // what else it asks for
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

// Why a kernel cannot run a problem: what the thrown Error would carry.
struct Reason {
  ErrorCode code;
  std::string argument;
  std::string message;
};

// How a kernel runs a problem: decided on the host, from shapes alone.
class Plan;

// A row of an operation's table: a kernel, complete.
template <class Op>
struct Kernel {
  KernelInfo info = {};
  typename Op::Facts facts = {};

  // Why it cannot run a problem that `facts` allows; nothing where it can. Null: it can always.
  std::optional<Reason> (*refuses)(const Kernel& kernel, const typename Op::Problem& problem,
                                   const DeviceInfo& device) = nullptr;
  // Null: there is nothing to decide, and no workspace.
  Plan (*plan)(const typename Op::Problem& problem, const DeviceInfo& device) = nullptr;
  // Queues the kernel. Null where this build has no code for it.
  void (*launch)(const typename Op::Params& params, const Plan& plan, Stream stream) = nullptr;

  // The configs that it chooses from, each as a kernel of its own: "flash/0" and on. They are there
  // to be measured: one runs all that it can, be it the best for it or not.
  std::span<const Kernel> variants = {};
};

// An operation's table: what the functions below look into.
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

// Nothing where `kernel` runs `problem` on `device`; else the first reason why it does not. A pure
// function of its arguments and of how the library was built.
template <class Op>
std::optional<Reason> can_run(const Kernel<Op>& kernel, const typename Op::Problem& problem,
                              const DeviceInfo& device) {
  return Table<Op>::can_run(kernel, problem, device);
}

// The same of any problem: the device is all that is looked at.
std::optional<Reason> can_run(const KernelInfo& kernel, const DeviceInfo& device);

// The variant in which `kernel` runs `problem` on such a device; null where it cannot run it, or
// has no variants.
template <class Op>
const Kernel<Op>* variant_of(const Kernel<Op>& kernel, const typename Op::Problem& problem,
                             const DeviceInfo& device) {
  return Table<Op>::variant_of(kernel, problem, device);
}

// Bytes of workspace that `kernel` needs for `problem` on `device`. Throws where the kernel cannot
// run the problem on such a device; how much memory that has is not looked at.
template <class Op>
std::size_t workspace_bytes(const Kernel<Op>& kernel, const typename Op::Problem& problem,
                            const DeviceInfo& device) {
  return Table<Op>::workspace_bytes(kernel, problem, device);
}

// What a build without CUDA says of itself, and how to get one with it; empty in a build with CUDA.
std::string_view cpu_only_notice();

// The number of CUDA devices; 0 where there is no driver or this build has no CUDA.
int cuda_device_count();

// Reads a device's properties; throws no_device where there is none. The answer is cached.
const DeviceInfo& device_info(Device device);

}  // namespace tilewright
