// tilewright quantize: a random matrix to NVFP4, checked byte by byte and timed beside a copy.
#include <fmt/core.h>

#include <bit>
#include <memory>

#include "cli/commands.hpp"
#include "cli/device_memory.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"
#include "reference/nvfp4.hpp"
#include "tilewright/nvfp4_kernels.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;
using reference::kBlock;

const Names<GlobalScale> kGlobalScaleKinds = {{"encode", GlobalScale::encode},
                                              {"decode", GlobalScale::decode}};

struct QuantizeProblem {
  DType dtype = DType::bf16;
  std::int64_t rows = 8192;
  std::int64_t columns = 8192;
  ScaleLayout scale_layout = ScaleLayout::linear;
  GlobalScale global_scale_kind = GlobalScale::encode;
  std::optional<float> global_scale;  // computed when absent
  std::uint64_t seed = 0;

  std::string_view layout_name() const { return name_in(kScaleLayouts, scale_layout); }
  std::string_view kind_name() const { return name_in(kGlobalScaleKinds, global_scale_kind); }
};

std::vector<std::int64_t> scale_shape(const QuantizeProblem& p) {
  const std::int64_t blocks = p.columns / kBlock;
  if (p.scale_layout == ScaleLayout::linear) {
    return {p.rows, blocks};
  }
  const auto [rows, columns] = swizzled_scale_shape(p.rows, blocks);
  return {rows, columns};
}

// The scales of the oracle, which are linear, in the layout asked for.
std::vector<std::uint8_t> laid_out(const std::vector<std::uint8_t>& linear,
                                   const QuantizeProblem& p, std::size_t bytes) {
  if (p.scale_layout == ScaleLayout::linear) {
    return linear;
  }
  std::vector<std::uint8_t> swizzled(bytes, 0);
  const std::int64_t blocks = p.columns / kBlock;
  for (std::size_t i = 0; i < linear.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    swizzled[static_cast<std::size_t>(
        reference::swizzled_index(index / blocks, index % blocks, blocks))] = linear[i];
  }
  return swizzled;
}

std::size_t different_bytes(const HostTensor& actual, const std::vector<std::uint8_t>& expected) {
  std::size_t different = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    different += actual.data()[i] != std::byte{expected[i]} ? 1 : 0;
  }
  return different;
}

class Tensors final : public CaseTensors {
 public:
  Tensors(const QuantizeProblem& p, HostTensor& x, Machine& machine)
      : problem_(p),
        options_{.scale_layout = p.scale_layout, .global_scale_kind = p.global_scale_kind},
        x_(x),
        memory_(machine),
        codes_(memory_.output(DType::e2m1x2, {p.rows, p.columns / 2})),
        scales_(memory_.output(DType::e4m3, scale_shape(p))),
        global_scale_(memory_.output(DType::fp32, {1})),
        tensors_{.x = memory_.upload(x), .codes = codes_.view, .scales = scales_.view} {
    if (p.global_scale) {
      reference::store(given_.view(), 0, *p.global_scale);
      tensors_.global_scale = memory_.upload(given_);
    } else {
      tensors_.computed_global_scale = global_scale_.view;
    }
  }

  Launch launch(const KernelInfo&) override {
    const Workspace workspace =
        memory_.workspace(quantize_nvfp4_workspace_bytes(tensors_, options_));
    return
        [this, workspace](Stream stream) { quantize_nvfp4(tensors_, options_, workspace, stream); };
  }

  // Every byte must be the float64 model's.
  CheckResult check(const KernelInfo& kernel) override {
    memory_.run(launch(kernel), {&codes_, &scales_, &global_scale_});
    const auto expected =
        reference::quantize_nvfp4(x_.view(), problem_.global_scale, problem_.global_scale_kind);
    CheckResult result{.summary = "every byte is the float64 model's"};
    const std::size_t wrong_codes = different_bytes(codes_.host, expected.codes);
    const std::size_t wrong_scales =
        different_bytes(scales_.host, laid_out(expected.scales, problem_, scales_.host.bytes()));
    const auto computed = static_cast<float>(reference::load(global_scale_.host.view(), 0));
    if (!problem_.global_scale && std::bit_cast<std::uint32_t>(computed) !=
                                      std::bit_cast<std::uint32_t>(expected.global_scale)) {
      result.failure =
          fmt::format("the global scale is {}, must be {}", computed, expected.global_scale);
    } else if (wrong_codes + wrong_scales > 0) {
      result.failure =
          fmt::format("{} bytes of codes and {} of scales differ", wrong_codes, wrong_scales);
    }
    return result;
  }

 private:
  QuantizeProblem problem_;
  QuantizeNvfp4Options options_;
  HostTensor& x_;
  HostTensor given_{DType::fp32, {1}};
  DeviceMemory memory_;
  Output codes_, scales_, global_scale_;
  QuantizeNvfp4Tensors tensors_;
};

