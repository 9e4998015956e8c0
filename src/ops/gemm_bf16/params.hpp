// A checked call of gemm_bf16(), as its kernels receive it.
#pragma once

#include <cstdint>

namespace tilewright {

struct GemmBf16Params {
  int m = 0;
  int n = 0;
  int k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  std::int64_t a_stride = 0;  // of rows
  std::int64_t b_stride = 0;
  std::int64_t c_stride = 0;
};

}  // namespace tilewright
