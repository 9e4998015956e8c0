// What fuzz targets expect, and what they count.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tilewright::fuzz {

// Ends the program with the message where it is false: what a fuzzer calls a crash.
void check(bool is_true, const std::string& message);

// What is checked, to be printed behind such a message.
inline std::function<std::string()> context = [] { return std::string(); };

// Ends the program where an error's message could act upon a terminal (control characters and
// bytes that are no UTF-8), or is very long.
void check_printable(std::string_view message);

// Counts what happened, and prints it when the program ends.
class Tally {
 public:
  explicit Tally(const char* what) : what_(what) {}
  ~Tally();
  Tally(const Tally&) = delete;
  Tally& operator=(const Tally&) = delete;

  void operator++() { ++count_; }

 private:
  const char* what_;
  std::uint64_t count_ = 0;
};

}  // namespace tilewright::fuzz
