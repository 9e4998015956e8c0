#include "cli/report.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

namespace tilewright::cli {
namespace {

constexpr auto kRow = "{:<8} {:<44} {:>11} {:>11} {:>11} {:>9} {:>9}  {}\n";

std::string check_text(const Outcome& outcome) {
  if (!outcome.check) {
    return "not checked";
  }
  return fmt::format("ok: relative {:.1e}, max {:.1e}, lse {:.1e}", outcome.check->rel_fro_error,
                     outcome.check->max_abs_error, outcome.check->lse_max_abs_error);
}

}  // namespace

void print_table_header() {
  fmt::print(fmt::runtime(kRow), "kernel", "case", "median us", "p10 us", "p90 us", "TFLOP/s",
             "GB/s", "errors");
}

void print_outcome(std::string_view kernel, const AttentionCase& c, const Outcome& outcome) {
  if (outcome.timing) {
    const Timing& timing = *outcome.timing;
    const auto number = [](double value, int decimals) {
      return fmt::format("{:.{}f}", value, decimals);
    };
    fmt::print(fmt::runtime(kRow), kernel, label(c.problem), number(timing.median_us, 1),
               number(timing.p10_us, 1), number(timing.p90_us, 1),
               number(flops(c) / timing.median_us * 1e-6, 3),
               number(compulsory_bytes(c.problem) / timing.median_us * 1e-3, 1),
               check_text(outcome));
  } else {
    fmt::print("{:<8} {:<44} {}: {}\n", kernel, label(c.problem),
               outcome.is_wrong() ? "FAILED" : "cannot run", outcome.reason.value_or(""));
  }
  std::fflush(stdout);
}

ProgressBar::ProgressBar(std::size_t total)
    : total_(total), is_terminal_(isatty(STDERR_FILENO) != 0) {}

void ProgressBar::show(std::size_t done, const std::string& next) const {
  if (!is_terminal_) {
    return;
  }
  constexpr std::size_t kWidth = 24;
  const std::string filled(kWidth * done / total_, '#');
  fmt::print(stderr, "\r\033[K[{:.<{}}] {}/{}  {}", filled, kWidth, done, total_, next);
  std::fflush(stderr);
}

void ProgressBar::clear() const {
  if (is_terminal_) {
    std::fputs("\r\033[K", stderr);
    std::fflush(stderr);
  }
}

}  // namespace tilewright::cli
