#include "cli/safetensors_header.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "cli/commands.hpp"
#include "cli/text.hpp"

namespace tilewright::cli {
namespace {

using nlohmann::json;

constexpr std::size_t kMostSizes = 64;      // of a shape
constexpr std::size_t kMostFields = 65536;  // of an entry, or of the metadata
constexpr auto kMetadata = "__metadata__";

// A value as the parser meets it. The elements of an array or object come after it.
struct Value {
  enum class Kind { size, string, array, object, other };

  Kind kind;
  std::uint64_t size = 0;
  std::string_view text = {};  // of a string, or of another value as it stands in the header

  // The value as error messages show it.
  std::string description() const {
    switch (kind) {
      case Kind::size:
        return std::to_string(size);
      case Kind::string:
        return fmt::format("\"{}\"", printable(text));
      case Kind::array:
        return "[...]";
      case Kind::object:
        return "{...}";
      case Kind::other:
        return printable(text);
    }
    return "";
  }
};

// Handles the parser's events. Of open arrays and objects, the first is the header, the second is a
// tensor's entry (or the metadata), and the third is one of its fields.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  SafetensorsEntries take_entries() { return std::move(entries_); }

  bool null() override { return take({Value::Kind::other, 0, "null"}); }
  bool boolean(bool value) override {
    return take({Value::Kind::other, 0, value ? "true" : "false"});
  }
  bool number_integer(std::int64_t value) override {
    return take({Value::Kind::other, 0, std::to_string(value)});
  }
  bool number_unsigned(std::uint64_t value) override { return take({Value::Kind::size, value}); }
  bool number_float(double, const std::string& text) override {
    return take({Value::Kind::other, 0, text});
  }
  bool string(std::string& value) override { return take({Value::Kind::string, 0, value}); }
  bool binary(json::binary_t&) override { return false; }  // JSON has none

  bool start_object(std::size_t) override { return open({Value::Kind::object}); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open({Value::Kind::array}); }
  bool end_array() override { return close(); }

  bool key(std::string& key) override {
    if (depth_ == kInHeader) {
      begin_entry(key);
    } else if (depth_ == kInEntry) {
      begin_field(key);
    }
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const json::exception&) override {
    refuse_file(path_, "has a header that is no JSON object");
  }

 private:
  static constexpr std::size_t kOutside = 0;
  static constexpr std::size_t kInHeader = 1;
  static constexpr std::size_t kInEntry = 2;
  static constexpr std::size_t kInField = 3;

  [[noreturn]] void refuse(const std::string& what) const { refuse_tensor(path_, tensor_, what); }

  bool open(const Value& value) {
    take(value);
    ++depth_;
    return true;
  }

  bool close() {
    --depth_;
    if (depth_ == kInEntry) {
      sizes_ = nullptr;
    } else if (depth_ == kInHeader && tensor_ != kMetadata) {
      end_entry();
    }
    return true;
  }

  bool take(const Value& value) {
    if (depth_ == kOutside && value.kind != Value::Kind::object) {
      refuse_file(path_, "has a header that is no JSON object");
    } else if (depth_ == kInHeader && value.kind != Value::Kind::object) {
      refuse(fmt::format("is {}, must be an object", value.description()));
    } else if (depth_ == kInEntry) {
      take_field(value);
    } else if (depth_ == kInField && sizes_ != nullptr) {
      take_size(value);
    }
    return true;
  }

  void begin_entry(const std::string& key) {
    tensor_ = key;
    const bool is_new =
        key == kMetadata ? !std::exchange(has_metadata_, true) : entries_.try_emplace(key).second;
    if (!is_new) {
      refuse("is in the header twice, must be there once");
    }
    fields_.clear();
    offsets_.clear();
  }

  void begin_field(const std::string& key) {
    field_ = key;
    if (fields_.size() == kMostFields) {
      refuse(fmt::format("has more than {} fields", kMostFields));
    }
    if (!fields_.insert(key).second) {
      refuse(fmt::format("has '{}' twice, must have it once", printable(key)));
    }
  }

  void take_field(const Value& value) {
    if (tensor_ == kMetadata || field_ == "dtype") {
      take_string(value);
    } else if (field_ == "shape" || field_ == "data_offsets") {
      sizes_ = field_ == "shape" ? &entries_.at(tensor_).shape : &offsets_;
      if (value.kind != Value::Kind::array) {
        refuse_size(fmt::format("{} {}", field_, value.description()));
      }
    }
  }

  void take_string(const Value& value) {
    if (value.kind != Value::Kind::string) {
      refuse(fmt::format("has {} {}, must be a string", printable(field_), value.description()));
    }
    if (tensor_ != kMetadata) {
      entries_.at(tensor_).dtype = value.text;
    }
  }

  void take_size(const Value& value) {
    if (value.kind != Value::Kind::size) {
      refuse_size(fmt::format("{} in its {}", value.description(), field_));
    }
    if (sizes_->size() == kMostSizes) {
      refuse(fmt::format("has more than {} numbers in its {}", kMostSizes, field_));
    }
    sizes_->push_back(value.size);
  }

  [[noreturn]] void refuse_size(const std::string& what) const {
    refuse(fmt::format("has {}, must be an array of whole numbers, none negative", what));
  }

  void end_entry() {
    for (const char* const field : {"dtype", "shape", "data_offsets"}) {
      if (!fields_.contains(field)) {
        refuse(fmt::format("has no {}, must have dtype, shape and data_offsets", field));
      }
    }
    if (offsets_.size() != 2 || offsets_[1] < offsets_[0]) {
      refuse(fmt::format("has data_offsets {}, must be [begin, end], begin at most end", offsets_));
    }
    SafetensorsEntry& entry = entries_.at(tensor_);
    entry.begin = offsets_[0];
    entry.end = offsets_[1];
  }

  const std::string& path_;
  SafetensorsEntries entries_;
  bool has_metadata_ = false;
  std::size_t depth_ = kOutside;
  std::string tensor_;                           // whose entry is read
  std::string field_;                            // of it
  std::set<std::string> fields_;                 // of it, so far
  std::vector<std::uint64_t> offsets_;           // of it
  std::vector<std::uint64_t>* sizes_ = nullptr;  // where the open array's numbers go
};

}  // namespace

void refuse_file(const std::string& path, const std::string& what) {
  throw UsageError("--weights", printable(path) + " " + what);
}

void refuse_tensor(const std::string& path, const std::string& tensor, const std::string& what) {
  refuse_file(path + ":", fmt::format("tensor '{}' {}", printable(tensor), what));
}

SafetensorsEntries parse_safetensors_header(const std::string& path, const std::string& text) {
  HeaderReader reader(path);
  json::sax_parse(text, &reader);
  return reader.take_entries();
}

}  // namespace tilewright::cli
