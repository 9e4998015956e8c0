// Files that are never seen half-written.
#pragma once

#include <string>
#include <string_view>

namespace tilewright::cli {

// Gives a regular file, or a new one, this content. It writes FILE.unfinished beside it, which
// takes its name once it is complete and on the disk: whatever happens meanwhile, the file has its
// old content or the new one, whole. A symbolic link stays one. Throws std::system_error; a program
// that is killed may leave FILE.unfinished behind.
void replace_file(const std::string& path, std::string_view content);

// Adds to a file that is not regular: a pipe, a terminal, a device. Throws std::system_error.
void append_to_stream(const std::string& path, std::string_view content);

// Throws std::system_error if replace_file() or append_to_stream() could not write. The file stays
// as it is.
void check_can_write(const std::string& path);

// Whether `path` exists and is not a regular file.
bool is_stream(const std::string& path);

}  // namespace tilewright::cli
