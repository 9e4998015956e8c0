// The ceiling of GEMMs on a GPU: the speed of cuBLASLt, which is loaded at run time.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/machine.hpp"

namespace tilewright::cli {

struct GemmCeiling {
  std::string library;      // the file that was loaded
  std::size_t version = 0;  // 130100 for 13.1.0
  double tflops = 0;
};

// The library's possible places, in the order in which they are tried: only `path` if it is not
// empty; else the names that the dynamic linker knows, then NVIDIA's packages beside Python's.
std::vector<std::string> cublaslt_candidates(const std::string& path);

// Times a BF16 8192 x 8192 x 8192 GEMM of normally distributed matrices with FP32 accumulation, by
// the fastest algorithm that the library's heuristic offers. Throws std::runtime_error with the
// reason if no candidate can be loaded or the GEMM fails.
GemmCeiling measure_gemm_ceiling(Machine& machine, const std::vector<std::string>& candidates);

}  // namespace tilewright::cli
