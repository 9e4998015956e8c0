// The GPU that launches go to.
#pragma once

#include "cuda/common/error.hpp"

namespace tilewright::cuda {

inline int current_sms() {
  int device = 0;
  int sms = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  return sms;
}

}  // namespace tilewright::cuda
