// Reasons that the constraints of all operations share.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "tilewright/registry.hpp"

namespace tilewright {

// "has `what`, kernel ... takes `takes`", of an argument.
Reason takes_reason(const KernelInfo& kernel, const char* argument, const std::string& what,
                    const std::string& takes);

// Is a tensor's dtype among those that the kernel takes there?
std::optional<Reason> dtype_reason(const KernelInfo& kernel, std::span<const DType> takes,
                                   const char* argument, DType dtype);

}  // namespace tilewright