class QuantizeNvfp4Case final : public CaseOf<QuantizeNvfp4> {
 public:
  explicit QuantizeNvfp4Case(const QuantizeProblem& problem) : problem_(problem) {}

  std::string_view operation() const override { return QuantizeNvfp4::kName; }

  Json to_json() const override {
    return {{"m", problem_.rows},
            {"k", problem_.columns},
            {"dtype", name(problem_.dtype)},
            {"scale_layout", problem_.layout_name()},
            {"global_scale", problem_.global_scale ? "given" : "computed"},
            {"global_scale_kind", problem_.kind_name()}};
  }

  std::string label() const override {
    return fmt::format("{} {}x{} {} {} {}", name(problem_.dtype), problem_.rows, problem_.columns,
                       problem_.layout_name(), problem_.global_scale ? "given" : "computed",
                       problem_.kind_name());
  }

  std::string arguments() const override {
    std::string text = fmt::format(
        "quantize --dtype {} --rows {} --columns {} --scale-layout {} --global-scale-kind {} "
        "--seed {}",
        name(problem_.dtype), problem_.rows, problem_.columns, problem_.layout_name(),
        problem_.kind_name(), problem_.seed);
    if (problem_.global_scale) {
      text += fmt::format(" --global-scale={}", *problem_.global_scale);
    }
    return text;
  }

  double flops() const override { return 0; }

  // The matrix is read once, or twice where the global scale is computed.
  double bytes() const override {
    const double values =
        static_cast<double>(problem_.rows) * static_cast<double>(problem_.columns);
    const std::vector<std::int64_t> scales = scale_shape(problem_);
    return (problem_.global_scale ? 1 : 2) * values * size_bytes(problem_.dtype) + values / 2 +
           static_cast<double>(scales[0] * scales[1]);
  }

  std::optional<Reason> why_not(const KernelInfo& kernel, Device device) const override {
    return can_run(
        *find_kernel<QuantizeNvfp4>(kernel.name),
        {.dtype = problem_.dtype, .computes_global_scale = !problem_.global_scale.has_value()},
        device_info(device));
  }

  std::unique_ptr<CaseTensors> make_tensors(Machine& machine) override {
    if (!x_) {
      // The matrix and its copy on the machine.
      check_host_memory(2.0 * static_cast<double>(problem_.rows) *
                        static_cast<double>(problem_.columns) * size_bytes(problem_.dtype));
      x_.emplace(problem_.dtype, std::vector{problem_.rows, problem_.columns});
      reference::fill_normal(x_->view(), problem_.seed);
    }
    return std::make_unique<Tensors>(problem_, *x_, machine);
  }

  // A call has no way to name a kernel.
  std::string impl(const KernelInfo&) const override { return "tilewright/quantize"; }

  bool compares_with_copy() const override { return true; }

 private:
  QuantizeProblem problem_;
  std::optional<HostTensor> x_;
};

struct QuantizeArguments {
  RunOptions run;
  QuantizeProblem problem;
};

int run(QuantizeArguments a) {
  if (a.problem.columns % kBlock != 0) {
    throw UsageError("--columns",
                     fmt::format("is {}, must be a multiple of {}", a.problem.columns, kBlock));
  }
  a.problem.dtype = a.run.dtype;
  a.problem.seed = a.run.seed;
  return run_case(a.run, std::make_unique<QuantizeNvfp4Case>(a.problem));
}

}  // namespace

Command add_quantize_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("quantize", "Quantise a random matrix to NVFP4, check and time it");
  const auto arguments = std::make_shared<QuantizeArguments>();
  add_run_options(*command, "--kernel", "Of the matrix: bf16, fp16 or fp32", arguments->run);
  QuantizeProblem& problem = arguments->problem;
  // A terminal's size is often in the environment as ROWS and COLUMNS.
  add_size(*command, "--rows", problem.rows, "Rows (default: 8192)");
  add_size(*command, "--columns", problem.columns, "Columns, a multiple of 16 (default: 8192)");
  add_named(*command, "--scale-layout", problem.scale_layout, kScaleLayouts, "linear or swizzled")
      ->envname("SCALE_LAYOUT");
  command
      ->add_option("--global-scale", problem.global_scale,
                   "The global scale (default: computed, in the same call)")
      ->check(number<float>("a number of FP32"))
      ->envname("GLOBAL_SCALE")
      ->type_name("FLOAT");
  add_named(*command, "--global-scale-kind", problem.global_scale_kind, kGlobalScaleKinds,
            "encode: value = code * scale / g; decode: value = code * scale * g")
      ->envname("GLOBAL_SCALE_KIND");
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
