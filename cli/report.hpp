// What a person sees of a run: a table's line for each kernel and case, and how far a sweep is.
#pragma once

#include <string>

#include "cli/results.hpp"

namespace tilewright::cli {

void print_table_header();

void print_outcome(std::string_view kernel, const AttentionCase& c, const Outcome& outcome);

// A bar on standard error, below the table. Draws nothing where that is no terminal.
class ProgressBar {
 public:
  explicit ProgressBar(std::size_t total);
  ~ProgressBar() { clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `done` of the total are finished, the one of this label comes next.
  void show(std::size_t done, const std::string& next) const;

  // Makes room for a line of text.
  void clear() const;

 private:
  std::size_t total_;
  bool is_terminal_;
};

}  // namespace tilewright::cli
