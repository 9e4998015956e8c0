#include "cli/results.hpp"

#include <fmt/core.h>

#include "tilewright/version.hpp"

namespace tilewright::cli {
namespace {

// A measured number with as many digits as mean something.
double rounded(double value) { return std::stod(fmt::format("{:.6g}", value)); }

Json or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

Json or_null(const std::optional<double>& value) { return value ? Json(rounded(*value)) : Json(); }

void add_timing(Json& line, const Case& c, const Timing& timing) {
  line["median_us"] = rounded(timing.median_us);
  line["p10_us"] = rounded(timing.p10_us);
  line["p90_us"] = rounded(timing.p90_us);
  line["samples"] = timing.samples;
  line["tflops"] = rounded(c.flops() / timing.median_us * 1e-6);
  line["gbps"] = rounded(c.bytes() / timing.median_us * 1e-3);
  line["cold_l2"] = timing.cold_l2;
  line["graph"] = false;
}

}  // namespace

MachineDescription description_of(const Machine& machine) {
  return {.gpu = machine.name(), .driver = machine.driver(), .cuda = machine.cuda()};
}

void add_machine(Json& line, const MachineDescription& machine) {
  line["gpu"] = machine.gpu;
  line["driver"] = or_null(machine.driver);
  line["cuda"] = or_null(machine.cuda);
}

Json result_line(const Case& c, const std::string& impl, const Outcome& outcome,
                 const MachineDescription& machine) {
  Json line = {{"operation", c.operation()},
               {"case", c.to_json()},
               {"impl", impl},
               {"impl_version", kCommit}};
  if (outcome.timing) {
    add_timing(line, c, *outcome.timing);
  }
  const auto& check = outcome.check;
  line["rel_fro_error"] = check ? Json(rounded(check->rel_fro_error)) : Json();
  line["max_abs_error"] = check ? Json(rounded(check->max_abs_error)) : Json();
  add_machine(line, machine);
  if (outcome.timing) {
    line["sm_clock_mhz"] = or_null(outcome.timing->readings.sm_clock_mhz);
    line["power_w"] = or_null(outcome.timing->readings.power_w);
  }
  line["supported"] = !outcome.reason;
  if (outcome.reason) {
    line["reason"] = *outcome.reason;
  }
  return line;
}

}  // namespace tilewright::cli
