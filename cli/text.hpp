// Text from files and users, made safe for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tilewright::cli {

// The text with nothing that a terminal would act upon: control characters (C0, DEL and C1),
// characters that change the direction of text, and invalid UTF-8 become \n, \x1b, \u202e and the
// like; so do quotes and backslashes. A long text is cut to its beginning and its size.
std::string printable(std::string_view text);

// The same in single quotes, as a shell takes it.
std::string shell_quoted(std::string_view text);

}  // namespace tilewright::cli
