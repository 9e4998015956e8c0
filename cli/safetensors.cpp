#include "cli/safetensors.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <map>
#include <optional>
#include <system_error>
#include <tuple>

#include "cli/machine.hpp"
#include "cli/text.hpp"

namespace tilewright::cli {
namespace {

using Entries = SafetensorsEntries;

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kLength_bytes = 8;
constexpr std::uint64_t kMostHeader_bytes = 100'000'000;  // what the format's own library reads

constexpr std::array kDTypes = {std::pair("U8", DType::e2m1x2), std::pair("F8_E4M3", DType::e4m3),
                                std::pair("F32", DType::fp32), std::pair("F16", DType::fp16),
                                std::pair("BF16", DType::bf16)};

std::optional<DType> dtype_of(const std::string& text) {
  for (const auto& [name, dtype] : kDTypes) {
    if (text == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

// The bytes of an element; nothing if the dtype is unknown or its elements are no whole bytes.
std::optional<std::uint64_t> element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> kBytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? std::nullopt : std::optional(found->second);
}

// The bytes of a dense tensor with `bytes` for each element. Nothing if they are too many, or a
// size is, even beside a size of 0.
std::optional<std::uint64_t> bytes_of(const std::vector<std::uint64_t>& shape,
                                      std::uint64_t bytes) {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 48;
  bool is_empty = false;
  for (const std::uint64_t size : shape) {
    if (size > kLimit / bytes) {
      return std::nullopt;
    }
    is_empty = is_empty || size == 0;
    bytes *= std::max(size, std::uint64_t{1});
  }
  return is_empty ? 0 : bytes;
}

void check_sizes(const std::string& path, const Entries& entries) {
  for (const auto& [tensor, entry] : entries) {
    const std::optional<std::uint64_t> bytes = element_bytes(entry.dtype);
    if (bytes && bytes_of(entry.shape, *bytes) != entry.end - entry.begin) {
      refuse_tensor(path, tensor,
                    fmt::format("lies at bytes {} to {}, which is not the size of {} of shape {}",
                                entry.begin, entry.end, printable(entry.dtype), entry.shape));
    }
  }
}

// Checks that tensors take all bytes of the file after the header, each byte once.
void check_layout(const std::string& path, const Entries& entries, std::uint64_t data_bytes) {
  std::vector<const Entries::value_type*> in_order;
  for (const auto& named : entries) {
    in_order.push_back(&named);
  }
  std::ranges::sort(in_order, {}, [](const Entries::value_type* named) {
    return std::tie(named->second.begin, named->second.end, named->first);
  });
  for (const Entries::value_type* const named : in_order) {
    if (named->second.end > data_bytes) {
      refuse_tensor(path, named->first,
                    fmt::format("ends at byte {}, the file has {} bytes of tensors: is it cut off?",
                                named->second.end, data_bytes));
    }
  }
  std::uint64_t end = 0;
  std::string before = "the first has none before it";
  for (const Entries::value_type* const named : in_order) {
    const auto& [tensor, entry] = *named;
    if (entry.begin != end) {
      refuse_tensor(
          path, tensor,
          fmt::format("begins at byte {}, must begin at byte {}: {}", entry.begin, end, before));
    }
    end = entry.end;
    before = fmt::format("there '{}' ends", printable(tensor));
  }
  if (end != data_bytes) {
    refuse_file(path,
                fmt::format("has {} bytes of tensors, must have {}: there the last tensor ends",
                            data_bytes, end));
  }
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  return std::ranges::find(kDTypes, dtype, [](const auto& named) { return named.second; })->first;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(path, error);
  const std::uint64_t file_bytes = is_file ? std::filesystem::file_size(path, error) : 0;
  if (is_file) {
    file_.open(path, std::ios::binary);
  }
  if (error || !file_.is_open()) {
    refuse_file(path, "cannot be read");
  }
  std::uint64_t header_bytes = 0;
  if (file_bytes < kLength_bytes || !read_bytes(&header_bytes, kLength_bytes)) {
    refuse_file(path,
                fmt::format("has {} bytes, fewer than the 8 of a header's length", file_bytes));
  }
  if (header_bytes > file_bytes - kLength_bytes) {
    refuse_file(path,
                fmt::format("has {} bytes, fewer than its header of {}", file_bytes, header_bytes));
  }
  if (header_bytes > kMostHeader_bytes) {
    refuse_file(path, fmt::format("has a header of {} bytes, must have at most {}", header_bytes,
                                  kMostHeader_bytes));
  }
  std::string text(header_bytes, '\0');
  if (!read_bytes(text.data(), header_bytes)) {
    refuse_file(path, "cannot be read");
  }
  entries_ = parse_safetensors_header(path, text);
  data_start_ = kLength_bytes + header_bytes;
  check_layout(path, entries_, file_bytes - data_start_);
  check_sizes(path, entries_);
}

bool SafetensorsFile::read_bytes(void* to, std::uint64_t bytes) {
  return file_.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes)).good();
}

bool SafetensorsFile::contains(const std::string& tensor) const {
  return entries_.contains(tensor);
}

reference::HostTensor SafetensorsFile::read(const std::string& tensor) {
  if (!contains(tensor)) {
    refuse_tensor(path_, tensor, "is not in the file");
  }
  const SafetensorsEntry& entry = entries_.at(tensor);
  const std::optional<DType> dtype = dtype_of(entry.dtype);
  if (!dtype) {
    refuse_tensor(
        path_, tensor,
        fmt::format("has dtype {}, must be U8, F8_E4M3, F32, F16 or BF16", printable(entry.dtype)));
  }
  if (entry.shape.size() > kMaxRank) {
    refuse_tensor(path_, tensor,
                  fmt::format("has rank {}, must be at most {}", entry.shape.size(), kMaxRank));
  }
  std::vector<std::int64_t> shape(entry.shape.begin(), entry.shape.end());
  if (shape.empty()) {
    shape.push_back(1);
  }
  check_host_memory(2.0 * static_cast<double>(entry.end - entry.begin));  // and its copy
  reference::HostTensor result(*dtype, shape);
  file_.seekg(static_cast<std::streamoff>(data_start_ + entry.begin));
  if (!read_bytes(result.data(), result.bytes())) {
    refuse_tensor(path_, tensor, "cannot be read");
  }
  return result;
}

}  // namespace tilewright::cli
