// DeepSeek-V4's rows of a KV cache: of each token one vector of 512 values, which is its key and
// its value at once. Quantising vectors into rows of a paged cache, and the way back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tilewright/error.hpp"
#include "tilewright/launch.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright {

inline constexpr int kKvRowDims = 512;
inline constexpr int kKvRowRotaryDims = 64;  // the last ones, which are rotated

// How a row lies in memory. A group is neighbouring dims that share a scale; value = scale * code.
// UE8M0 is a byte b that stands for 2^(b - 127), and 255 for NaN (DType::e8m0).
//
//   bf16       1024 bytes: 512 BF16
//   e4m3_bf16  584 bytes: 448 E4M3 in groups of 64, with UE8M0 scales, and the 64 rotated dims in
//              BF16. A page of P rows has two planes: P times 576 bytes, 448 E4M3 | 64 BF16, then P
//              times 8 bytes, 7 scales | a byte of padding, which is written as 0 and never read.
//              This is the layout that FlashMLA calls MODEL1
//   e4m3       528 bytes: 512 E4M3 in groups of 32 | 16 UE8M0 scales. As in DeepSeek-V4.1
//   e2m1       288 bytes: 512 E2M1 in groups of 16, of two neighbours the first in the low four
//              bits | 32 E4M3 scales. As in DeepSeek-V4.1
enum class KvRowFormat : std::uint8_t { bf16, e4m3_bf16, e4m3, e2m1 };

constexpr std::int64_t kv_row_bytes(KvRowFormat format) {
  switch (format) {
    case KvRowFormat::bf16:
      return 1024;
    case KvRowFormat::e4m3_bf16:
      return 584;
    case KvRowFormat::e4m3:
      return 528;
    case KvRowFormat::e2m1:
      return 288;
  }
  return 0;
}

// "bf16", "e4m3_bf16", ...
constexpr std::string_view name(KvRowFormat format) {
  switch (format) {
    case KvRowFormat::bf16:
      return "bf16";
    case KvRowFormat::e4m3_bf16:
      return "e4m3_bf16";
    case KvRowFormat::e4m3:
      return "e4m3";
    case KvRowFormat::e2m1:
      return "e2m1";
  }
  return "unknown";
}

// The format of rows in a tensor with this dtype and last dimension, if there is one.
constexpr std::optional<KvRowFormat> kv_row_format(DType dtype, std::int64_t last_dim) {
  if (dtype == DType::bf16 && last_dim == kKvRowDims) {
    return KvRowFormat::bf16;
  }
  for (const auto format : {KvRowFormat::e4m3_bf16, KvRowFormat::e4m3, KvRowFormat::e2m1}) {
    if (dtype == DType::u8 && last_dim == kv_row_bytes(format)) {
      return format;
    }
  }
  return std::nullopt;
}

// Shapes: T rows (tokens).
//   x     (T, 512) bf16 or fp32: normalised and rotated. The last dimension is contiguous
//   rows  the cache, in the format that its shape says:
//         (pages, page_size, 512) bf16: the last dimension is contiguous
//         (pages, page_size, 584) u8, e4m3_bf16: the bytes of a page are contiguous
//         (pages, page_size, 528) or (pages, page_size, 288) u8, e4m3 or e2m1: the last dimension
//         is contiguous
//   slot_mapping  (T) int64: page * page_size + place in the page. A row of -1 is skipped
// Every other stride is free, in elements. So pages of e4m3_bf16 may be padded to a multiple of 576
// bytes, as FlashMLA has them. All sizes are at least 1. All tensors live on one device. rows may
// share no byte with another tensor. Only the rows in slot_mapping are written.
struct QuantizeKvRowsTensors {
  ConstTensorView x;
  TensorView rows;
  ConstTensorView slot_mapping;
};

struct KvRowsOptions {
  // Copies slot_mapping from the GPU to check its values. This waits for the stream and cannot be
  // captured in a CUDA graph. It is for debugging.
  bool check_values = false;
  // A name of a kernel, or "auto": the fastest kernel that can run the problem.
  std::string_view kernel = "auto";
};

