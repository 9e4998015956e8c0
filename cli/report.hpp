// A run's output: a table with a line for each kernel and case, and the progress of a sweep.
#pragma once

#include <cstddef>
#include <string>

#include "cli/results.hpp"

namespace tilewright::cli {

// The table on standard output, its first two columns as wide as their texts.
class Table {
 public:
  Table(std::size_t kernel_width, std::size_t case_width);

  void print_header() const;

  // A row; `note` goes behind it.
  void print(const std::string& kernel, const Case& c, const Outcome& outcome,
             const std::string& note = "") const;

 private:
  std::size_t kernel_width_;
  std::size_t case_width_;
};

// A progress bar on standard error, below the table. It is not drawn if that is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::size_t total);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // Shows that `done` of the total are finished, and that the one labelled `next` is next.
  void show(std::size_t done, const std::string& next) const;

  // Makes room for a line of text.
  void clear() const;

 private:
  std::size_t total_;
  bool is_terminal_;
};

}  // namespace tilewright::cli
