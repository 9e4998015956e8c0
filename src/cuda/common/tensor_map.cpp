#include "cuda/common/tensor_map.hpp"

#include <cuda.h>

#include "cuda/common/error.hpp"

namespace tilewright::cuda {
namespace {

using Encoder = decltype(&cuTensorMapEncodeTiled);

Encoder find_encoder() {
  constexpr int kIntroducedIn = 12000;
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, kIntroducedIn,
                                         cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess) {
    throw Error(ErrorCode::cuda, "cuTensorMapEncodeTiled", "the driver does not have it");
  }
  return reinterpret_cast<Encoder>(entry);
}

// The driver takes calls from threads with a current context only. A thread that has not used the
// GPU yet gets its device's.
void use_context() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaSetDevice(device), "cudaSetDevice");
}

CUtensorMapSwizzle code_of(TmaSwizzle swizzle) {
  switch (swizzle) {
    case TmaSwizzle::none:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case TmaSwizzle::b64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case TmaSwizzle::b128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  return CU_TENSOR_MAP_SWIZZLE_NONE;
}

}  // namespace

CUtensorMap encode_tensor_map(const void* base, const TensorMapSpec& spec) {
  static const Encoder encode = find_encoder();
  constexpr std::array<std::uint32_t, 4> kElementStrides = {1, 1, 1, 1};
  CUtensorMap map{};
  const auto encode_it = [&] {
    return encode(
        &map,
        spec.element_bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        4, const_cast<void*>(base), spec.size.data(), spec.stride_bytes.data(), spec.box.data(),
        kElementStrides.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, code_of(spec.swizzle),
        spec.promotion_bytes == 256 ? CU_TENSOR_MAP_L2_PROMOTION_L2_256B
                                    : CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  CUresult result = encode_it();
  if (result == CUDA_ERROR_INVALID_CONTEXT) {
    use_context();
    result = encode_it();
  }
  if (result != CUDA_SUCCESS) {
    throw Error(ErrorCode::cuda, "cuTensorMapEncodeTiled",
                "refused a tensor map with code " + std::to_string(result));
  }
  return map;
}

}  // namespace tilewright::cuda
