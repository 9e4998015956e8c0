// The header of a safetensors file: a JSON object that has the dtype, the shape and the place of
// each tensor.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tilewright::cli {

// A tensor as the header has it; it lies at [begin, end), counted from the header's end.
struct SafetensorsEntry {
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

using SafetensorsEntries = std::map<std::string, SafetensorsEntry>;

// Throw the UsageError by which a file is refused, for itself or for one of its tensors.
[[noreturn]] void refuse_file(const std::string& path, const std::string& what);
[[noreturn]] void refuse_tensor(const std::string& path, const std::string& tensor,
                                const std::string& what);

// Reads the header's text in one pass that keeps the entries alone, however deep what else is in it
// nests: they take a few times the text's bytes. Refuses what has not the form of a header, `path`
// being the file; whether tensors lie where they should is not looked at.
SafetensorsEntries parse_safetensors_header(const std::string& path, const std::string& text);

}  // namespace tilewright::cli
