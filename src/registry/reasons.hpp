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

// Is a tensor's dtype among those that the kernel takes there?
std::optional<Reason> dtype_reason(const KernelInfo& kernel, std::span<const DType> takes,
                                   const char* argument, DType dtype);

}  // namespace tilewright
