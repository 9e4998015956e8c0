// tilewright list: the kernels of all operations, and which of them this machine can run.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string_view> names_of(const std::vector<DType>& dtypes) {
  std::vector<std::string_view> names;
  for (const DType dtype : dtypes) {
    names.push_back(name(dtype));
  }
  return names;
}

std::optional<std::string> why_not_here(const KernelInfo& kernel) {
  try {
    const auto reason = can_run(kernel, device_info({kernel.device, 0}));
    return reason ? std::optional(reason->argument + ": " + reason->message) : std::nullopt;
  } catch (const Error& error) {  // there is no such device
    return error.what();
  }
}

Json to_json(const KernelInfo& kernel) {
  const std::optional<std::string> reason = why_not_here(kernel);
  Json limits = Json::object();
  for (const Limit& limit : kernel.limits) {
    limits[limit.argument] = limit.allowed;
  }
  return {{"name", kernel.name},
          {"operation", kernel.operation},
          {"summary", kernel.summary},
          {"device", kernel.device == DeviceKind::cpu ? "cpu" : "cuda"},
          {"architectures", kernel.architectures},
          {"dtypes", names_of(kernel.dtypes)},
          {"alignment_bytes", kernel.alignment_bytes},
          {"doc", kernel.doc},
          {"limits", limits},
          {"can_run", !reason},
          {"reason", reason ? Json(*reason) : Json()}};
}

std::string device_text(const KernelInfo& kernel) {
  std::vector<std::string> targets;
  for (const int architecture : kernel.architectures) {
    targets.push_back(fmt::format("sm_{}", architecture));
  }
  return targets.empty() ? "cpu" : fmt::format("{}", fmt::join(targets, ", "));
}

// A reason without the kernel's own name, so that kernels may have it in common.
std::string because(const KernelInfo& kernel, const std::string& reason) {
  std::string text = reason.substr(reason.find(": ") + 2);
  for (const std::string& name : {"kernel " + kernel.name + " ", kernel.name + " "}) {
    if (const std::size_t at = text.find(name); at != std::string::npos) {
      text.erase(at, name.size());
    }
  }
  return text;
}

// What a line says of a kernel behind its name.
std::string facts_text(const KernelInfo& kernel) {
  return fmt::format("{:<6} {:<18} {}", device_text(kernel),
                     fmt::format("{}", fmt::join(names_of(kernel.dtypes), " ")), kernel.summary);
}

// A line for each operation, with its kernel `cpu`, and one for each other kernel. A kernel that
// cannot run here has a mark, and the reasons come last, each once, in the order of their marks.
void print_table() {
  std::vector<std::string> reasons;
  std::string_view operation;
  for (const KernelInfo* const kernel : kernels()) {
    if (kernel->operation != operation) {
      operation = kernel->operation;
      if (kernel->name == "cpu") {
        fmt::print("{:<15} {}\n", operation, facts_text(*kernel));
        continue;
      }
      fmt::print("{}\n", operation);
    }
    char mark = ' ';
    if (const auto reason = why_not_here(*kernel)) {
      const std::string text = because(*kernel, *reason);
      const auto known = std::ranges::find(reasons, text);
      mark = static_cast<char>('a' + (known - reasons.begin()));
      if (known == reasons.end()) {
        reasons.push_back(text);
      }
    }
    fmt::print("{} {:<13} {}\n", mark, kernel->name, facts_text(*kernel));
  }
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    fmt::print("\n{}: cannot run here: {}\n", static_cast<char>('a' + i), reasons[i]);
  }
}

int list(bool as_json) {
  if (!as_json) {
    print_table();
    return kPass;
  }
  Json all = Json::array();
  for (const KernelInfo* const kernel : kernels()) {
    all.push_back(to_json(*kernel));
  }
  fmt::print("{}\n", all.dump(2));
  return kPass;
}

}  // namespace

Command add_list_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("list", "The kernels, their constraints, and what this machine can run");
  const auto as_json = std::make_shared<bool>(false);
  add_switch(*command, "--json", *as_json, "Print a JSON array, with all that each kernel takes");
  return {command, [as_json] { return list(*as_json); }};
}

}  // namespace tilewright::cli
