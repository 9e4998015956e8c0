#include "cli/safetensors.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <filesystem>
#include <optional>
#include <system_error>

#include "cli/commands.hpp"

namespace tilewright::cli {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kLength_bytes = 8;

std::optional<DType> dtype_of(const std::string& text) {
  constexpr std::array kNames = {std::pair("U8", DType::e2m1x2), std::pair("F8_E4M3", DType::e4m3),
                                 std::pair("F32", DType::fp32), std::pair("F16", DType::fp16),
                                 std::pair("BF16", DType::bf16)};
  for (const auto& [name, dtype] : kNames) {
    if (text == name) {
      return dtype;
    }
  }
  return std::nullopt;
}

// Where a tensor lies, as the header has it.
struct Entry {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::array<std::uint64_t, 2> data_offsets;
};

std::optional<Entry> parse(const nlohmann::json& json) {
  try {
    return Entry{.dtype = json.at("dtype"),
                 .shape = json.at("shape"),
                 .data_offsets = json.at("data_offsets")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

// The bytes of a dense tensor; nothing where a size is out of range or they are too many.
std::optional<std::uint64_t> bytes_of(const std::vector<std::int64_t>& shape, DType dtype) {
  constexpr std::uint64_t kLimit = std::uint64_t{1} << 48;
  std::uint64_t bytes = size_bytes(dtype);
  for (const std::int64_t size : shape) {
    if (size < 1 || static_cast<std::uint64_t>(size) > kLimit / bytes) {
      return std::nullopt;
    }
    bytes *= static_cast<std::uint64_t>(size);
  }
  return bytes;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(path, std::ios::binary) {
  std::error_code error;
  const std::uint64_t file_bytes = std::filesystem::file_size(path, error);
  if (error || !file_) {
    refuse("cannot be read");
  }
  std::uint64_t header_bytes = 0;
  if (!file_.read(reinterpret_cast<char*>(&header_bytes), kLength_bytes)) {
    refuse(fmt::format("has {} bytes, fewer than the 8 of a header's length", file_bytes));
  }
  if (header_bytes > file_bytes - kLength_bytes) {
    refuse(fmt::format("has {} bytes, fewer than its header of {}", file_bytes, header_bytes));
  }
  std::string text(header_bytes, '\0');
  file_.read(text.data(), static_cast<std::streamsize>(header_bytes));
  header_ = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header_.is_object()) {
    refuse("has a header that is no JSON object");
  }
  data_start_ = kLength_bytes + header_bytes;
  data_bytes_ = file_bytes - data_start_;
}

bool SafetensorsFile::contains(const std::string& tensor) const { return header_.contains(tensor); }

reference::HostTensor SafetensorsFile::read(const std::string& tensor) {
  if (!contains(tensor)) {
    refuse(tensor, "is not in the file");
  }
  const std::optional<Entry> entry = parse(header_[tensor]);
  if (!entry) {
    refuse(tensor, "has no dtype, shape and data_offsets");
  }
  const std::optional<DType> dtype = dtype_of(entry->dtype);
  if (!dtype) {
    refuse(tensor,
           fmt::format("has dtype {}, must be U8, F8_E4M3, F32, F16 or BF16", entry->dtype));
  }
  const auto [begin, end] = entry->data_offsets;
  const std::optional<std::uint64_t> bytes = bytes_of(entry->shape, *dtype);
  if (!bytes || end < begin || end - begin != *bytes) {
    refuse(tensor, fmt::format("lies at bytes {} to {}, which is not the size of {} of shape {}",
                               begin, end, entry->dtype, entry->shape));
  }
  if (end > data_bytes_) {
    refuse(tensor, fmt::format("ends at byte {}, the file has {} bytes of tensors: is it cut off?",
                               end, data_bytes_));
  }
  reference::HostTensor result(*dtype,
                               entry->shape.empty() ? std::vector<std::int64_t>{1} : entry->shape);
  file_.seekg(static_cast<std::streamoff>(data_start_ + begin));
  if (!file_.read(reinterpret_cast<char*>(result.data()),
                  static_cast<std::streamsize>(result.bytes()))) {
    refuse(tensor, "cannot be read");
  }
  return result;
}

void SafetensorsFile::refuse(const std::string& what) const {
  throw UsageError("--weights", path_ + " " + what);
}

void SafetensorsFile::refuse(const std::string& tensor, const std::string& what) const {
  throw UsageError("--weights", path_ + ": tensor '" + tensor + "' " + what);
}

}  // namespace tilewright::cli
