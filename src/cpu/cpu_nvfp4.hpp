#pragma once

#include "nvfp4_params.hpp"

namespace tilewright::cpu {

void quantize_nvfp4(const QuantizeNvfp4Params& params);
void dequantize_nvfp4(const DequantizeNvfp4Params& params);
void convert_scales(const ConvertScalesParams& params);
void prepack_nvfp4_weight(const PrepackWeightParams& params);
void unpack_nvfp4_weight(const UnpackWeightParams& params);

// Writes the codes and scales of one tile; its bytes need no alignment.
void unpack_weight_tile(const std::uint8_t* packed, const UnpackedWeight<std::uint8_t>& weight,
                        const WeightTileOrigin& tile);

}  // namespace tilewright::cpu
