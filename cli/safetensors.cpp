#include "cli/safetensors.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>

#include "cli/commands.hpp"

namespace tilewright::cli {
namespace {

using nlohmann::json;
using Entry = SafetensorsFile::Entry;
using Entries = std::map<std::string, Entry>;

static_assert(std::endian::native == std::endian::little);

constexpr std::uint64_t kLength_bytes = 8;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw UsageError("--weights", path + " " + what);
}

[[noreturn]] void refuse(const std::string& path, const std::string& tensor,
                         const std::string& what) {
  throw UsageError("--weights", path + ": tensor '" + tensor + "' " + what);
}

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

// Of an element; nothing where the dtype is not known, or its elements are no whole bytes.
std::optional<std::uint64_t> element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> kBytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"I64", 8}, {"U64", 8}, {"F64", 8},     {"C64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? std::nullopt : std::optional(found->second);
}

// The bytes of a dense tensor, `bytes` an element; nothing where they, or a size beside one of 0,
// are too many.
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

// The header; of a key that an object has twice the parser would keep the last.
json parse_header(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of each object that is open
  std::string tensor;
  const auto check_key = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const auto key = parsed.get<std::string>();
      const bool is_new = keys.back().insert(key).second;
      if (keys.size() == 1) {
        tensor = key;
      }
      if (!is_new && keys.size() == 1) {
        refuse(path, tensor, "is in the header twice, must be there once");
      } else if (!is_new) {
        refuse(path, tensor, fmt::format("has '{}' twice, must have it once", key));
      }
    }
    return true;
  };
  json header = json::parse(text, check_key, /*allow_exceptions=*/false);
  if (!header.is_object()) {
    refuse(path, "has a header that is no JSON object");
  }
  return header;
}

std::vector<std::uint64_t> parse_sizes(const std::string& path, const std::string& tensor,
                                       const char* field, const json& sizes) {
  const auto is_size = [](const json& size) { return size.is_number_unsigned(); };
  if (!sizes.is_array() || !std::ranges::all_of(sizes, is_size)) {
    refuse(path, tensor,
           fmt::format("has {} {}, must be an array of whole numbers, none negative", field,
                       sizes.dump()));
  }
  return sizes.get<std::vector<std::uint64_t>>();
}

Entry parse_entry(const std::string& path, const std::string& tensor, const json& entry) {
  for (const char* const field : {"dtype", "shape", "data_offsets"}) {
    if (!entry.is_object() || !entry.contains(field)) {
      refuse(path, tensor,
             fmt::format("has no {}, must have dtype, shape and data_offsets", field));
    }
  }
  const json& dtype = entry["dtype"];
  if (!dtype.is_string()) {
    refuse(path, tensor, fmt::format("has dtype {}, must be a string", dtype.dump()));
  }
  const auto offsets = parse_sizes(path, tensor, "data_offsets", entry["data_offsets"]);
  if (offsets.size() != 2 || offsets[1] < offsets[0]) {
    refuse(path, tensor,
           fmt::format("has data_offsets {}, must be [begin, end], begin at most end", offsets));
  }
  return {.dtype = dtype,
          .shape = parse_sizes(path, tensor, "shape", entry["shape"]),
          .begin = offsets[0],
          .end = offsets[1]};
}

Entries parse_entries(const std::string& path, const std::string& text) {
  const json header = parse_header(path, text);
  Entries entries;
  for (const auto& [tensor, entry] : header.items()) {
    if (tensor != "__metadata__") {
      entries.emplace(tensor, parse_entry(path, tensor, entry));
    } else if (!entry.is_object() || !std::ranges::all_of(entry, &json::is_string)) {
      refuse(path, tensor, fmt::format("is {}, must be an object of strings", entry.dump()));
    }
  }
  return entries;
}

