// The ceiling of matrix products on a GPU: cuBLASLt, loaded at run time.
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

// Where the library may be, in the order tried: only `path` where that is not empty; else the names
// that the dynamic linker knows, then NVIDIA's packages beside Python's.
std::vector<std::string> cublaslt_candidates(const std::string& path);

// Times a BF16 8192 x 8192 x 8192 product of normally distributed matrices, FP32 accumulation, by
// the fastest algorithm that the library's heuristic offers. Throws std::runtime_error with the
// reason where none of the candidates can be loaded or the product fails.
GemmCeiling measure_gemm_ceiling(Machine& machine, const std::vector<std::string>& candidates);

}  // namespace tilewright::cli
