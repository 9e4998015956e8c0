#include "cli/report.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>

namespace tilewright::cli {
namespace {

constexpr auto kNumbers = "{:>11} {:>11} {:>11} {:>9} {:>9}";

std::string numbers(const Case& c, const Timing& timing) {
  const auto number = [](double value, int decimals) {
    return fmt::format("{:.{}f}", value, decimals);
  };
  return fmt::format(kNumbers, number(timing.median_us, 1), number(timing.p10_us, 1),
                     number(timing.p90_us, 1), number(c.flops() / timing.median_us * 1e-6, 3),
                     number(c.bytes() / timing.median_us * 1e-3, 1));
}

}  // namespace

Table::Table(std::size_t kernel_width, std::size_t case_width)
    : kernel_width_(kernel_width), case_width_(case_width) {}

void Table::print_header() const {
  fmt::print("{:<{}} {:<{}} {}  errors\n", "kernel", kernel_width_, "case", case_width_,
             fmt::format(kNumbers, "median us", "p10 us", "p90 us", "TFLOP/s", "GB/s"));
}

void Table::print(const std::string& kernel, const Case& c, const Outcome& outcome,
                  const std::string& note) const {
  fmt::print("{:<{}} {:<{}} ", kernel, kernel_width_, c.label(), case_width_);
  if (outcome.timing) {
    fmt::print("{}  {}{}\n", numbers(c, *outcome.timing),
               outcome.check ? "ok: " + outcome.check->summary : "not checked", note);
  } else {
    fmt::print("{}: {}\n", outcome.is_wrong() ? "FAILED" : "cannot run",
               outcome.reason.value_or(""));
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
