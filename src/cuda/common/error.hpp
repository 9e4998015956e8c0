#pragma once

#include <cuda_runtime_api.h>

#include <string>

#include "tilewright/error.hpp"

namespace tilewright::cuda {

// Throws ErrorCode::cuda naming the call that failed.
inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess) {
    throw Error(ErrorCode::cuda, call,
                std::string(cudaGetErrorName(status)) + ", " + cudaGetErrorString(status));
  }
}

}  // namespace tilewright::cuda
