// Reasons why a kernel cannot run a problem, which all operations share.
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

// A size of a problem, and the name of its member.
struct ProblemSize {
  const char* name;
  std::int64_t value;
};

// Is one of the sizes out of a tensor's range?
std::optional<Reason> size_range_reason(std::initializer_list<ProblemSize> sizes);

// The reason that `argument` "has `what`, kernel ... takes `takes`".
Reason takes_reason(const KernelInfo& kernel, const char* argument, const std::string& what,
                    const std::string& takes);

// Is a size of `argument` no multiple of what the kernel takes? `what` is the size's name.
std::optional<Reason> multiple_reason(const KernelInfo& kernel, const char* argument,
                                      const char* what, std::int64_t size, int multiple);

// Are there more tiles of a GEMM than 31 bits count?
std::optional<Reason> gemm_size_reason(const KernelInfo& kernel, std::int64_t l, std::int64_t m,
                                       std::int64_t n, std::int64_t k);

// Does a device lack the memory for a kernel's workspace?
std::optional<Reason> memory_reason(const KernelInfo& kernel, std::size_t workspace_bytes,
                                    const DeviceInfo& device);

// Throws if a kernel takes no tensors on this device; `argument` is one.
void check_device_kind(const KernelInfo& kernel, Device device, const char* argument);

// The names of values as one text, "fp16, bf16".
template <typename Values>
std::string names_of(const Values& values) {
  std::string all;
  for (const auto& value : values) {
    all += (all.empty() ? "" : ", ") + std::string(name(value));
  }
  return all;
}

// Is a tensor's dtype none of those that the kernel takes for this argument?
std::optional<Reason> dtype_reason(const KernelInfo& kernel, std::span<const DType> takes,
                                   const char* argument, DType dtype);

}  // namespace tilewright
