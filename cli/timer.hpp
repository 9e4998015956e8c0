// Measuring how long a launch takes: the rules and the figures.
#pragma once

#include "cli/machine.hpp"

namespace tilewright::cli {

struct TimingOptions {
  int samples = 20;
  double gap_seconds = 0.3;  // idle before a measurement, so that all start equally warm
  double max_seconds = 20;   // of samples; never fewer than 20, or 5 of launches longer than 1 s
  bool flush_l2 = true;
};

struct Timing {
  double median_us = 0;
  double p10_us = 0;
  double p90_us = 0;
  int samples = 0;
  bool cold_l2 = false;
  Readings readings;
};

// The q-quantile of sorted values, linear between neighbours.
double quantile(const std::vector<double>& sorted, double q);

// Waits, warms up, measures.
Timing measure(Machine& machine, const Launch& launch, const TimingOptions& options);

// Measures a copy of random numbers within the machine's memory, which reads and writes so many
// bytes.
Timing measure_copy(Machine& machine, std::size_t bytes, const TimingOptions& options);

}  // namespace tilewright::cli
