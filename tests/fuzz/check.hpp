// What fuzz targets expect, and what they count.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tilewright::fuzz {

// Ends the program with the message if a condition is false, which a fuzzer takes for a crash.
void check(bool is_true, const std::string& message);

// Describes what is checked. It is printed after such a message.
inline std::function<std::string()> context = [] { return std::string(); };

// Ends the program if an error's message is very long, or could act upon a terminal: by control
// characters or invalid UTF-8.
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
