// Reading tensors from a safetensors file.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "cli/safetensors_header.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::cli {

// The name that files have for a dtype.
std::string_view safetensors_name(DType dtype);

// A file has 8 bytes, the little-endian length of the header; the header, a JSON object of at most
// 100 MB that has dtype, shape and data_offsets [begin, end) of each tensor; and the tensors'
// bytes, without gaps or overlaps. A file that breaks this is refused by a UsageError that names
// the file and, if one is at fault, the tensor. The header is checked when the file is opened; a
// dtype that this class cannot read is refused when the tensor is read.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  bool contains(const std::string& tensor) const;

  // A tensor as it is stored: U8 as e2m1x2, F8_E4M3 as e4m3, F32, F16 and BF16. A scalar has the
  // shape (1). Sizes may be 0.
  reference::HostTensor read(const std::string& tensor);

 private:
  // Returns whether the file had as many.
  bool read_bytes(void* to, std::uint64_t bytes);

  std::string path_;
  std::ifstream file_;
  SafetensorsEntries entries_;
  std::uint64_t data_start_ = 0;
};

}  // namespace tilewright::cli
