// Reading tensors from a safetensors file.
#pragma once

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reference/host_tensor.hpp"

namespace tilewright::cli {

// A file is 8 bytes, the little-endian length of what follows; a JSON object, which has dtype,
// shape and data_offsets [begin, end) of each tensor; and the tensors' bytes. Whatever does not fit
// together is refused with a UsageError that names the file, and the tensor where it is one's.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);

  bool contains(const std::string& tensor) const;

  // A tensor as it is stored: U8 as e2m1x2, F8_E4M3 as e4m3, F32, F16 and BF16. A scalar has the
  // shape (1).
  reference::HostTensor read(const std::string& tensor);

 private:
  [[noreturn]] void refuse(const std::string& what) const;
  [[noreturn]] void refuse(const std::string& tensor, const std::string& what) const;

  std::string path_;
  std::ifstream file_;
  nlohmann::json header_;
  std::uint64_t data_start_ = 0;
  std::uint64_t data_bytes_ = 0;
};

}  // namespace tilewright::cli
