// Files that are never seen half-written.
#pragma once

#include <string>
#include <string_view>

namespace tilewright::cli {

// Gives a regular file, or one that is not there yet, this content, by way of FILE.unfinished
// beside it, which takes its name once it is complete and on the disk. Whatever happens in between,
// the file holds its old content or the new one, whole. A symbolic link stays one. Throws
// std::system_error; a program that is killed may leave FILE.unfinished behind.
void replace_file(const std::string& path, std::string_view content);

// Adds to a file that is no regular one: a pipe, a terminal, a device. Throws std::system_error.
void append_to_stream(const std::string& path, std::string_view content);

// Throws std::system_error where replace_file() or append_to_stream() could not do what it does.
// The file stays as it is.
void check_can_write(const std::string& path);

// Whether it is there and is no regular file.
bool is_stream(const std::string& path);

}  // namespace tilewright::cli
