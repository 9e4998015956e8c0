#include "cli/results_file.hpp"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include "cli/commands.hpp"
#include "cli/replace_file.hpp"
#include "cli/text.hpp"
#include "tilewright/version.hpp"

namespace tilewright::cli {
namespace {

constexpr std::size_t kLargestFile_bytes = std::size_t{64} << 20;
constexpr std::size_t kLongestLine_bytes = std::size_t{1} << 20;
constexpr int kDeepestNesting = 16;

// JSON with sorted keys: two cases are the same if their texts are.
using SortedJson = nlohmann::json;

// A line's place in a file, for error messages.
struct Place {
  const std::string& path;
  std::size_t number;
};

[[noreturn]] void refuse(const Place& place, const std::string& what) {
  throw UsageError("--resume",
                   fmt::format("{} line {} {}", printable(place.path), place.number, what));
}

// The file's text; empty if there is no file.
std::string read_text(const std::string& path) {
  const auto refuse_file = [&](const std::string& what) {
    throw UsageError("--resume", fmt::format("{} {}", printable(path), what));
  };
  std::string text;
  if (!std::filesystem::exists(path)) {
    return text;
  }
  if (is_stream(path)) {
    refuse_file("is no regular file, must be one");
  }
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(std::size_t{64} << 10);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    text.append(piece.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kLargestFile_bytes) {
      refuse_file(
          fmt::format("has more than {} bytes, the most that is resumed", kLargestFile_bytes));
    }
  }
  if (!file.eof()) {
    refuse_file("cannot be read");
  }
  return text;
}

const SortedJson& field_of(const Place& place, const SortedJson& line, const char* field) {
  const auto value = line.find(field);
  if (value == line.end()) {
    refuse(place, fmt::format("has no {}, must be a line of results", field));
  }
  return *value;
}

std::string text_of(const Place& place, const SortedJson& line, const char* field) {
  const SortedJson& value = field_of(place, line, field);
  if (!value.is_string()) {
    refuse(place, fmt::format("has {} of type {}, must be a string", field, value.type_name()));
  }
  return value;
}

KeptLine kept_line(const Place& place, const SortedJson& line) {
  if (!line.is_object()) {
    refuse(place, fmt::format("is of type {}, must be an object", line.type_name()));
  }
  const SortedJson& c = field_of(place, line, "case");
  if (!c.is_object()) {
    refuse(place, fmt::format("has case of type {}, must be an object", c.type_name()));
  }
  return {.run = text_of(place, line, "run"),
          .case_text = c.dump(),
          .impl = text_of(place, line, "impl"),
          .impl_version = text_of(place, line, "impl_version"),
          .gpu = text_of(place, line, "gpu")};
}

// Parses a line; returns nothing if it is only the beginning of one. That is allowed if
// `may_be_cut_off`: nothing follows the line, not even its end.
std::optional<KeptLine> parse_line(const Place& place, std::string_view text, bool may_be_cut_off) {
  if (text.size() > kLongestLine_bytes) {
    refuse(place,
           fmt::format("has {} bytes, must have at most {}", text.size(), kLongestLine_bytes));
  }
  const auto check_depth = [&](int depth, SortedJson::parse_event_t, const SortedJson&) {
    if (depth > kDeepestNesting) {
      refuse(place,
             fmt::format("nests deeper than {}, must be a line of results", kDeepestNesting));
    }
    return true;
  };
  try {
    return kept_line(place, SortedJson::parse(text.begin(), text.end(), check_depth));
  } catch (const SortedJson::parse_error& error) {
    if (may_be_cut_off && text.starts_with('{') && error.byte > text.size()) {
      return std::nullopt;
    }
    refuse(place, fmt::format("is no JSON from byte {} on, must be a line of results", error.byte));
  } catch (const SortedJson::out_of_range&) {
    refuse(place, "has a number that is too large, must be a line of results");
  }
}

// Parses the lines of a file's text, and removes from it a last line that was cut off.
std::vector<KeptLine> parse_lines(const std::string& path, std::string& text) {
  std::vector<KeptLine> lines;
  std::size_t number = 0;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t newline = text.find('\n', begin);
    const bool has_end = newline != std::string::npos;
    const auto line = std::string_view(text).substr(begin, newline - begin);
    ++number;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      auto kept = parse_line({path, number}, line, !has_end);
      if (!kept) {
        text.resize(begin);
        break;
      }
      lines.push_back(std::move(*kept));
    }
    begin = has_end ? newline + 1 : text.size();
  }
  if (!text.empty() && !text.ends_with('\n')) {
    text += '\n';
  }
  return lines;
}

}  // namespace

ResultsFile::ResultsFile(const std::string& path, bool resume)
    : path_(path),
      new_run_(fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}", fmt::gmtime(std::time(nullptr)), kCommit)) {
  if (path.empty()) {
    return;
  }
  if (resume) {
    content_ = read_text(path);
    kept_ = parse_lines(path, content_);
  }
  try {
    check_can_write(path);
  } catch (const std::system_error& error) {
    throw UsageError("--json",
                     fmt::format("cannot write '{}': {}", printable(path), error.code().message()));
  }
}

bool ResultsFile::contains(const Json& case_object, const std::string& impl,
                           const std::string& gpu) const {
  const std::string case_text = SortedJson(case_object).dump();
  return std::ranges::any_of(kept_, [&](const KeptLine& line) {
    return line.case_text == case_text && line.impl == impl && line.impl_version == kCommit &&
           line.gpu == gpu;
  });
}

std::string ResultsFile::run_of(const Json& line) const {
  const auto same = std::ranges::find_if(kept_, [&](const KeptLine& kept) {
    return kept.impl_version == kCommit && kept.gpu == line["gpu"].get<std::string>();
  });
  return same == kept_.end() ? new_run_ : same->run;
}

void ResultsFile::append(const Json& line) {
  if (path_.empty()) {
    return;
  }
  Json whole = {{"run", run_of(line)}};
  whole.update(line);
  const std::string text = whole.dump() + '\n';
  content_ += text;
  try {
    if (is_stream(path_)) {
      append_to_stream(path_, text);
    } else {
      replace_file(path_, content_);
    }
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::unsupported, "--json",
                fmt::format("cannot write to '{}': {}", printable(path_), error.code().message()));
  }
}

}  // namespace tilewright::cli
