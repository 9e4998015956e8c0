#include "cli/timer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "reference/host_tensor.hpp"

namespace tilewright::cli {
namespace {

constexpr double kUsPerSecond = 1e6;
constexpr double kWarmUp_us = 20e3;
constexpr int kMaxWarmUps = 20;
constexpr double kLongLaunch_us = 1e6;
constexpr int kFewestSamples = 20;
constexpr int kFewestLongSamples = 5;

double median_of(Samples samples) {
  std::ranges::sort(samples.times_us);
  return quantile(samples.times_us, 0.5);
}

// Runs the launch for a while and returns how long one takes.
double warm_up_us(Machine& machine, const Launch& launch, bool flush_l2) {
  machine.run(launch);  // the first call loads code and sets limits
  const double first_us = median_of(machine.time(launch, 1, flush_l2));
  if (first_us > kWarmUp_us) {
    return first_us;
  }
  const int more = std::min(static_cast<int>(kWarmUp_us / first_us), kMaxWarmUps);
  return median_of(machine.time(launch, more, flush_l2));
}

int sample_count(double launch_us, const TimingOptions& options, DeviceKind kind) {
  const bool is_slow = launch_us > kLongLaunch_us || kind == DeviceKind::cpu;
  const double affordable = options.max_seconds * kUsPerSecond / launch_us;
  const double count = std::max<double>(affordable, is_slow ? kFewestLongSamples : kFewestSamples);
  return static_cast<int>(std::min<double>(options.samples, count));
}

}  // namespace

double quantile(const std::vector<double>& sorted, double q) {
  const double position = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(position);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

Timing measure(Machine& machine, const Launch& launch, const TimingOptions& options) {
  std::this_thread::sleep_for(std::chrono::duration<double>(options.gap_seconds));
  const double launch_us = warm_up_us(machine, launch, options.flush_l2);
  const int count = sample_count(launch_us, options, machine.device().kind);
  Samples samples = machine.time(launch, count, options.flush_l2);
  std::ranges::sort(samples.times_us);
  return {.median_us = quantile(samples.times_us, 0.5),
          .p10_us = quantile(samples.times_us, 0.1),
          .p90_us = quantile(samples.times_us, 0.9),
          .samples = count,
          .cold_l2 = samples.cold_l2,
          .readings = samples.readings};
}

Timing measure_copy(Machine& machine, std::size_t bytes, const TimingOptions& options) {
  constexpr std::size_t kBlock_bytes = std::size_t{64} << 20;  // repeated in all of the source
  const std::size_t floats = std::min(kBlock_bytes, bytes) / sizeof(float) + 1;
  reference::HostTensor block(DType::fp32, {static_cast<std::int64_t>(floats)});
  reference::fill_normal(block.view(), 1);
  const Memory from = machine.allocate(bytes);
  const Memory to = machine.allocate(bytes);
  for (std::size_t at = 0; at < bytes; at += kBlock_bytes) {
    machine.upload(from.get() + at, block.data(), std::min(kBlock_bytes, bytes - at));
  }
  return measure(
      machine, [&](Stream stream) { machine.copy(to.get(), from.get(), bytes, stream); }, options);
}

}  // namespace tilewright::cli
