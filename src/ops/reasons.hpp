// Reasons that the constraints of all operations share.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>

#include "tilewright/registry.hpp"

namespace tilewright {

inline void throw_if(const std::optional<Reason>& reason) {
  if (reason) {
    throw Error(reason->code, reason->argument, reason->message);
  }
}

// A size of a problem, by its member's name.
struct ProblemSize {
  const char* name;
  std::int64_t value;
};

// Is one of them no size that a tensor may have?
std::optional<Reason> size_range_reason(std::initializer_list<ProblemSize> sizes);

// "has `what`, kernel ... takes `takes`", of an argument.
Reason takes_reason(const KernelInfo& kernel, const char* argument, const std::string& what,
                    const std::string& takes);

// Is a size a multiple of what the kernel takes? `what` is its name, of `argument`.
std::optional<Reason> multiple_reason(const KernelInfo& kernel, const char* argument,
                                      const char* what, std::int64_t size, int multiple);

// Do the tiles of a GEMM have numbers of 31 bits?
std::optional<Reason> gemm_size_reason(const KernelInfo& kernel, std::int64_t l, std::int64_t m,
                                       std::int64_t n, std::int64_t k);

// Does a device have the memory for a kernel's workspace?
std::optional<Reason> memory_reason(const KernelInfo& kernel, std::size_t workspace_bytes,
                                    const DeviceInfo& device);

// Throws where a kernel takes no tensors on such a device; `argument` is one.
void check_device_kind(const KernelInfo& kernel, Device device, const char* argument);

// The names of some values, "fp16, bf16".
template <typename Values>
std::string names_of(const Values& values) {
  std::string all;
  for (const auto& value : values) {
    all += (all.empty() ? "" : ", ") + std::string(name(value));
  }
  return all;
}

// Is a tensor's dtype among those that the kernel takes there?
std::optional<Reason> dtype_reason(const KernelInfo& kernel, std::span<const DType> takes,
                                   const char* argument, DType dtype);

}  // namespace tilewright
