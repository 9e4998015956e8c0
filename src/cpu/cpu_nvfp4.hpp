#pragma once

#include "ops/convert_scales/params.hpp"
#include "ops/dequantize_nvfp4/params.hpp"
#include "ops/nvfp4_weight/params.hpp"
#include "ops/quantize_nvfp4/params.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::cpu {

void quantize_nvfp4(const QuantizeNvfp4Params& params, Stream);
void dequantize_nvfp4(const DequantizeNvfp4Params& params, Stream);
void convert_scales(const ConvertScalesParams& params, Stream);
void prepack_nvfp4_weight(const PrepackWeightParams& params, Stream);
void unpack_nvfp4_weight(const UnpackWeightParams& params, Stream);

// Writes the codes and scales of one tile; its bytes need no alignment.
void unpack_weight_tile(const std::uint8_t* packed, const UnpackedWeight<std::uint8_t>& weight,
                        const WeightTileOrigin& tile);

}  // namespace tilewright::cpu
