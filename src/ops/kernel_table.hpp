// What the tables of all operations share: how rows are made, and how a row is selected and
// planned. An operation's table.cpp includes this file, and defines these functions:
//
//   std::vector<Limit> limits_of(const Op::Facts&)
//         the facts in words
//   std::optional<Reason> facts_reason(const Kernel<Op>&, const Op::Problem&)
//         why the facts do not allow a problem
//   std::optional<Reason> plan_reason(const Kernel<Op>&, const Op::Problem&, const Plan&)
//         why a plan cannot be launched, if there are such plans
//   bool suits(const Kernel<Op>&, const Op::Problem&)
//         whether "auto" may take a kernel, if some are faster for certain problems only
//   template <> std::span<const Kernel<Op>> Table<Op>::rows()
//         the rows
#pragma once

#include <algorithm>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ops/call.hpp"
#include "ops/plan.hpp"
#include "ops/reasons.hpp"
#include "ops/tensor_checks.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {

#ifdef TILEWRIGHT_HAS_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

// ---- Rows

// A CUDA function's address; null in a build without CUDA, which links no such function.
template <auto* kFunction>
consteval auto built() {
  return kHasCuda ? kFunction : nullptr;
}

// Makes a row's launcher of a function that takes no plan.
template <class Op, void (*kLaunch)(const typename Op::Params&, Stream)>
void launch_without_plan(const typename Op::Params& params, const Plan&, Stream stream) {
  kLaunch(params, stream);
}

template <class Op, void (*kLaunch)(const typename Op::Params&, Stream)>
consteval auto without_plan() {
  return &launch_without_plan<Op, kLaunch>;
}

// The same for a CUDA function.
template <class Op, void (*kLaunch)(const typename Op::Params&, Stream)>
consteval auto built_without_plan() {
  if constexpr (kHasCuda) {
    return without_plan<Op, kLaunch>();
  } else {
    return nullptr;
  }
}

// Rows that are never destroyed: a call may come while the process ends.
template <class Op>
const std::vector<Kernel<Op>>& kept(std::vector<Kernel<Op>> rows) {
  return *new std::vector<Kernel<Op>>(std::move(rows));
}

// Rows as they were written, with what follows from that.
template <class Op>
std::vector<Kernel<Op>> finished(std::vector<Kernel<Op>> rows) {
  for (Kernel<Op>& kernel : rows) {
    kernel.info.operation = Op::kName;
    kernel.info.limits = limits_of(kernel.facts);
    kernel.info.is_built = kernel.launch != nullptr;
  }
  return rows;
}

// The same for a kernel's variants. Each has the kernel's name and a number.
template <class Op>
std::vector<Kernel<Op>> finished_variants(const std::string& kernel_name,
                                          std::vector<Kernel<Op>> variants) {
  for (std::size_t i = 0; i < variants.size(); ++i) {
    variants[i].info.name = kernel_name + "/" + std::to_string(i);
  }
  return finished<Op>(std::move(variants));
}

// ---- Planning

// The plan for a problem on any device with as many SMs, or the reason why there is none.
template <class Op>
std::variant<Plan, Reason> planned(const Kernel<Op>& kernel, const typename Op::Problem& problem,
                                   const DeviceInfo& device) {
  if (auto reason = facts_reason(kernel, problem)) {
    return *std::move(reason);
  }
  if (kernel.refuses != nullptr) {
    if (auto reason = kernel.refuses(kernel, problem, device)) {
      return *std::move(reason);
    }
  }
  const Plan plan = kernel.plan != nullptr ? kernel.plan(problem, device) : Plan();
  if constexpr (requires { plan_reason(kernel, problem, plan); }) {
    if (auto reason = plan_reason(kernel, problem, plan)) {
      return *std::move(reason);
    }
  }
  return plan;
}

// The same on this very device: it must have the kernel's architecture and enough memory.
template <class Op>
std::variant<Plan, Reason> planned_on(const Kernel<Op>& kernel, const typename Op::Problem& problem,
                                      const DeviceInfo& device) {
  if (auto reason = can_run(kernel.info, device)) {
    return *std::move(reason);
  }
  std::variant<Plan, Reason> result = planned(kernel, problem, device);
  if (const Plan* const plan = std::get_if<Plan>(&result)) {
    if (auto reason = memory_reason(kernel.info, plan->workspace_bytes, device)) {
      return *std::move(reason);
    }
  }
  return result;
}

