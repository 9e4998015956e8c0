// tilewright gemm: checks and times a GEMM with an NVFP4 weight.
#include <fmt/core.h>

#include <array>
#include <memory>

#include "cli/checkpoint.hpp"
#include "cli/commands.hpp"
#include "cli/gemm_tensors.hpp"
#include "cli/options.hpp"
#include "cli/results_file.hpp"

namespace tilewright::cli {
namespace {

struct GemmArguments {
  RunOptions run;
  std::int64_t m = 16;
  std::int64_t n = 4096;
  std::int64_t k = 4096;
  std::int64_t l = 1;
  std::string a_dtype = "bf16";
  bool bias = false;
  bool residual = false;
  bool prepack = false;
  bool batch_invariant = false;
  std::string scale_layout = "linear";
  std::string weights;  // empty: a random weight
  std::string tensor;
};

// The dtype's name; "nvfp4" for codes.
std::string_view type_name(DType dtype) { return dtype == DType::e2m1x2 ? "nvfp4" : name(dtype); }

DType parse_a_dtype(const std::string& text) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::e2m1x2}) {
    if (text == type_name(dtype)) {
      return dtype;
    }
  }
  throw UsageError("--a-dtype", fmt::format("is '{}', must be bf16, fp16 or nvfp4", text));
}

GemmCase case_of(const GemmArguments& a) {
  if (a.k % 16 != 0) {
    throw UsageError("--k", fmt::format("is {}, must be a multiple of 16", a.k));
  }
  return {.problem = {.a_dtype = parse_a_dtype(a.a_dtype),
                      .c_dtype = parse_dtype(a.run.dtype),
                      .m = a.m,
                      .n = a.n,
                      .k = a.k,
                      .l = a.l,
                      .batch_invariant = a.batch_invariant},
          .bias = a.bias,
          .residual = a.residual,
          .scale_layout = parse_scale_layout(a.scale_layout),
          .prepack = a.prepack,
          .seed = a.run.seed};
}

ResultCase result_case(const GemmCase& c, double bytes) {
  const GemmNvfp4Problem& p = c.problem;
  Json object = {{"m", p.m}, {"n", p.n}, {"k", p.k}, {"l", p.l}};
  object["a_dtype"] = type_name(p.a_dtype);
  object["b_dtype"] = "nvfp4";
  object["out_dtype"] = name(p.c_dtype);
  for (const auto& [feature, is_on] : {std::pair("bias", c.bias),
                                       {"residual", c.residual},
                                       {"batch_invariant", p.batch_invariant}}) {
    if (is_on) {
      object[feature] = true;
    }
  }
  if (c.scale_layout == ScaleLayout::swizzled) {
    object["scale_layout"] = "swizzled";
  }
  return {.operation = std::string(GemmNvfp4::kName),
          .object = object,
          .flops = flops(c),
          .bytes = bytes};
}

// Why a kernel cannot run what the case asks for beyond a Problem. BF16 steps take none of it.
std::optional<Reason> feature_reason(const Kernel<GemmNvfp4>&, const GemmCase&) {
  return std::nullopt;
}

std::optional<Reason> feature_reason(const Kernel<GemmBf16>& kernel, const GemmCase& c) {
  const auto refuse = [&](const char* what, std::string_view is, std::string_view takes) {
    return Reason{ErrorCode::unsupported, what,
                  fmt::format("is {}, kernel {} takes {}", is, kernel.info.name, takes)};
  };
  if (c.problem.l > 1) {
    return refuse("l", std::to_string(c.problem.l), "1");
  }
  if (c.bias || c.residual) {
    return refuse(c.bias ? "bias" : "residual", "given", "none");
  }
  return std::nullopt;
}

// Whether a kernel runs the case, with the weight in the form that the kernel takes.
bool runs(const Kernel<GemmNvfp4>& kernel, const GemmCase& c, const DeviceInfo& device) {
  GemmNvfp4Problem problem = c.problem;
  problem.b_is_packed = takes_packed_weight(kernel.info, c);
  return !can_run(kernel, problem, device);
}

