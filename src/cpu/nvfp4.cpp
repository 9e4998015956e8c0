// NVFP4 on the CPU: rows are shared over all cores, in the arithmetic that the GPU has, too.
//
// It is compiled without fusing products and sums (src/CMakeLists.txt): where a product meets the
// rounding constants of E2M1 and E4M3, a fused operation would round once instead of twice.
#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "common/nvfp4_recipe.hpp"
#include "cpu/cpu_nvfp4.hpp"
#include "cpu/element.hpp"
#include "cpu/nvfp4_block.hpp"
#include "cpu/parallel.hpp"

namespace tilewright::cpu {
namespace {

using nvfp4::kBlock;
using nvfp4::kInfinity;

template <typename T>
float finite_amax(const QuantizeNvfp4Params& p) {
  const auto* const x = static_cast<const T*>(p.x);
  std::vector<std::uint32_t> largest(static_cast<std::size_t>(p.rows));  // of each row
  parallel_for_rows(p.rows, [&](std::int64_t row) {
    for (std::int64_t k = 0; k < std::int64_t{p.blocks} * kBlock; ++k) {
      const std::uint32_t magnitude = magnitude_bits(x[row * p.x_stride + k]);
      std::uint32_t& most = largest[static_cast<std::size_t>(row)];
      most = std::max(most, magnitude < kInfinity ? magnitude : 0);
    }
  });
  return std::bit_cast<float>(std::ranges::max(largest));
}

template <typename T>
void quantize_rows(const QuantizeNvfp4Params& p, float e) {
  const auto* const x = static_cast<const T*>(p.x);
  parallel_for_rows(p.scale_rows, [&](std::int64_t i) {
    const auto row = static_cast<int>(i);
    const int blocks = row < p.rows ? p.blocks : 0;
    for (int block = 0; block < blocks; ++block) {
      p.scales.at(row, block) =
          quantize_block(x + row * p.x_stride + std::int64_t{block} * kBlock, e,
                         p.codes + row * p.codes_stride + std::int64_t{block} * kBlock / 2);
    }
    for (int block = blocks; block < p.scale_blocks; ++block) {
      p.scales.at(row, block) = 0;
    }
  });
}

template <typename T>
void dequantize_rows(const DequantizeNvfp4Params& p) {
  const int block_size = p.is_mxfp4 ? nvfp4::kMxBlock : kBlock;
  const float global_scale = p.global_scale != nullptr ? *p.global_scale : 1.0f;
  parallel_for_rows(p.rows, [&](std::int64_t i) {
    const auto row = static_cast<int>(i);
    for (int block = 0; block < p.blocks; ++block) {
      const float scale = nvfp4::decode_scale(p.scales.at(row, block), p.is_mxfp4, global_scale);
      const std::int64_t first = std::int64_t{block} * block_size;
      const std::uint8_t* const codes = p.codes + row * p.codes_stride + first / 2;
      T* const out = static_cast<T*>(p.out) + row * p.out_stride + first;
      for (int j = 0; j < block_size; ++j) {
        const std::uint32_t code = codes[j / 2] >> 4 * (j % 2);
        from_float(nvfp4::decode(code, scale, global_scale, p.global_scale_kind), out[j]);
      }
    }
  });
}

}  // namespace

void quantize_nvfp4(const QuantizeNvfp4Params& p, Stream) {
  const DefaultFloatingPoint environment;  // for the global scale's arithmetic, too
  with_element(p.dtype, [&]<typename T>(T*) {
    const float global_scale = p.global_scale != nullptr
                                   ? *p.global_scale
                                   : nvfp4::global_scale_of(finite_amax<T>(p), p.global_scale_kind);
    quantize_rows<T>(p, nvfp4::encode_scale(global_scale, p.global_scale_kind));
    if (p.computed_global_scale != nullptr) {
      *p.computed_global_scale = global_scale;
    }
  });
}

void dequantize_nvfp4(const DequantizeNvfp4Params& p, Stream) {
  with_element(p.dtype, [&]<typename T>(T*) { dequantize_rows<T>(p); });
}

void convert_scales(const ConvertScalesParams& p, Stream) {
  if (p.to.layout == ScaleLayout::swizzled) {
    const auto [rows, blocks] = swizzled_scale_shape(p.rows, p.blocks);
    std::memset(p.to.data, 0, static_cast<std::size_t>(rows * blocks));
  }
  parallel_for_rows(p.rows, [&](std::int64_t i) {
    const auto row = static_cast<int>(i);
    for (int block = 0; block < p.blocks; ++block) {
      p.to.at(row, block) = p.from.at(row, block);
    }
  });
}

}  // namespace tilewright::cpu
