#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "tilewright/error.hpp"

namespace tilewright::cuda {

// Throws ErrorCode::cuda naming the call that failed. The error is then reported: the thread's last
// error, which somebody else may look at, no longer has it.
inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    throw Error(ErrorCode::cuda, call,
                std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status));
  }
}

}  // namespace tilewright::cuda
