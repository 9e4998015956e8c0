// Walking over PTX text.
#pragma once

#include <bit>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>

#include "emulator/shared_memory.hpp"

namespace tilewright::emulator {

struct Literal {
  char kind = 'i';  // (i)nteger, (f)loat, (d)ouble
  std::uint64_t bits = 0;
};

class Cursor {
 public:
  explicit Cursor(std::string_view text, std::size_t position = 0) : text_(text), at_(position) {}

  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void next() { ++at_; }
  std::size_t position() const { return at_; }
  void move_to(std::size_t position) { at_ = position; }
  std::string_view rest() const { return text_.substr(std::min(at_, text_.size())); }
  std::string_view since(std::size_t first) const { return text_.substr(first, at_ - first); }
  bool starts(std::string_view prefix) const { return rest().starts_with(prefix); }

  // Spaces and comments.
  void skip_space() {
    while (!at_end()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
        ++at_;
      } else if (starts("//")) {
        skip_line();
      } else if (starts("/*")) {
        at_ = std::min(text_.find("*/", at_ + 2), text_.size() - 2) + 2;
      } else {
        return;
      }
    }
  }
  void skip_line() { at_ = std::min(text_.find('\n', at_), text_.size()); }
  void skip_to(char c) { at_ = std::min(text_.find(c, at_), text_.size()); }
  void skip_to_any(std::string_view characters) {
    at_ = std::min(text_.find_first_of(characters, at_), text_.size());
  }
  // Past the ';' that ends what begins here; braces nest.
  void skip_statement() {
    skip_to(';');
    ++at_;
  }
  // The text up to the ';' that ends it, which is passed.
  std::string_view statement() {
    const std::size_t first = at_;
    skip_statement();
    return text_.substr(first, at_ - first - 1);
  }
  // Past the '}' that belongs to the '{' here.
  void skip_braces() {
    int depth = 0;
    do {
      skip_to_any("{}/\"");
      const char c = peek();
      if (c == '{') {
        ++depth;
      } else if (c == '}') {
        --depth;
      } else if (c == '"') {
        ++at_;
        skip_to('"');
      } else if (starts("//")) {
        skip_line();
        continue;
      }
      ++at_;
    } while (depth > 0 && !at_end());
  }

  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%';
  }
  // A name, without dots.
  std::string_view word() {
    skip_space();
    const std::size_t first = at_;
    while (!at_end() && is_word(text_[at_])) {
      ++at_;
    }
    return text_.substr(first, at_ - first);
  }
  // A name with dots, colons and so on: an opcode or a special register.
  std::string_view dotted_word() {
    skip_space();
    const std::size_t first = at_;
    while (!at_end() && (is_word(text_[at_]) || text_[at_] == '.' || text_[at_] == ':')) {
      ++at_;
    }
    return text_.substr(first, at_ - first);
  }

  Literal literal() {
    skip_space();
    bool negative = false;
    if (peek() == '-') {
      negative = true;
      ++at_;
    }
    const std::string_view digits = word();
    if (digits.size() > 2 && digits[0] == '0' && (digits[1] == 'f' || digits[1] == 'F')) {
      return {'f', to_number(digits.substr(2), 16)};
    }
    if (digits.size() > 2 && digits[0] == '0' && (digits[1] == 'd' || digits[1] == 'D')) {
      return {'d', to_number(digits.substr(2), 16)};
    }
    if (peek() == '.') {
      ++at_;
      const std::string text = std::string(digits) + "." + std::string(word());
      const double value = std::strtod(text.c_str(), nullptr);
      return {'d', std::bit_cast<std::uint64_t>(negative ? -value : value)};
    }
    std::string_view body = digits;
    while (body.ends_with('U') || body.ends_with('u')) {
      body.remove_suffix(1);
    }
    std::uint64_t value = 0;
    if (body.starts_with("0x") || body.starts_with("0X")) {
      value = to_number(body.substr(2), 16);
    } else if (body.starts_with("0b") || body.starts_with("0B")) {
      value = to_number(body.substr(2), 2);
    } else if (body.size() > 1 && body.starts_with("0")) {
      value = to_number(body.substr(1), 8);
    } else {
      value = to_number(body, 10);
    }
    return {'i', negative ? ~value + 1 : value};
  }
  std::int64_t number() { return static_cast<std::int64_t>(literal().bits); }

 private:
  static std::uint64_t to_number(std::string_view digits, int base) {
    std::uint64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, base);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      throw EmulationError("'" + std::string(digits) + "' is no number");
    }
    return value;
  }

  std::string_view text_;
  std::size_t at_;
};

}  // namespace tilewright::emulator
