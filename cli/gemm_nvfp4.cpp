// tilewright gemm: checks and times a GEMM with an NVFP4 weight, also by the steps that lead to it.
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>

#include "cli/commands.hpp"
#include "cli/device_memory.hpp"
#include "cli/nvfp4_checkpoint.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"
#include "cli/text.hpp"
#include "reference/gemm.hpp"
#include "reference/nvfp4.hpp"
#include "tilewright/gemm_bf16_kernels.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;
using reference::kBlock;

const Names<DType> kActivations = {
    {"bf16", DType::bf16}, {"fp16", DType::fp16}, {"nvfp4", DType::e2m1x2}};

struct GemmSetup {
  GemmNvfp4Problem problem{.m = 16, .n = 4096, .k = 4096};
  bool bias = false;
  bool residual = false;
  bool prepack = false;                            // the weight, also for the CPU's kernel
  ScaleLayout scale_layout = ScaleLayout::linear;  // of both operands' scales
  std::string weights, tensor;                     // file and layer; empty: a random weight
  std::uint64_t seed = 0;

  bool is_w4a4() const { return problem.a_dtype == DType::e2m1x2; }
};

// A step gets codes times scales in BF16, which is exact, and no global scale.
bool is_bf16_step(const KernelInfo& kernel) { return kernel.operation == GemmBf16::kName; }

// Whether a kernel gets the weight packed: because the case asks for it, or the kernel needs it.
bool takes_packed_weight(const KernelInfo& info, const GemmSetup& s) {
  if (is_bf16_step(info)) {
    return false;
  }
  const auto forms = find_kernel<GemmNvfp4>(info.name)->facts.weight_forms;
  const auto takes = [&](WeightForm form) { return std::ranges::find(forms, form) != forms.end(); };
  return takes(WeightForm::packed) &&
         (s.prepack || info.device == DeviceKind::cuda || !takes(WeightForm::codes));
}

// ---- Inputs

struct Inputs {
  Nvfp4Operand a;     // of one row a matrix where the activations are not NVFP4
  HostTensor values;  // the activations where they are not
  Nvfp4Operand b;
  HostTensor bias, residual;
  std::map<bool, std::vector<double>> expected;  // of the BF16 steps, and of the others
};

// Views a dense (l, rows, columns) as one matrix of all rows.
template <typename View>
View as_matrix(View t) {
  t.rank = 2;
  t.shape = {t.shape[0] * t.shape[1], t.shape[2]};
  t.stride = {t.shape[1], 1};
  return t;
}

HostTensor random_tensor(DType dtype, const std::vector<std::int64_t>& shape, std::uint64_t seed) {
  HostTensor tensor(dtype, shape);
  reference::fill_normal(tensor.view(), seed);
  return tensor;
}

// Swizzles linear scales (l, rows, blocks).
HostTensor swizzled(HostTensor& linear) {
  const TensorView from = linear.view();
  const auto [rows, blocks] = swizzled_scale_shape(from.shape[1], from.shape[2]);
  HostTensor result(from.dtype, {from.shape[0], rows, blocks});
  const auto matrix = [](const TensorView& all, std::int64_t index) {
    return contiguous(static_cast<std::byte*>(all.data) + index * all.stride[0], all.dtype,
                      std::array{all.shape[1], all.shape[2]});
  };
  for (std::int64_t i = 0; i < from.shape[0]; ++i) {
    swizzle_scales(matrix(from, i), matrix(result.view(), i));
  }
  return result;
}

// An operand of normally distributed values, quantised.
Nvfp4Operand random_operand(std::int64_t l, std::int64_t rows, std::int64_t k, std::uint64_t seed) {
  check_host_memory(static_cast<double>(l) * static_cast<double>(rows) * static_cast<double>(k) *
                    size_bytes(DType::fp32));
  Nvfp4Operand operand{.codes = HostTensor(DType::e2m1x2, {l, rows, k / 2}),
                       .scales = HostTensor(DType::e4m3, {l, rows, k / kBlock}),
                       .global_scale = HostTensor(DType::fp32, {1})};
  HostTensor values = random_tensor(DType::fp32, {l, rows, k}, seed);
  quantize_nvfp4({.x = as_matrix(values.view()),
                  .codes = as_matrix(operand.codes.view()),
                  .scales = as_matrix(operand.scales.view()),
                  .computed_global_scale = operand.global_scale.view()},
                 {.global_scale_kind = operand.kind});
  return operand;
}

