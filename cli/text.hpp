// Text that somebody else wrote, made fit for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tilewright::cli {

// The text without what a terminal would act upon: control characters (C0, DEL and C1), characters
// that change the direction of text, and bytes that are no UTF-8 become \n, \x1b, \u202e and the
// like; so do quotes and backslashes. Of a long text, the beginning and its size.
std::string printable(std::string_view text);

}  // namespace tilewright::cli
