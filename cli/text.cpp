#include "cli/text.hpp"

#include <fmt/core.h>
#include <fmt/format.h>

namespace tilewright::cli {

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest_bytes = 256;
  const std::string quoted = fmt::format("{:?}", text.substr(0, kLongest_bytes));
  const std::string escaped = quoted.substr(1, quoted.size() - 2);
  return text.size() <= kLongest_bytes ? escaped
                                       : fmt::format("{}... ({} bytes)", escaped, text.size());
}

std::string shell_quoted(std::string_view text) { return fmt::format("'{}'", printable(text)); }

}  // namespace tilewright::cli