// All but the weight is random and depends on the seed; the weight, too, where there is none.
Inputs make_inputs(const GemmSetup& s, std::optional<Nvfp4Operand>& weight) {
  const GemmNvfp4Problem& p = s.problem;
  if (!weight) {
    weight = random_operand(p.l, p.n, p.k, s.seed);
  }
  // Activations, residual and result, and the machine's copies of the first and the last.
  const double row_bytes = 2.0 * static_cast<double>(p.k) * size_bytes(DType::bf16) +
                           3.0 * static_cast<double>(p.n) * size_bytes(p.c_dtype);
  check_host_memory(static_cast<double>(p.l) * static_cast<double>(p.m) * row_bytes);
  Inputs inputs{
      .a = random_operand(p.l, s.is_w4a4() ? p.m : 1, p.k, s.seed + 1),
      .values = random_tensor(s.is_w4a4() ? DType::bf16 : p.a_dtype, {p.l, p.m, p.k}, s.seed + 2),
      .b = *std::move(weight),
      .bias = random_tensor(p.c_dtype, {p.n}, s.seed + 3),
      .residual = random_tensor(p.c_dtype, {p.l, p.m, p.n}, s.seed + 4),
      .expected = {}};
  if (s.scale_layout == ScaleLayout::swizzled) {
    inputs.a.scales = swizzled(inputs.a.scales);
    inputs.b.scales = swizzled(inputs.b.scales);
  }
  return inputs;
}

// All inputs, by a view of each; c is left out.
template <typename ViewOf>
GemmNvfp4Tensors tensors_of(const GemmSetup& s, Inputs& inputs, ViewOf&& view_of) {
  GemmNvfp4Tensors tensors{.a = view_of(s.is_w4a4() ? inputs.a.codes : inputs.values),
                           .b = view_of(inputs.b.codes),
                           .sfb = view_of(inputs.b.scales),
                           .c = {},
                           .global_scale_b = view_of(inputs.b.global_scale)};
  if (s.is_w4a4()) {
    tensors.sfa = view_of(inputs.a.scales);
    tensors.global_scale_a = view_of(inputs.a.global_scale);
  }
  if (s.bias) {
    tensors.bias = view_of(inputs.bias);
  }
  if (s.residual) {
    tensors.residual = view_of(inputs.residual);
  }
  return tensors;
}

// ---- Tensors

class Tensors final : public CaseTensors {
 public:
  Tensors(const GemmSetup& setup, Inputs& inputs, Machine& machine)
      : setup_(setup),
        inputs_(inputs),
        machine_(machine),
        memory_(machine),
        c_(memory_.output(setup.problem.c_dtype,
                          {setup.problem.l, setup.problem.m, setup.problem.n})),
        tensors_(
            tensors_of(setup, inputs, [&](HostTensor& tensor) { return memory_.upload(tensor); })) {
    tensors_.c = c_.view;
  }

  Launch launch(const KernelInfo& kernel) override {
    if (is_bf16_step(kernel)) {
      const GemmBf16Tensors tensors{
          .a = as_matrix(tensors_.a), .b = bf16_weight(), .c = as_matrix(tensors_.c)};
      return [name = kernel.name, tensors](Stream stream) {
        gemm_bf16(tensors, {.kernel = name}, stream);
      };
    }
    GemmNvfp4Tensors tensors = tensors_;
    if (takes_packed_weight(kernel, setup_)) {
      tensors.b = packed_weight();
      tensors.sfb.reset();
    }
    const GemmNvfp4Options options = options_of(kernel);
    const Workspace workspace = memory_.workspace(gemm_nvfp4_workspace_bytes(tensors, options));
    return [options, tensors, workspace](Stream stream) {
      gemm_nvfp4(tensors, options, workspace, stream);
    };
  }