// Every operation is rounded to FP32, to nearest even; bf16(), e4m3() and e2m1() round to nearest
// even, and the latter two saturate. amax is the largest |x| of a group. The scale 2^k is that of
// DeepSeek-V4's reference code, without its logarithm's rounding.
//
//   BF16        bf16(x): a copy, bit for bit, where x is bf16. A NaN that is rounded becomes 0x7fff
//   E4M3        2^k  = the least power of two with max(amax, 1e-4) <= 448 * 2^k; 2^120 of infinity
//               code = e4m3(x / 2^k)
//               A NaN makes its group NaN: the scale is 255 and the codes are 0x7f. An infinity has
//               the code +-448, and is one again when it is dequantised
//   E2M1        scale = e4m3(amax / 6)
//               code  = e2m1(x * (1 / max(scale, 1e-12))), with the sign of x
//               as of quantize_nvfp4() with a global scale of 1. A group too small for the smallest
//               scale, 2^-9, has scale 0: it is dequantised to zeros, whatever its codes. Beyond
//               6 * 448 values saturate, infinities too. A NaN makes the scale of its group NaN
//
// CPU and GPU give the same bytes.
//
// Values of slots are checked on CPU tensors, and on CUDA tensors if options.check_values is set: a
// slot is -1 or in the cache, and no two rows may go to one. Where they are not checked, rows whose
// slots are not in the cache are skipped; what a slot holds that two rows have is not said.
//
// On CUDA tensors x and rows are aligned to 16 bytes, row by row and page by page. The work is
// queued on `stream` and the call returns at once; it needs no workspace, neither allocates nor
// synchronises and can be captured in a CUDA graph, if values are not checked. Throws
// tilewright::Error, with nothing written, when an argument is wrong or no kernel can run the
// problem.
void quantize_kv_rows(const QuantizeKvRowsTensors& tensors, const KvRowsOptions& options = {},
                      Stream stream = nullptr);

// out  (T, 512) bf16 or fp32; the last dimension is contiguous. It may share no byte with another
//      tensor
// rows and slot_mapping are as above. A row of out whose slot is -1 is not written.
struct DequantizeKvRowsTensors {
  ConstTensorView rows;
  TensorView out;
  ConstTensorView slot_mapping;
};

// out = code * scale, rounded to FP32, then to out's dtype; BF16 values are copied or widened. A
// scale or code that is NaN gives NaN, 0x7fff in bf16 and 0x7fc00000 in fp32. All else is as in
// quantize_kv_rows(), but that two rows may have one slot.
void dequantize_kv_rows(const DequantizeKvRowsTensors& tensors, const KvRowsOptions& options = {},
                        Stream stream = nullptr);

// ---- The operations, as the registry describes them

// What decides which kernels can run a call. Sizes are at least 1 and less than 2^30.
struct KvRowsProblem {
  DType dtype = DType::bf16;  // of x or out
  KvRowFormat format = KvRowFormat::bf16;
  std::int64_t rows = 1;  // T
};

struct KvRowsFacts {};
struct QuantizeKvRowsParams;
struct DequantizeKvRowsParams;

template <class ItsTensors, class ItsParams>
struct KvRowsOperation {
  using Tensors = ItsTensors;
  using Options = KvRowsOptions;
  using Problem = KvRowsProblem;
  using Facts = KvRowsFacts;
  using Params = ItsParams;
};

struct QuantizeKvRows : KvRowsOperation<QuantizeKvRowsTensors, QuantizeKvRowsParams> {
  static constexpr std::string_view kName = "quantize_kv_rows";
  static constexpr const char* kArgument = "x";  // whose dtype it is
};
struct DequantizeKvRows : KvRowsOperation<DequantizeKvRowsTensors, DequantizeKvRowsParams> {
  static constexpr std::string_view kName = "dequantize_kv_rows";
  static constexpr const char* kArgument = "out";  // whose dtype it is
};

// The library has the tables.
template <>
std::span<const Kernel<QuantizeKvRows>> Table<QuantizeKvRows>::rows();
extern template struct Table<QuantizeKvRows>;
template <>
std::span<const Kernel<DequantizeKvRows>> Table<DequantizeKvRows>::rows();
extern template struct Table<DequantizeKvRows>;

}  // namespace tilewright
