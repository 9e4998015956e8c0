#include "cli/results.hpp"

#include <fmt/chrono.h>
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>

#include "cli/commands.hpp"
#include "tilewright/version.hpp"

namespace tilewright::cli {
namespace {

// A measured number with as many digits as mean something.
double rounded(double value) { return std::stod(fmt::format("{:.6g}", value)); }

Json or_null(const std::optional<std::string>& text) { return text ? Json(*text) : Json(); }

Json or_null(const std::optional<std::int64_t>& value) { return value ? Json(*value) : Json(); }

Json or_null(const std::optional<double>& value) { return value ? Json(rounded(*value)) : Json(); }

Json case_object(const AttentionCase& c) {
  const AttentionProblem& p = c.problem;
  Json object = {{"dtype", name(p.dtype)}, {"batch", p.batch},     {"q_len", p.q_len},
                 {"kv_len", p.kv_len},     {"heads", p.heads},     {"kv_heads", p.kv_heads},
                 {"head_dim", p.head_dim}, {"v_dim", p.value_dim}, {"causal", p.causal}};
  if (c.scale) {
    object["scale"] = *c.scale;
  }
  if (p.window) {
    object["window"] = {or_null(c.window.left), or_null(c.window.right)};
  }
  if (p.softcap) {
    object["softcap"] = c.softcap;
  }
  if (p.sinks) {
    object["sinks"] = true;
  }
  return object;
}

std::string impl_of(std::string_view kernel) { return fmt::format("tilewright/{}", kernel); }

// The lines that are whole: the last one may have been cut off.
std::vector<Json> read_lines(const std::string& path) {
  std::vector<Json> lines;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    Json line = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (line.is_object()) {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

void add_timing(Json& line, const ResultCase& c, const Timing& timing) {
  line["median_us"] = rounded(timing.median_us);
  line["p10_us"] = rounded(timing.p10_us);
  line["p90_us"] = rounded(timing.p90_us);
  line["samples"] = timing.samples;
  line["tflops"] = rounded(c.flops / timing.median_us * 1e-6);
  line["gbps"] = rounded(c.bytes / timing.median_us * 1e-3);
  line["cold_l2"] = timing.cold_l2;
  line["graph"] = false;
}

}  // namespace

MachineDescription description_of(const Machine& machine) {
  return {.gpu = machine.name(), .driver = machine.driver(), .cuda = machine.cuda()};
}

Json result_line(const ResultCase& c, const std::string& impl, const Outcome& outcome,
                 const MachineDescription& machine) {
  Json line = {
      {"operation", c.operation}, {"case", c.object}, {"impl", impl}, {"impl_version", kCommit}};
  if (outcome.timing) {
    add_timing(line, c, *outcome.timing);
  }
  const auto& check = outcome.check;
  line["rel_fro_error"] = check ? Json(rounded(check->rel_fro_error)) : Json();
  line["max_abs_error"] = check ? Json(rounded(check->max_abs_error)) : Json();
  line["gpu"] = machine.gpu;
  line["driver"] = or_null(machine.driver);
  line["cuda"] = or_null(machine.cuda);
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

Json result_line(const AttentionCase& c, std::string_view kernel, const Outcome& outcome,
                 const MachineDescription& machine) {
  const ResultCase result_case{.operation = "attention",
                               .object = case_object(c),
                               .flops = flops(c),
                               .bytes = compulsory_bytes(c.problem)};
  return result_line(result_case, impl_of(kernel), outcome, machine);
}

namespace {

bool can_write(const std::string& path) {
  std::error_code error;
  const bool is_new = !std::filesystem::exists(path, error);
  const bool is_open = std::ofstream(path, std::ios::app).is_open();
  if (is_open && is_new) {
    std::filesystem::remove(path, error);
  }
  return is_open;
}

}  // namespace

ResultsFile::ResultsFile(const std::string& path, bool resume)
    : path_(path),
      new_run_(fmt::format("{:%Y-%m-%dT%H:%M:%SZ} {}", fmt::gmtime(std::time(nullptr)), kCommit)) {
  if (path.empty()) {
    return;
  }
  if (resume) {
    kept_ = read_lines(path);
  }
  if (!can_write(path)) {
    throw UsageError("--json", fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
  }
}

bool ResultsFile::contains(const AttentionCase& c, std::string_view kernel,
                           const std::string& gpu) const {
  return std::ranges::any_of(kept_, [&](const Json& line) {
    return line.value("case", Json()) == case_object(c) &&
           line.value("impl", "") == impl_of(kernel) && line.value("impl_version", "") == kCommit &&
           line.value("gpu", "") == gpu;
  });
}

std::string ResultsFile::run_of(const Json& line) const {
  const auto same = std::ranges::find_if(kept_, [&](const Json& kept) {
    return kept.value("impl_version", "") == kCommit && kept.value("gpu", "") == line["gpu"];
  });
  return same == kept_.end() ? new_run_ : same->value("run", new_run_);
}

void ResultsFile::append(const Json& line) {
  if (path_.empty()) {
    return;
  }
  if (!file_.is_open()) {
    file_.open(path_);
    for (const Json& kept : kept_) {
      file_ << kept.dump() << '\n';
    }
  }
  Json whole = {{"run", run_of(line)}};
  whole.update(line);
  file_ << whole.dump() << '\n';
  if (!file_.flush()) {
    throw Error(ErrorCode::unsupported, "--json", fmt::format("cannot write to '{}'", path_));
  }
}

}  // namespace tilewright::cli
