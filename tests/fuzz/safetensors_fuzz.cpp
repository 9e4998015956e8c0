// Any bytes as a safetensors file, from which the weight of the layer "l" is read. A file is
// refused with a message that a terminal can show, or it is what the format says, and the weight
// has the file's bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"
#include "cli/nvfp4_checkpoint.hpp"
#include "cli/safetensors.hpp"
#include "fuzz/check.hpp"
#include "fuzz/json_mutator.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace tilewright::fuzz {
namespace {

using nlohmann::json;

constexpr std::size_t kLength_bytes = 8;

Tally opened("files were opened");
Tally weights("weights were read");

// A file in memory, by a name of the file system's.
class MemoryFile {
 public:
  MemoryFile() : file_(memfd_create("model.safetensors", 0)) {}
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

  void hold(const std::uint8_t* data, std::size_t size) const {
    const bool is_written =
        ftruncate(file_, 0) == 0 && pwrite(file_, data, size, 0) == static_cast<ssize_t>(size);
    check(is_written, "the file in memory cannot be written");
  }

 private:
  int file_;
};

// A file's parts, as far as there are so many bytes.
struct Parts {
  std::uint64_t header_bytes = 0;
  std::string header;
  std::string tensors;
};

Parts parts_of(const std::uint8_t* data, std::size_t size) {
  Parts parts;
  std::memcpy(&parts.header_bytes, data, std::min(size, kLength_bytes));
  const std::size_t begin = std::min(size, kLength_bytes);
  const std::size_t end = begin + std::min<std::uint64_t>(parts.header_bytes, size - begin);
  parts.header.assign(data + begin, data + end);
  parts.tensors.assign(data + end, data + size);
  return parts;
}

// Of the format's dtypes; 0 of any other text, whose tensors may have any size.
std::size_t element_bytes(std::string_view dtype) {
  constexpr std::array kWords = {" BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 ", " I16 U16 F16 BF16 ",
                                 " I32 U32 F32 ", " I64 U64 F64 C64 "};
  const std::string word = " " + std::string(dtype) + " ";
  for (std::size_t i = 0; i < kWords.size(); ++i) {
    if (dtype.find(' ') == std::string_view::npos &&
        std::string_view(kWords[i]).find(word) != std::string_view::npos) {
      return std::size_t{1} << i;
    }
  }
  return 0;
}

// That a file which was opened is one: every tensor has the bytes of its shape, and tensors take
// all bytes, each byte once.
void check_format(const Parts& parts) {
  const json header = json::parse(parts.header);
  std::vector<std::pair<std::uint64_t, std::uint64_t>> pieces;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") {
      continue;
    }
    pieces.emplace_back(entry.at("data_offsets").at(0), entry.at("data_offsets").at(1));
    std::uint64_t bytes = element_bytes(entry.at("dtype").get<std::string>());
    const bool is_known = bytes > 0;
    for (const std::uint64_t size : entry.at("shape")) {
      bytes *= size;
    }
    check(!is_known || bytes == pieces.back().second - pieces.back().first,
          "a tensor has not the bytes of its shape");
  }
  std::ranges::sort(pieces);
  std::uint64_t end = 0;
  for (const auto& piece : pieces) {
    check(piece.first == end, "tensors leave a gap or overlap");
    end = piece.second;
  }
  check(end == parts.tensors.size(), "tensors do not take all bytes");
}

void check_bytes(const Parts& parts, const std::string& name, const reference::HostTensor& tensor) {
  const std::uint64_t begin = json::parse(parts.header).at(name).at("data_offsets").at(0);
  check(std::memcmp(tensor.data(), parts.tensors.data() + begin, tensor.bytes()) == 0,
        "a weight has not the file's bytes");
}

void read(const std::string& path, const Parts& parts) {
  const bool is_modelopt = !cli::SafetensorsFile(path).contains("l.weight_packed");
  ++opened;
  check_format(parts);
  const cli::Nvfp4Operand weight = cli::read_nvfp4_weight(path, "l");
  ++weights;
  check_bytes(parts, is_modelopt ? "l.weight" : "l.weight_packed", weight.codes);
  check_bytes(parts, "l.weight_scale", weight.scales);
}

}  // namespace
}  // namespace tilewright::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tilewright;
  static const fuzz::MemoryFile file;
  file.hold(data, size);
  try {
    fuzz::read(file.path(), fuzz::parts_of(data, size));
  } catch (const cli::UsageError& error) {
    fuzz::check_printable(error.what());
  } catch (const Error& error) {
    fuzz::check_printable(error.what());
  }
  return 0;
}

// Mostly the header changes, and its length stays right.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace tilewright::fuzz;
  Random random(seed);
  if (random.one_in(16)) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  Parts parts = parts_of(data, size);
  if (random.one_in(8)) {
    parts.tensors.resize(random.below(2 * parts.tensors.size() + 2));
  } else {
    mutate_json(parts.header, random);
  }
  parts.header_bytes = parts.header.size() + (random.one_in(32) ? random.below(9) - 4 : 0);
  std::string whole(reinterpret_cast<const char*>(&parts.header_bytes), kLength_bytes);
  whole += parts.header + parts.tensors;
  const std::size_t bytes = std::min(whole.size(), max_size);
  std::memcpy(data, whole.data(), bytes);
  return bytes;
}
