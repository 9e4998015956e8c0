// tilewright list: the kernels, their constraints, and whether this machine can run them.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::cli {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string_view> names_of(std::span<const DType> dtypes) {
  std::vector<std::string_view> names;
  for (const DType dtype : dtypes) {
    names.push_back(name(dtype));
  }
  return names;
}

std::vector<std::string> names_of(std::span<const HeadDims> head_dims) {
  std::vector<std::string> names;
  for (const HeadDims dims : head_dims) {
    names.push_back(name(dims));
  }
  return names;
}

std::vector<std::string_view> names_of(std::span<const Feature> features) {
  std::vector<std::string_view> names;
  for (const Feature feature : features) {
    names.push_back(name(feature));
  }
  return names;
}

std::optional<std::string> why_not_here(const KernelInfo& kernel) {
  try {
    const auto reason = can_run(kernel, device_info(device_for(kernel, std::nullopt)));
    return reason ? std::optional(reason->argument + ": " + reason->message) : std::nullopt;
  } catch (const Error& error) {  // there is no such device
    return error.what();
  }
}

// A list of pairs: the head dim of q and k, and of v and o.
Json to_json(std::span<const HeadDims> head_dims) {
  Json pairs = Json::array();
  for (const HeadDims dims : head_dims) {
    pairs.push_back({dims.qk, dims.v});
  }
  return pairs;
}

Json to_json(const KernelInfo& kernel) {
  const std::optional<std::string> reason = why_not_here(kernel);
  return {{"name", kernel.name},
          {"operation", kernel.operation},
          {"summary", kernel.summary},
          {"device", kernel.device == DeviceKind::cpu ? "cpu" : "cuda"},
          {"compute_capability", kernel.compute_capability},
          {"dtypes", names_of(kernel.dtypes)},
          {"alignment_bytes", kernel.alignment_bytes},
          {"doc", kernel.doc},
          {"head_dims", to_json(kernel.head_dims)},
          {"features", names_of(kernel.features)},
          {"out_dtypes", names_of(kernel.out_dtypes)},
          {"n_multiple", kernel.n_multiple},
          {"k_multiple", kernel.k_multiple},
          {"can_run", !reason},
          {"reason", reason ? Json(*reason) : Json()}};
}

std::string attention_limits(const KernelInfo& kernel) {
  const std::string head_dims =
      kernel.head_dims.empty() ? "any"
                               : fmt::format("{}", fmt::join(names_of(kernel.head_dims), ", "));
  const std::string features =
      kernel.features.empty()
          ? ""
          : fmt::format("takes {}; ", fmt::join(names_of(kernel.features), ", "));
  return fmt::format("head dim {}; {}", head_dims, features);
}

std::string gemm_limits(const KernelInfo& kernel) {
  return fmt::format("of c {}; N in steps of {}, K of {}; ",
                     fmt::join(names_of(kernel.out_dtypes), ", "), kernel.n_multiple,
                     kernel.k_multiple);
}

void print(const KernelInfo& kernel) {
  const std::string device = kernel.device == DeviceKind::cpu
                                 ? "cpu"
                                 : fmt::format("cuda {}.{}", kernel.compute_capability / 10,
                                               kernel.compute_capability % 10);
  fmt::print("{:<6} {}: {}\n", kernel.name, kernel.operation, kernel.summary);
  fmt::print("       on {}; dtype {}; {}aligned to {} bytes; {}\n", device,
             fmt::join(names_of(kernel.dtypes), ", "),
             kernel.operation == "attention" ? attention_limits(kernel) : gemm_limits(kernel),
             kernel.alignment_bytes, kernel.doc);
  const std::optional<std::string> reason = why_not_here(kernel);
  fmt::print("       {}\n", reason ? "cannot run here: " + *reason : "runs here");
}

int list(bool as_json) {
  if (as_json) {
    Json all = Json::array();
    for (const KernelInfo& kernel : kernels()) {
      all.push_back(to_json(kernel));
    }
    fmt::print("{}\n", all.dump(2));
    return kPass;
  }
  for (const KernelInfo& kernel : kernels()) {
    print(kernel);
  }
  return kPass;
}

}  // namespace

Command add_list_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("list", "The kernels, their constraints, and what this machine can run");
  const auto as_json = std::make_shared<bool>(false);
  add_switch(*command, "--json", *as_json, "Print a JSON array");
  return {command, [as_json] { return list(*as_json); }};
}

}  // namespace tilewright::cli