  // The relative Frobenius error may exceed that of rounding to c's dtype by 1e-6; NaN and
  // infinities must be in place, and something must be finite.
  CheckResult check(const KernelInfo& kernel) override {
    memory_.run(launch(kernel), {&c_});
    const std::vector<double>& expected = expected_of(kernel);
    const reference::ErrorNorms norms = reference::compare(c_.host.view(), expected);
    const double limit = reference::rounding_error(c_.view.dtype, expected) + 1e-6;
    CheckResult result{
        .rel_fro_error = norms.rel_fro,
        .max_abs_error = norms.max_abs,
        .summary = fmt::format("relative {:.1e}, max {:.1e}", norms.rel_fro, norms.max_abs)};
    if (std::ranges::none_of(expected, [](double value) { return std::isfinite(value); })) {
      result.failure = "the right result has no finite value to compare with";
    } else if (!norms.same_specials) {
      result.failure = "NaN or infinities stand in other places than they must";
    } else if (!(norms.rel_fro <= limit)) {
      result.failure =
          fmt::format("the relative error is {:.4e}, must be at most {:.4e}", norms.rel_fro, limit);
    }
    return result;
  }

 private:
  GemmNvfp4Options options_of(const KernelInfo& kernel) const {
    return {.sfa_layout = setup_.scale_layout,
            .sfb_layout = setup_.scale_layout,
            .global_scale_a_kind = inputs_.a.kind,
            .global_scale_b_kind = inputs_.b.kind,
            .b_is_constant = true,
            .batch_invariant = setup_.problem.batch_invariant,
            .kernel = kernel.name};
  }

  // Takes long at the first call of a case.
  const std::vector<double>& expected_of(const KernelInfo& kernel) {
    const auto [entry, is_new] = inputs_.expected.try_emplace(is_bf16_step(kernel));
    if (is_new) {
      GemmNvfp4Tensors tensors =
          tensors_of(setup_, inputs_, [](HostTensor& tensor) { return tensor.view(); });
      tensors.c = c_.host.view();
      if (is_bf16_step(kernel)) {
        tensors.global_scale_b.reset();
      }
      entry->second = reference::gemm_nvfp4(tensors, options_of(kernel)).c;
    }
    return entry->second;
  }

  TensorView packed_weight() {
    if (!packed_) {
      const GemmNvfp4Problem& p = setup_.problem;
      const auto [row_tiles, row_bytes] = packed_nvfp4_weight_shape(p.n, p.k);
      packed_ = contiguous(memory_.allocate(static_cast<std::size_t>(p.l * row_tiles * row_bytes)),
                           DType::u8, std::array{p.l, row_tiles, row_bytes}, machine_.device());
      machine_.run([this](Stream stream) {
        prepack_nvfp4_weight({.codes = tensors_.b, .scales = *tensors_.sfb, .packed = *packed_},
                             setup_.scale_layout, stream);
      });
    }
    return *packed_;
  }

  TensorView bf16_weight() {
    if (!bf16_) {
      const std::array shape{setup_.problem.n, setup_.problem.k};
      const std::int64_t bytes = shape[0] * shape[1] * std::int64_t{size_bytes(DType::bf16)};
      bf16_ = contiguous(memory_.allocate(static_cast<std::size_t>(bytes)), DType::bf16, shape,
                         machine_.device());
      machine_.run([this](Stream stream) {
        dequantize_nvfp4(
            {.codes = as_matrix(tensors_.b), .scales = as_matrix(*tensors_.sfb), .out = *bf16_},
            {.scale_layout = setup_.scale_layout}, stream);
      });
    }
    return *bf16_;
  }

  const GemmSetup& setup_;
  Inputs& inputs_;
  Machine& machine_;
  DeviceMemory memory_;
  Output c_;
  GemmNvfp4Tensors tensors_;
  std::optional<TensorView> packed_, bf16_;  // made once a kernel needs it
};

// ---- The case

class GemmNvfp4Case final : public CaseOf<GemmBf16, GemmNvfp4> {
 public:
  // `weight` is random where there is none.
  GemmNvfp4Case(GemmSetup setup, std::optional<Nvfp4Operand> weight)
      : setup_(std::move(setup)), weight_(std::move(weight)) {}

  std::string_view operation() const override { return GemmNvfp4::kName; }

  Json to_json() const override {
    const GemmNvfp4Problem& p = setup_.problem;
    Json object = {{"m", p.m}, {"n", p.n}, {"k", p.k}, {"l", p.l}};
    object["a_dtype"] = name_in(kActivations, p.a_dtype);
    object["b_dtype"] = "nvfp4";
    object["out_dtype"] = name(p.c_dtype);
    for (const char* const feature : features()) {
      object[feature] = true;
    }
    if (setup_.scale_layout == ScaleLayout::swizzled) {
      object["scale_layout"] = "swizzled";
    }
    return object;
  }

