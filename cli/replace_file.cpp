#include "cli/replace_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tilewright::cli {
namespace {

constexpr int kAppend = O_WRONLY | O_APPEND | O_CLOEXEC;

// Throws if a system call's result says that it failed.
int checked(int result) {
  if (result < 0) {
    throw std::system_error(errno, std::generic_category());
  }
  return result;
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(checked(value)) {}
  Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
  ~Descriptor() {
    if (value_ >= 0) {
      close(value_);
    }
  }

  int get() const { return value_; }

  void write(std::string_view content) const {
    while (!content.empty()) {
      const ssize_t written = ::write(value_, content.data(), content.size());
      if (written >= 0) {
        content.remove_prefix(static_cast<std::size_t>(written));
      } else if (errno != EINTR) {
        checked(-1);
      }
    }
  }

 private:
  int value_;
};

bool is_at(const Descriptor& file, const std::string& path) {
  struct stat of_file {};
  struct stat of_path {};
  checked(fstat(file.get(), &of_file));
  return stat(path.c_str(), &of_path) == 0 && of_file.st_dev == of_path.st_dev &&
         of_file.st_ino == of_path.st_ino;
}

// Opens an empty file that no other program writes to meanwhile. It reuses the file that a killed
// program left.
Descriptor open_alone(const std::string& path) {
  while (true) {
    Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    checked(flock(file.get(), LOCK_EX));
    if (is_at(file, path)) {
      checked(ftruncate(file.get(), 0));
      return file;
    }
  }
}

// A new file beside `path`. It is deleted unless it has taken that name.
class Replacement {
 public:
  explicit Replacement(const std::string& path)
      : path_(path), name_(path + ".unfinished"), file_(open_alone(name_)) {}
  ~Replacement() {
    if (!has_taken_place_) {
      unlink(name_.c_str());
    }
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void take_place(std::string_view content) {
    struct stat old {};
    if (stat(path_.c_str(), &old) == 0) {
      checked(fchmod(file_.get(), old.st_mode & 0777));
    }
    file_.write(content);
    checked(fsync(file_.get()));
    checked(std::rename(name_.c_str(), path_.c_str()));
    has_taken_place_ = true;
  }

 private:
  std::string path_;
  std::string name_;
  Descriptor file_;
  bool has_taken_place_ = false;
};

// The file to which a symbolic link leads.
std::string followed(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? path : real.string();
}

}  // namespace

void replace_file(const std::string& path, std::string_view content) {
  Replacement(followed(path)).take_place(content);
}

void append_to_stream(const std::string& path, std::string_view content) {
  Descriptor(open(path.c_str(), kAppend)).write(content);
}

void check_can_write(const std::string& path) {
  if (std::filesystem::exists(path)) {
    const Descriptor can_be_opened(open(path.c_str(), kAppend));
  }
  if (!is_stream(path)) {
    const Replacement can_be_made(followed(path));
  }
}

bool is_stream(const std::string& path) {
  return std::filesystem::exists(path) && !std::filesystem::is_regular_file(path);
}

}  // namespace tilewright::cli
