// Reading tensors from a safetensors file.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

#include "cli/safetensors_header.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::cli {

// The dtypes below by the names that files have for them.
std::string_view safetensors_name(DType dtype);

// A file is 8 bytes, the little-endian length of what follows; a JSON object of at most 100 MB,
// which has dtype, shape and data_offsets [begin, end) of each tensor; and the tensors' bytes,
// without gaps or overlaps. Whatever does not fit together is refused with a UsageError that names
// the file, and the tensor where it is one's: the header when the file is opened, a dtype that is
// not read here when the tensor is.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  bool contains(const std::string& tensor) const;

  // A tensor as it is stored: U8 as e2m1x2, F8_E4M3 as e4m3, F32, F16 and BF16. A scalar has the
  // shape (1). Sizes may be 0.
  reference::HostTensor read(const std::string& tensor);

 private:
  // Whether there were as many.
  bool read_bytes(void* to, std::uint64_t bytes);

  std::string path_;
  std::ifstream file_;
  SafetensorsEntries entries_;
  std::uint64_t data_start_ = 0;
};

}  // namespace tilewright::cli