  // "bf16 to bf16 m16 n4096 k4096 l1 bias swizzled"
  std::string label() const override {
    const GemmNvfp4Problem& p = setup_.problem;
    std::string text = fmt::format("{} to {} m{} n{} k{} l{}", name_in(kActivations, p.a_dtype),
                                   name(p.c_dtype), p.m, p.n, p.k, p.l);
    for (const char* const feature : features()) {
      text += fmt::format(" {}", feature);
    }
    return text + (setup_.scale_layout == ScaleLayout::swizzled ? " swizzled" : "");
  }

  std::string arguments() const override {
    const GemmNvfp4Problem& p = setup_.problem;
    const std::string weight =
        setup_.weights.empty()
            ? fmt::format("--n {} --k {} --l {}", p.n, p.k, p.l)
            : fmt::format("--weights {} --tensor {}", shell_quoted(setup_.weights),
                          shell_quoted(setup_.tensor));
    const auto flag = [](bool is_on, const char* option) { return is_on ? option : ""; };
    return fmt::format("gemm --m {} {} --a-dtype {} --dtype {} --scale-layout {} --seed {}{}{}{}{}",
                       p.m, weight, name_in(kActivations, p.a_dtype), name(p.c_dtype),
                       setup_.scale_layout == ScaleLayout::linear ? "linear" : "swizzled",
                       setup_.seed, flag(setup_.bias, " --bias"),
                       flag(setup_.residual, " --residual"), flag(setup_.prepack, " --prepack"),
                       flag(p.batch_invariant, " --batch-invariant"));
  }

  double flops() const override {
    const GemmNvfp4Problem& p = setup_.problem;
    return 2.0 * static_cast<double>(p.l) * static_cast<double>(p.m) * static_cast<double>(p.n) *
           static_cast<double>(p.k);
  }

  // Those of a GEMM with an NVFP4 weight, its global scales aside.
  double bytes() const override {
    const GemmNvfp4Problem& p = setup_.problem;
    const double nvfp4_bytes = 1.0 / 2 + 1.0 / kBlock;  // of a value
    const double a_bytes = setup_.is_w4a4() ? nvfp4_bytes : size_bytes(p.a_dtype);
    const auto c_bytes = static_cast<double>(size_bytes(p.c_dtype));
    const auto [l, m, n, k] = std::array{static_cast<double>(p.l), static_cast<double>(p.m),
                                         static_cast<double>(p.n), static_cast<double>(p.k)};
    return l * (m * k * a_bytes + n * k * nvfp4_bytes +
                m * n * c_bytes * (setup_.residual ? 2 : 1)) +
           (setup_.bias ? n * c_bytes : 0);
  }

  std::optional<Reason> why_not(const KernelInfo& kernel, Device device) const override {
    if (is_bf16_step(kernel)) {
      const GemmNvfp4Problem& p = setup_.problem;
      const auto reason = why_no_step(kernel);
      return reason ? reason
                    : can_run(*find_kernel<GemmBf16>(kernel.name), {.m = p.m, .n = p.n, .k = p.k},
                              device_info(device));
    }
    GemmNvfp4Problem problem = setup_.problem;
    problem.b_is_packed = takes_packed_weight(kernel, setup_);
    return can_run(*find_kernel<GemmNvfp4>(kernel.name), problem, device_info(device));
  }

  std::unique_ptr<CaseTensors> make_tensors(Machine& machine) override {
    if (!inputs_) {
      inputs_ = make_inputs(setup_, weight_);
    }
    return std::make_unique<Tensors>(setup_, *inputs_, machine);
  }

  std::string note(const KernelInfo& kernel) const override {
    return is_bf16_step(kernel)                  ? ", BF16 weight"
           : takes_packed_weight(kernel, setup_) ? ", packed weight"
                                                 : "";
  }

 private:
  std::vector<const char*> features() const {
    std::vector<const char*> on;
    for (const auto& [feature, is_on] : {std::pair("bias", setup_.bias),
                                         {"residual", setup_.residual},
                                         {"batch_invariant", setup_.problem.batch_invariant}}) {
      if (is_on) {
        on.push_back(feature);
      }
    }
    return on;
  }

