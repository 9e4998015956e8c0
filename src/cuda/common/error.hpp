#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "tilewright/error.hpp"

namespace tilewright::cuda {

// Throws ErrorCode::cuda, which names the call that failed. It also clears the thread's last error,
// since other code may read that and would report the error again.
inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorCode::cuda, call,
                std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status));
  }
}

}  // namespace tilewright::cuda
