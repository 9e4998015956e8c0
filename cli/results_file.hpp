// Results files: a line for each kernel measured on each case. No line is lost on the way.
#pragma once

#include <string>
#include <vector>

#include "cli/results.hpp"

namespace tilewright::cli {

// What resuming needs of a line that a file had.
struct KeptLine {
  std::string run;
  std::string case_text;
  std::string impl;
  std::string impl_version;
  std::string gpu;
};

class ResultsFile {
 public:
  // The first line replaces what is in the file. With `resume` it is added to the lines there, of
  // which the last may have been cut off and is then dropped. Until then the file stays as it is,
  // and from then on it is complete at every moment, however the program ends. An empty path writes
  // nothing. Throws UsageError if the file cannot be written or has other lines than results, more
  // than 64 MiB, or a line of more than 1 MiB.
  ResultsFile(const std::string& path, bool resume);

  // Whether a kept line holds the same implementation of the same commit on the same case and
  // machine.
  bool contains(const Json& case_object, const std::string& impl, const std::string& gpu) const;

  // Writes the line, which is in the file even if the program ends right after. Its run is this
  // one, or the one that is resumed: that of kept lines with the same commit and machine.
  void append(const Json& line);

 private:
  std::string run_of(const Json& line) const;

  std::string path_;
  std::string content_;  // what is in the file, or will be with the first line
  std::vector<KeptLine> kept_;
  std::string new_run_;  // UTC start time and commit
};

}  // namespace tilewright::cli