template <class Op>
std::optional<Reason> Table<Op>::can_run(const Kernel<Op>& kernel, const Problem& problem,
                                         const DeviceInfo& device) {
  const auto result = planned_on(kernel, problem, device);
  const Reason* const reason = std::get_if<Reason>(&result);
  return reason != nullptr ? std::optional(*reason) : std::nullopt;
}

template <class Op>
const Kernel<Op>* Table<Op>::variant_of(const Kernel<Op>& kernel, const Problem& problem,
                                        const DeviceInfo& device) {
  const auto result = planned(kernel, problem, device);
  const Plan* const plan = std::get_if<Plan>(&result);
  return plan == nullptr || kernel.variants.empty()
             ? nullptr
             : &kernel.variants[static_cast<std::size_t>(plan->variant)];
}

template <class Op>
std::size_t Table<Op>::workspace_bytes(const Kernel<Op>& kernel, const Problem& problem,
                                       const DeviceInfo& device) {
  const auto result = planned(kernel, problem, device);
  if (const Reason* const reason = std::get_if<Reason>(&result)) {
    throw Error(reason->code, reason->argument, reason->message);
  }
  return std::get<Plan>(result).workspace_bytes;
}

// ---- Choosing

template <class Op>
const Kernel<Op>* Table<Op>::find(std::string_view name) {
  const auto is_named = [&](const Kernel<Op>& kernel) { return kernel.info.name == name; };
  for (const Kernel<Op>& kernel : rows()) {
    if (is_named(kernel)) {
      return &kernel;
    }
    const auto variant = std::ranges::find_if(kernel.variants, is_named);
    if (variant != kernel.variants.end()) {
      return &*variant;
    }
  }
  return nullptr;
}

// May "auto" take the kernel, if it can run the problem?
template <class Op>
bool is_candidate(const Kernel<Op>& kernel, const typename Op::Problem& problem) {
  if constexpr (requires { suits(kernel, problem); }) {
    return suits(kernel, problem);
  }
  return true;
}

// The last kernel of the table that can run the problem: the table ascends in speed.
template <class Op>
Selection<Op> fastest_kernel(const typename Op::Problem& problem, Device device) {
  const DeviceInfo& info = device_info(device);
  std::optional<Reason> first_reason;
  for (const Kernel<Op>& kernel : kernels<Op>() | std::views::reverse) {
    if (kernel.info.device != device.kind || !is_candidate(kernel, problem)) {
      continue;
    }
    auto result = planned_on(kernel, problem, info);
    if (Plan* const plan = std::get_if<Plan>(&result)) {
      return {&kernel, *plan};
    }
    if (!first_reason) {
      first_reason = std::get<Reason>(std::move(result));
    }
  }
  throw_if(first_reason);
  throw Error(ErrorCode::unsupported, "kernel", "no kernel takes tensors on " + name(device));
}

// The kernel with that name, which must be able to run the problem.
template <class Op>
Selection<Op> named_kernel(std::string_view kernel_name, const typename Op::Problem& problem,
                           DeviceArgument argument) {
  const Kernel<Op>* const kernel = find_kernel<Op>(kernel_name);
  if (kernel == nullptr) {
    std::string known = "auto";
    std::string variants;
    for (const Kernel<Op>& each : kernels<Op>()) {
      known += ", " + each.info.name;
      if (!each.variants.empty()) {
        variants += ", or a variant, " + each.variants.front().info.name + " to " +
                    each.variants.back().info.name;
      }
    }
    fail("kernel", "is '" + std::string(kernel_name) + "', must be one of " + known + variants);
  }
  check_device_kind(kernel->info, argument.device, argument.name);
  auto result = planned_on(*kernel, problem, device_info(argument.device));
  if (const Reason* const reason = std::get_if<Reason>(&result)) {
    throw Error(reason->code, reason->argument, reason->message);
  }
  return {kernel, std::get<Plan>(std::move(result))};
}

template <class Op>
Selection<Op> select_kernel(std::string_view kernel_name, const typename Op::Problem& problem,
                            DeviceArgument argument) {
  return kernel_name == "auto" ? fastest_kernel<Op>(problem, argument.device)
                               : named_kernel<Op>(kernel_name, problem, argument);
}

}  // namespace tilewright