  // Why a BF16 step cannot run what the case asks for beyond a GemmBf16Problem.
  std::optional<Reason> why_no_step(const KernelInfo& kernel) const {
    const auto refuse = [&](const char* what, std::string_view is, std::string_view takes) {
      return Reason{ErrorCode::unsupported, what,
                    fmt::format("is {}, kernel {} takes {}", is, kernel.name, takes)};
    };
    const GemmNvfp4Problem& p = setup_.problem;
    if (p.a_dtype != DType::bf16) {
      return refuse("a_dtype", name_in(kActivations, p.a_dtype), "bf16");
    }
    if (p.c_dtype != DType::bf16) {
      return refuse("dtype", name(p.c_dtype), "bf16");
    }
    if (p.l > 1) {
      return refuse("l", std::to_string(p.l), "1");
    }
    if (setup_.bias || setup_.residual) {
      return refuse(setup_.bias ? "bias" : "residual", "given", "none");
    }
    return std::nullopt;
  }

  GemmSetup setup_;
  std::optional<Nvfp4Operand> weight_;
  std::optional<Inputs> inputs_;
};

// ---- The command

struct GemmArguments {
  RunOptions run;
  GemmSetup setup;
};

int run(const GemmArguments& a) {
  GemmSetup setup = a.setup;
  GemmNvfp4Problem& p = setup.problem;
  if (p.k % kBlock != 0) {
    throw UsageError("--k", fmt::format("is {}, must be a multiple of {}", p.k, kBlock));
  }
  p.c_dtype = a.run.dtype;
  setup.seed = a.run.seed;
  std::optional<Nvfp4Operand> weight;
  if (!setup.weights.empty()) {
    if (setup.tensor.empty()) {
      throw UsageError("--tensor", "is absent, must be given with --weights");
    }
    weight = read_nvfp4_weight(setup.weights, setup.tensor);
    const ConstTensorView codes = weight->codes.view();
    p.n = codes.shape[1];
    p.k = 2 * codes.shape[2];
  }
  return run_case(a.run, std::make_unique<GemmNvfp4Case>(std::move(setup), std::move(weight)));
}

}  // namespace

Command add_gemm_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("gemm", "Multiply by an NVFP4 weight: check and time kernels on one case");
  const auto arguments = std::make_shared<GemmArguments>();
  GemmSetup& setup = arguments->setup;
  GemmNvfp4Problem& p = setup.problem;
  add_run_options(*command, "--kernel", "Of the result: bf16, fp16 or fp32", arguments->run);
  const auto size = [&](const char* option, std::int64_t& value, const char* help) {
    return add_size(*command, option, value, help)->capture_default_str();
  };
  size("--m", p.m, "Rows of the activations");
  CLI::Option* const n = size("--n", p.n, "Rows of the weight, columns of the result");
  CLI::Option* const k = size("--k", p.k, "Columns of both, a multiple of 16");
  CLI::Option* const l = size("--l", p.l, "GEMMs in the batch");
  add_named(*command, "--a-dtype", p.a_dtype, kActivations,
            "Of the activations: bf16, fp16 or nvfp4");
  add_switch(*command, "--bias", setup.bias, "Add a bias");
  add_switch(*command, "--residual", setup.residual, "Add a residual");
  add_switch(*command, "--prepack", setup.prepack,
             "Pack the weight before it is timed, for the CPU's kernel, too");
  add_switch(*command, "--batch-invariant", p.batch_invariant,
             "Rows of the result are the same bits in every batch");
  add_named(*command, "--scale-layout", setup.scale_layout, kScaleLayouts,
            "Of scales: linear or swizzled")
      ->envname("SCALE_LAYOUT");
  CLI::Option* const weights =
      command
          ->add_option("--weights", setup.weights,
                       "A safetensors file to take the weight from, and with it n and k; l is 1")
          ->type_name("FILE")
          ->excludes(n, k, l);
  command
      ->add_option("--tensor", setup.tensor,
                   "The layer's name there: NAME.weight, NAME.weight_scale and NAME.weight_scale_2 "
                   "of ModelOpt, or compressed-tensors' names")
      ->needs(weights)
      ->type_name("NAME");
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
