#include "cli/options.hpp"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <span>

#include "cli/commands.hpp"

namespace tilewright::cli {
namespace {

// The check of a duration in seconds.
CLI::Validator seconds() {
  return number<double>("a number, finite and at least 0",
                        [](double value) { return value >= 0 && std::isfinite(value); });
}

}  // namespace

CLI::Option* add_switch(CLI::App& app, const std::string& names, bool& value,
                        const std::string& help) {
  return app.add_flag(names, value, help)->check([](const std::string& text) -> std::string {
    constexpr std::array<std::string_view, 8> kKnown = {"1", "true",  "on",  "yes",
                                                        "0", "false", "off", "no"};
    return std::ranges::find(kKnown, CLI::detail::to_lower(text)) != kKnown.end()
               ? ""
               : fmt::format("is {}, must be one of {}", text, fmt::join(kKnown, ", "));
  });
}

void check_negations(int argc, const char* const* argv) {
  for (const std::string_view argument : std::span(argv, static_cast<std::size_t>(argc))) {
    const std::size_t equals = argument.find('=');
    if (argument.starts_with("--no-") && equals != std::string_view::npos) {
      throw UsageError(
          std::string(argument.substr(0, equals)),
          fmt::format("has the value '{}', must have none", argument.substr(equals + 1)));
    }
  }
}

CLI::Validator tensor_size() {
  return number<std::int64_t>("a whole number from 1 to 2^30 - 1", [](std::int64_t value) {
    return value >= 1 && value < std::int64_t{1} << 30;
  });
}

CLI::Validator non_negative_float() {
  return number<float>("a number of FP32, finite and at least 0",
                       [](float value) { return value >= 0 && std::isfinite(value); });
}

void add_run_options(CLI::App& app, const std::string& kernel_option, const std::string& dtype_help,
                     RunOptions& o, const Names<DType>& dtypes) {
  o.command = &app;
  o.kernel_option = kernel_option;
  app.add_option(kernel_option, o.kernels,
                 "Names, comma-separated; all: every one that can run; auto: the fastest of these")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->envname("KERNEL")
      ->capture_default_str();
  app.add_option(
         "--device", o.device,
         "cpu, cuda or cuda:N; by default a named kernel's own, else cuda where there is one")
      ->envname("DEVICE");
  add_named(app, "--dtype", o.dtype, dtypes, dtype_help)->envname("DTYPE");
  app.add_option("--seed", o.seed, "Of the normally distributed inputs")
      ->check(number<std::uint64_t>("a whole number from 0 to 2^64 - 1"))
      ->envname("SEED")
      ->capture_default_str();
  add_switch(app, "--check", o.check, "Check the result against the float64 reference")
      ->envname("CHECK");
  app.add_option("--samples", o.timing.samples, "Timed launches")
      ->check(
          number<int>("a whole number from 1 to 2^31 - 1", [](int value) { return value >= 1; }))
      ->envname("SAMPLES")
      ->capture_default_str();
  app.add_option("--max-seconds", o.timing.max_seconds,
                 "Take fewer samples of a slow kernel, though not fewer than 20 (5 on the CPU, and "
                 "of launches over 1 s)")
      ->check(seconds())
      ->envname("MAX_SECONDS")
      ->capture_default_str();
  app.add_option("--gap", o.timing.gap_seconds, "Idle seconds before each measurement")
      ->check(seconds())
      ->envname("GAP")
      ->capture_default_str();
  add_switch(app, "--flush-l2,!--no-flush-l2", o.timing.flush_l2,
             "Flush the GPU's L2 cache before each launch (default: yes)")
      ->envname("FLUSH_L2");
  app.add_option("--json", o.json_path, "Write results lines to this file, replacing it")
      ->type_name("FILE");
}

std::string one_of(const std::vector<std::string_view>& names) {
  return fmt::format("{} or {}", fmt::join(names.begin(), names.end() - 1, ", "), names.back());
}

std::optional<Device> parse_device(const std::string& text) {
  if (text.empty()) {
    return std::nullopt;
  }
  if (text == "cpu") {
    return Device{};
  }
  Device device{DeviceKind::cuda, 0};
  const char* const end = text.data() + text.size();
  const bool has_index = text.starts_with("cuda:");
  if (has_index) {
    const auto [rest, error] = std::from_chars(text.data() + 5, end, device.index);
    if (error == std::errc{} && rest == end && device.index >= 0) {
      return device;
    }
  }
  if (text != "cuda") {
    throw UsageError("--device", fmt::format("is '{}', must be cpu, cuda or cuda:N", text));
  }
  return device;
}

}  // namespace tilewright::cli