void check_sizes(const std::string& path, const Entries& entries) {
  for (const auto& [tensor, entry] : entries) {
    const std::optional<std::uint64_t> bytes = element_bytes(entry.dtype);
    if (bytes && bytes_of(entry.shape, *bytes) != entry.end - entry.begin) {
      refuse(path, tensor,
             fmt::format("lies at bytes {} to {}, which is not the size of {} of shape {}",
                         entry.begin, entry.end, entry.dtype, entry.shape));
    }
  }
}

// That tensors take all bytes of the file behind the header, each byte once.
void check_layout(const std::string& path, const Entries& entries, std::uint64_t data_bytes) {
  std::vector<const Entries::value_type*> in_order;
  for (const auto& named : entries) {
    in_order.push_back(&named);
  }
  std::ranges::stable_sort(in_order, {}, [](const Entries::value_type* named) {
    return std::tuple(named->second.begin, named->second.end);
  });
  for (const Entries::value_type* const named : in_order) {
    if (named->second.end > data_bytes) {
      refuse(path, named->first,
             fmt::format("ends at byte {}, the file has {} bytes of tensors: is it cut off?",
                         named->second.end, data_bytes));
    }
  }
  std::uint64_t end = 0;
  std::string before = "the first has none before it";
  for (const Entries::value_type* const named : in_order) {
    const auto& [tensor, entry] = *named;
    if (entry.begin != end) {
      refuse(path, tensor,
             fmt::format("begins at byte {}, must begin at byte {}: {}", entry.begin, end, before));
    }
    end = entry.end;
    before = fmt::format("there '{}' ends", tensor);
  }
  if (end != data_bytes) {
    refuse(path, fmt::format("has {} bytes of tensors, must have {}: there the last tensor ends",
                             data_bytes, end));
  }
}

}  // namespace

std::string_view safetensors_name(DType dtype) {
  return std::ranges::find(kDTypes, dtype, [](const auto& named) { return named.second; })->first;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : path_(path), file_(path, std::ios::binary) {
  std::error_code error;
  const std::uint64_t file_bytes = std::filesystem::file_size(path, error);
  if (error || !file_) {
    refuse(path, "cannot be read");
  }
  std::uint64_t header_bytes = 0;
  if (!file_.read(reinterpret_cast<char*>(&header_bytes), kLength_bytes)) {
    refuse(path, fmt::format("has {} bytes, fewer than the 8 of a header's length", file_bytes));
  }
  if (header_bytes > file_bytes - kLength_bytes) {
    refuse(path,
           fmt::format("has {} bytes, fewer than its header of {}", file_bytes, header_bytes));
  }
  std::string text(header_bytes, '\0');
  file_.read(text.data(), static_cast<std::streamsize>(header_bytes));
  entries_ = parse_entries(path, text);
  data_start_ = kLength_bytes + header_bytes;
  check_layout(path, entries_, file_bytes - data_start_);
  check_sizes(path, entries_);
}

bool SafetensorsFile::contains(const std::string& tensor) const {
  return entries_.contains(tensor);
}

reference::HostTensor SafetensorsFile::read(const std::string& tensor) {
  if (!contains(tensor)) {
    refuse(path_, tensor, "is not in the file");
  }
  const Entry& entry = entries_.at(tensor);
  const std::optional<DType> dtype = dtype_of(entry.dtype);
  if (!dtype) {
    refuse(path_, tensor,
           fmt::format("has dtype {}, must be U8, F8_E4M3, F32, F16 or BF16", entry.dtype));
  }
  if (entry.shape.size() > kMaxRank) {
    refuse(path_, tensor,
           fmt::format("has rank {}, must be at most {}", entry.shape.size(), kMaxRank));
  }
  std::vector<std::int64_t> shape(entry.shape.begin(), entry.shape.end());
  if (shape.empty()) {
    shape.push_back(1);
  }
  reference::HostTensor result(*dtype, shape);
  file_.seekg(static_cast<std::streamoff>(data_start_ + entry.begin));
  if (!file_.read(reinterpret_cast<char*>(result.data()),
                  static_cast<std::streamsize>(result.bytes()))) {
    refuse(path_, tensor, "cannot be read");
  }
  return result;
}

}  // namespace tilewright::cli