bool runs(const Kernel<GemmBf16>& kernel, const GemmCase& c, const DeviceInfo& device) {
  const GemmNvfp4Problem& p = c.problem;
  return p.a_dtype == DType::bf16 && p.c_dtype == DType::bf16 && !feature_reason(kernel, c) &&
         !can_run(kernel, {.m = p.m, .n = p.n, .k = p.k}, device);
}

// Calls f with the kernels of both operations, in ascending order of speed.
template <typename F>
void for_each_kernel(F&& f) {
  std::ranges::for_each(kernels<GemmBf16>(), f);
  std::ranges::for_each(kernels<GemmNvfp4>(), f);
}

std::vector<const KernelInfo*> runnable_kernels(const GemmCase& c, Device device) {
  std::vector<const KernelInfo*> runnable;
  for_each_kernel([&](const auto& kernel) {
    if (runs(kernel, c, device_info(device))) {
      runnable.push_back(&kernel.info);
    }
  });
  if (runnable.empty()) {
    throw Error(ErrorCode::unsupported, "kernel", "none can run this case on " + name(device));
  }
  return runnable;
}

template <typename Op>
const KernelInfo* named_kernel(const std::string& kernel_name, const GemmCase& c) {
  const Kernel<Op>* const kernel = find_kernel<Op>(kernel_name);
  if (kernel == nullptr) {
    return nullptr;
  }
  if (const auto reason = feature_reason(*kernel, c)) {
    throw Error(reason->code, reason->argument, reason->message);
  }
  return &kernel->info;
}

const KernelInfo& named_kernel(const std::string& kernel_name, const GemmCase& c) {
  if (const KernelInfo* const kernel = named_kernel<GemmBf16>(kernel_name, c)) {
    return *kernel;
  }
  if (const KernelInfo* const kernel = named_kernel<GemmNvfp4>(kernel_name, c)) {
    return *kernel;
  }
  std::string known = "auto, all";
  for_each_kernel([&](const auto& each) { known += ", " + each.info.name; });
  throw UsageError("--kernel", fmt::format("is '{}', must be one of {}", kernel_name, known));
}

// The kernels with the names asked for. "all" stands for all that can run the case on the device,
// "auto" for the fastest of these, which is the last.
std::vector<const KernelInfo*> chosen_kernels(const std::vector<std::string>& asked,
                                              const GemmCase& c, Device device) {
  std::vector<const KernelInfo*> chosen;
  for (const std::string& each : asked) {
    if (each == "all") {
      const std::vector<const KernelInfo*> all = runnable_kernels(c, device);
      chosen.insert(chosen.end(), all.begin(), all.end());
    } else {
      chosen.push_back(each == "auto" ? runnable_kernels(c, device).back()
                                      : &named_kernel(each, c));
    }
  }
  return chosen;
}

void print(const KernelInfo& kernel, const GemmCase& asked, const ResultCase& c,
           const Outcome& outcome) {
  if (outcome.is_wrong()) {
    fmt::print("{:<14} FAILED: {}\n", kernel.name, outcome.check->failure);
    return;
  }
  const char* const weight = is_bf16_step(kernel)                 ? ", BF16 weight"
                             : takes_packed_weight(kernel, asked) ? ", packed weight"
                                                                  : "";
  const Timing& timing = *outcome.timing;
  fmt::print(
      "{:<14} {:>10.1f} us  (p10 {:.1f}, p90 {:.1f})  {:>8.3f} TFLOP/s  {:>8.1f} GB/s  {}{}\n",
      kernel.name, timing.median_us, timing.p10_us, timing.p90_us,
      c.flops / timing.median_us * 1e-6, c.bytes / timing.median_us * 1e-3,
      outcome.check ? fmt::format("ok: relative {:.1e}, max {:.1e}", outcome.check->rel_fro_error,
                                  outcome.check->max_abs_error)
                    : "not checked",
      weight);
}

// The weight asked for. n, k and l become those of a checkpoint's weight.
Nvfp4Operand weight_of(GemmArguments& a) {
  if (a.weights.empty()) {
    return random_operand(a.l, a.n, a.k, a.run.seed);
  }
  if (a.tensor.empty()) {
    throw UsageError("--tensor", "is absent, must be given with --weights");
  }
  Nvfp4Operand weight = read_weight(a.weights, a.tensor);
  const ConstTensorView codes = weight.codes.view();
  a.l = 1;
  a.n = codes.shape[1];
  a.k = 2 * codes.shape[2];
  return weight;
}

