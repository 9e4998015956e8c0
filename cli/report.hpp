// A run's output: a table with a line for each kernel and case, and the progress of a sweep.
#pragma once

#include <string>

#include "cli/results.hpp"

namespace tilewright::cli {

void print_table_header();

void print_outcome(std::string_view kernel, const AttentionCase& c, const Outcome& outcome);

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
