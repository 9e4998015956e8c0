// What the library can run: its kernels, their constraints, and why one cannot run a problem.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tilewright/error.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

// What a kernel may or may not be able to do beside plain attention.
enum class Feature : std::uint8_t { window, softcap, sinks, packed, unnormalized };

constexpr std::string_view name(Feature feature) {
  switch (feature) {
    case Feature::window:
      return "window";
    case Feature::softcap:
      return "softcap";
    case Feature::sinks:
      return "sinks";
    case Feature::packed:
      return "packed";
    case Feature::unnormalized:
      return "unnormalized";
  }
  return "unknown";
}

// A pair of head dims that a kernel takes: of q and k, and of v and o.
struct HeadDims {
  int qk;
  int v;

  friend constexpr bool operator==(HeadDims, HeadDims) = default;
};

// "128", or "192 (v 128)" where they differ.
inline std::string name(HeadDims dims) {
  return std::to_string(dims.qk) + (dims.v == dims.qk ? "" : " (v " + std::to_string(dims.v) + ")");
}

// The forms of gemm_nvfp4()'s weight.
enum class WeightForm : std::uint8_t {
  codes,   // with scales
  packed,  // by prepack_nvfp4_weight()
};

constexpr std::string_view name(WeightForm form) {
  return form == WeightForm::codes ? "codes" : "packed";
}

// One kernel's row: everything a person or a dispatcher wants to know before calling it.
struct KernelInfo {
  std::string_view name;          // what AttentionOptions::kernel takes
  std::string_view operation;     // "attention", "gemm_bf16" or "gemm_nvfp4"
  std::string_view summary;       // one line
  DeviceKind device;              // where its tensors live
  int compute_capability;         // the GPU it is built for, 90 for Hopper's sm_90a; 0 on the CPU
  std::span<const DType> dtypes;  // of q, k and v; of a
  int alignment_bytes;   // of base pointers and outer strides of q, k, v and o, or of a, b and c
  std::string_view doc;  // its worklog page, relative to the repository

  // Of attention.
  std::span<const HeadDims> head_dims = {};  // empty: any up to 16384
  std::span<const Feature> features = {};

  // Of a GEMM.
  std::span<const DType> out_dtypes = {};  // of c
  int n_multiple = 1;                      // what N and K must be multiples of
  int k_multiple = 1;
  std::span<const WeightForm> weight_forms = {};  // of gemm_nvfp4's b; empty: b is no NVFP4 weight
};

// All kernels of this version, whether or not this build or machine can run them; those of an
// operation follow each other, in ascending order of speed.
std::span<const KernelInfo> kernels();
std::span<const KernelInfo> kernels(std::string_view operation);

// The shapes of tiles that "flash" chooses from, each as a kernel of its own: "flash/0" and on, the
// rows of its table. They are there to be measured: a row runs all that its shape can, be it the
// best for it or not. kernels() has none of them, and "auto" never takes one.
std::span<const KernelInfo> flash_rows();

// The same of "nvfp4": "nvfp4/0" and on.
std::span<const KernelInfo> nvfp4_rows();

// An operation's kernel of that name, of kernels(), flash_rows() or nvfp4_rows(), or null.
const KernelInfo* find_kernel(std::string_view operation, std::string_view name);

// The shape of an attention problem, as seen by the constraints. Strides do not appear here: they
// are checked against alignment_bytes when the tensors are given. Of packed sequences `batch` is
// the number; q_len and kv_len are then the tokens of all of them together. Sizes are at least 1
// and less than 2^30, as those of tensors are.
struct AttentionProblem {
  DType dtype = DType::bf16;
  std::int64_t batch = 1;
  std::int64_t q_len = 1;
  std::int64_t kv_len = 1;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 128;
  std::int64_t value_dim = 0;  // of v and o; 0: head_dim
  bool causal = false;
  bool window = false;
  bool softcap = false;
  bool sinks = false;
  bool packed = false;          // cu_seqlens_q, cu_seqlens_k or seqused_k
  bool packed_queries = false;  // cu_seqlens_q
  bool packed_keys = false;     // cu_seqlens_k
  bool unnormalized = false;
  bool batch_invariant = false;

  bool asks_for(Feature feature) const;
};

// The same of a GEMM: c (l, m, n) = a (l, m, k) times the transpose of b (l, n, k).
struct GemmProblem {
  DType a_dtype = DType::bf16;  // e2m1x2: NVFP4
  DType c_dtype = DType::bf16;
  std::int64_t m = 1;
  std::int64_t n = 16;
  std::int64_t k = 64;
  std::int64_t l = 1;
  bool b_is_packed = false;
  bool batch_invariant = false;
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

// What a build without CUDA says of itself, and how to get one with it; empty in a build with CUDA.
std::string_view cpu_only_notice();

// The number of CUDA devices; 0 where there is no driver or this build has no CUDA.
int cuda_device_count();

// Reads a device's properties; throws no_device where there is none. The answer is cached.
const DeviceInfo& device_info(Device device);

// Why a kernel cannot run a problem: what the thrown Error would carry.
struct Reason {
  ErrorCode code;
  std::string argument;
  std::string message;
};

// Nothing where `kernel` runs `problem` on `device`; else the first reason why it does not. A pure
// function of its arguments and of how the library was built. The problem is one of the kernel's
// operation; without one, the device is all that is looked at.
std::optional<Reason> can_run(const KernelInfo& kernel, const AttentionProblem& problem,
                              const DeviceInfo& device);
std::optional<Reason> can_run(const KernelInfo& kernel, const GemmProblem& problem,
                              const DeviceInfo& device);
std::optional<Reason> can_run(const KernelInfo& kernel, const DeviceInfo& device);

// The one of flash_rows() in which "flash" runs `problem` on `device`; null where it cannot.
const KernelInfo* flash_row_of(const AttentionProblem& problem, const DeviceInfo& device);

// The one of nvfp4_rows() in which "nvfp4" runs `problem` on `device`.
const KernelInfo& nvfp4_row_of(const GemmProblem& problem, const DeviceInfo& device);

// Bytes of workspace that `kernel` needs for `problem` on `device`. Throws where the kernel cannot
// run the problem on such a device; how much memory that has is not looked at.
std::size_t workspace_bytes(const KernelInfo& kernel, const AttentionProblem& problem,
                            const DeviceInfo& device);
std::size_t workspace_bytes(const KernelInfo& kernel, const GemmProblem& problem,
                            const DeviceInfo& device);

}  // namespace tilewright