int run(GemmArguments a) {
  case_of(a);  // refuses wrong sizes before memory is allocated for them
  Nvfp4Operand weight = weight_of(a);
  const GemmCase c = case_of(a);
  ResultsFile results(a.run.json_path, /*resume=*/false);
  const auto machine = open_machine(parse_device(a.run.device).value_or(default_device()));
  GemmTensors tensors(c, std::move(weight), *machine);
  const ResultCase described = result_case(c, tensors.bytes());
  int exit_code = kPass;
  for (const KernelInfo* const kernel : chosen_kernels(a.run.kernels, c, machine->device())) {
    Outcome outcome;
    if (a.run.check) {
      outcome.check = tensors.check(*kernel);
    }
    if (outcome.is_wrong()) {
      outcome.reason = "wrong result: " + outcome.check->failure;
      exit_code = kMismatch;
    } else {
      outcome.timing = measure(*machine, tensors.launch(*kernel), a.run.timing);
    }
    print(*kernel, c, described, outcome);
    results.append(result_line(described, fmt::format("tilewright/{}", kernel->name), outcome,
                               description_of(*machine)));
  }
  return exit_code;
}

void add_case_options(CLI::App& app, GemmArguments& a) {
  const auto add_size = [&](const char* option, std::int64_t& value, const char* what) {
    return app.add_option(option, value, what)
        ->check(tensor_size())
        ->type_name("N")
        ->capture_default_str();
  };
  add_size("--m", a.m, "Rows of the activations");
  CLI::Option* const n = add_size("--n", a.n, "Rows of the weight, columns of the result");
  CLI::Option* const k = add_size("--k", a.k, "Columns of both, a multiple of 16");
  CLI::Option* const l = add_size("--l", a.l, "Products in the batch");
  app.add_option("--a-dtype", a.a_dtype, "Of the activations: bf16, fp16 or nvfp4")
      ->capture_default_str();
  app.add_option("--dtype", a.run.dtype, "Of the result: bf16, fp16 or fp32")
      ->envname("DTYPE")
      ->capture_default_str();
  add_switch(app, "--bias", a.bias, "Add a bias");
  add_switch(app, "--residual", a.residual, "Add a residual");
  add_switch(app, "--prepack", a.prepack,
             "Pack the weight before it is timed, for the CPU's kernel, too");
  add_switch(app, "--batch-invariant", a.batch_invariant,
             "Rows of the result are the same bits in every batch");
  app.add_option("--scale-layout", a.scale_layout, "Of scales: linear or swizzled")
      ->envname("SCALE_LAYOUT")
      ->capture_default_str();
  CLI::Option* const weights =
      app.add_option("--weights", a.weights,
                     "A safetensors file to take the weight from, and with it n and k; l is 1")
          ->type_name("FILE")
          ->excludes(n, k, l);
  app.add_option("--tensor", a.tensor,
                 "The layer's name there: NAME.weight, NAME.weight_scale and NAME.weight_scale_2 "
                 "of ModelOpt, or compressed-tensors' names")
      ->needs(weights)
      ->type_name("NAME");
}

}  // namespace

Command add_gemm_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("gemm", "Multiply by an NVFP4 weight: check and time kernels on one case");
  const auto arguments = std::make_shared<GemmArguments>();
  arguments->run.kernels = {"auto"};
  add_case_options(*command, *arguments);
  command
      ->add_option(
          "--kernel", arguments->run.kernels,
          "Names, comma-separated, of gemm_nvfp4 or gemm_bf16; all: every one that can run; auto: "
          "the fastest of these")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->envname("KERNEL")
      ->capture_default_str();
  command
      ->add_option("--device", arguments->run.device,
                   "cpu, cuda or cuda:N (default: cuda where there is one)")
      ->envname("DEVICE");
  add_measurement_options(*command, arguments->run);
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
