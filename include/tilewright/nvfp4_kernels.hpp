// The operations of nvfp4.hpp and nvfp4_weight.hpp, as the registry describes them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tilewright/nvfp4.hpp"
#include "tilewright/nvfp4_weight.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

// A matrix of values or of scales. Its dtype alone decides which kernels can run.
struct ConversionFacts {};
struct ConversionProblem {
  DType dtype = DType::bf16;
};

struct QuantizeNvfp4Problem {
  DType dtype = DType::bf16;  // of x
  bool computes_global_scale = false;
};

struct ConvertScalesTensors;
struct QuantizeNvfp4Params;
struct DequantizeNvfp4Params;
struct ConvertScalesParams;
struct PrepackWeightParams;
struct UnpackWeightParams;

template <class ItsTensors, class ItsOptions, class ItsParams, class ItsProblem = ConversionProblem>
struct Conversion {
  using Tensors = ItsTensors;
  using Options = ItsOptions;
  using Problem = ItsProblem;
  using Facts = ConversionFacts;
  using Params = ItsParams;
};

struct QuantizeNvfp4 : Conversion<QuantizeNvfp4Tensors, QuantizeNvfp4Options, QuantizeNvfp4Params,
                                  QuantizeNvfp4Problem> {
  static constexpr std::string_view kName = "quantize_nvfp4";
  static constexpr const char* kArgument = "x";  // whose dtype it is
};
struct DequantizeNvfp4
    : Conversion<DequantizeNvfp4Tensors, DequantizeNvfp4Options, DequantizeNvfp4Params> {
  static constexpr std::string_view kName = "dequantize_nvfp4";
  static constexpr const char* kArgument = "out";  // whose dtype it is
};
// swizzle_scales() and unswizzle_scales()
struct ConvertScales : Conversion<ConvertScalesTensors, ScaleLayout, ConvertScalesParams> {
  static constexpr std::string_view kName = "convert_scales";
  static constexpr const char* kArgument = "linear";  // whose dtype it is
};
struct PrepackNvfp4Weight
    : Conversion<PrepackNvfp4WeightTensors, ScaleLayout, PrepackWeightParams> {
  static constexpr std::string_view kName = "prepack_nvfp4_weight";
  static constexpr const char* kArgument = "codes";  // whose dtype it is
};
struct UnpackNvfp4Weight : Conversion<UnpackNvfp4WeightTensors, ScaleLayout, UnpackWeightParams> {
  static constexpr std::string_view kName = "unpack_nvfp4_weight";
  static constexpr const char* kArgument = "codes";  // whose dtype it is
};

// The library has the tables.
template <>
std::span<const Kernel<QuantizeNvfp4>> Table<QuantizeNvfp4>::rows();
extern template struct Table<QuantizeNvfp4>;
template <>
std::span<const Kernel<DequantizeNvfp4>> Table<DequantizeNvfp4>::rows();
extern template struct Table<DequantizeNvfp4>;
template <>
std::span<const Kernel<ConvertScales>> Table<ConvertScales>::rows();
extern template struct Table<ConvertScales>;
template <>
std::span<const Kernel<PrepackNvfp4Weight>> Table<PrepackNvfp4Weight>::rows();
extern template struct Table<PrepackNvfp4Weight>;
template <>
std::span<const Kernel<UnpackNvfp4Weight>> Table<UnpackNvfp4Weight>::rows();
extern template struct Table<UnpackNvfp4Weight>;

}  // namespace tilewright
