// The header of a safetensors file: a JSON object that has the dtype, the shape and the place of
// each tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tilewright::cli {

// A tensor's entry in the header; its bytes are [begin, end), counted from the header's end.
struct SafetensorsEntry {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

using SafetensorsEntries = std::map<std::string, SafetensorsEntry>;

// Throw the UsageError that refuses a file, or one of its tensors.
[[noreturn]] void refuse_file(const std::string& path, const std::string& what);
[[noreturn]] void refuse_tensor(const std::string& path, const std::string& tensor,
                                const std::string& what);

// Parses the header's text in one pass that keeps the entries alone, however deeply the rest is
// nested: these take a few times the text's bytes. Refuses text that is not a header; `path` is the
// file. Whether tensors lie where they should is not checked here.
SafetensorsEntries parse_safetensors_header(const std::string& path, const std::string& text);

}  // namespace tilewright::cli
