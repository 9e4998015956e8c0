#include "fuzz/check.hpp"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

namespace tilewright::fuzz {
namespace {

// The bytes of the UTF-8 character that the text begins with, or 0 where it is none or a control
// character.
std::size_t printable_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const std::size_t count = lead < 0x80   ? 1
                            : lead < 0xc2 ? 0
                            : lead < 0xe0 ? 2
                            : lead < 0xf0 ? 3
                                          : 4;
  if (count == 0 || lead > 0xf4 || count > text.size()) {
    return 0;
  }
  for (std::size_t i = 1; i < count; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) {
      return 0;
    }
  }
  const bool is_control = lead < 0x20 || lead == 0x7f || (lead == 0xc2 && byte(1) < 0xa0);
  const bool changes_direction =  // U+200E, U+200F, U+2028 to U+202E, U+2066 to U+2069
      lead == 0xe2 && ((byte(1) == 0x80 && (byte(2) == 0x8e || byte(2) == 0x8f ||
                                            (byte(2) >= 0xa8 && byte(2) <= 0xae))) ||
                       (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9));
  return is_control || changes_direction ? 0 : count;
}

}  // namespace

void check(bool is_true, const std::string& message) {
  if (!is_true) {
    std::fprintf(stderr, "finding: %s\n%s", message.c_str(), context().c_str());
    std::abort();
  }
}

void check_printable(std::string_view message) {
  constexpr std::size_t kLongest = 4096;
  check(message.size() <= kLongest, "a message of " + std::to_string(message.size()) + " bytes");
  for (std::string_view rest = message; !rest.empty();) {
    const std::size_t count = printable_bytes(rest);
    check(count > 0, "byte " + std::to_string(message.size() - rest.size()) +
                         " of a message is not printable: " + std::string(message));
    rest.remove_prefix(count);
  }
}

Tally::~Tally() { std::fprintf(stderr, "%12" PRIu64 " %s\n", count_, what_); }

}  // namespace tilewright::fuzz
