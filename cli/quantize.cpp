// tilewright quantize: a random matrix to NVFP4, checked byte by byte and timed beside a copy.
#include <fmt/core.h>

#include <bit>
#include <cstring>
#include <memory>

#include "cli/commands.hpp"
#include "cli/device_memory.hpp"
#include "cli/options.hpp"
#include "cli/results_file.hpp"
#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;
using reference::kBlock;

constexpr int kPoison = 0xFF;

struct QuantizeArguments {
  RunOptions run;
  std::int64_t rows = 8192;
  std::int64_t columns = 8192;
  std::string scale_layout = "linear";
  std::string global_scale_kind = "encode";
  std::optional<float> global_scale;  // computed when absent
};

GlobalScale parse_global_scale_kind(const std::string& text) {
  if (text != "encode" && text != "decode") {
    throw UsageError("--global-scale-kind", fmt::format("is '{}', must be encode or decode", text));
  }
  return text == "encode" ? GlobalScale::encode : GlobalScale::decode;
}

// A matrix in host memory with its codes and scales, and their copies on a machine.
class QuantizeRun {
 public:
  QuantizeRun(const QuantizeArguments& a, Machine& machine)
      : options_{.scale_layout = parse_scale_layout(a.scale_layout),
                 .global_scale_kind = parse_global_scale_kind(a.global_scale_kind)},
        given_(a.global_scale),
        machine_(machine),
        memory_(machine),
        x_(parse_dtype(a.run.dtype), {a.rows, a.columns}),
        codes_(DType::e2m1x2, {a.rows, a.columns / 2}),
        scales_(DType::e4m3, scale_shape(a.rows, a.columns / kBlock)),
        global_scale_(DType::fp32, {1}) {
    reference::fill_normal(x_.view(), a.run.seed);
    std::memset(codes_.data(), kPoison, codes_.bytes());
    std::memset(scales_.data(), kPoison, scales_.bytes());
    reference::store(global_scale_.view(), 0, given_.value_or(0.0f));
    device_tensors_ = {.x = memory_.upload(x_),
                       .codes = memory_.upload(codes_),
                       .scales = memory_.upload(scales_)};
    if (given_) {
      device_tensors_.global_scale = memory_.upload(global_scale_);
    } else {
      device_tensors_.computed_global_scale = memory_.upload(global_scale_);
    }
    workspace_ = memory_.workspace(quantize_nvfp4_workspace_bytes(device_tensors_, options_));
  }

  // Bytes read and written: x once, or twice where the global scale is computed.
  double bytes() const {
    const std::size_t reads = given_ ? 1 : 2;
    return static_cast<double>(reads * x_.bytes() + codes_.bytes() + scales_.bytes());
  }

  Launch launch() const {
    return [this](Stream stream) { quantize_nvfp4(device_tensors_, options_, workspace_, stream); };
  }

  // Runs it once. Every byte must be the float64 model's.
  CheckResult check() {
    machine_.run(launch());
    machine_.download(codes_.data(), device_tensors_.codes.data, codes_.bytes());
    machine_.download(scales_.data(), device_tensors_.scales.data, scales_.bytes());
    float global_scale = given_.value_or(0.0f);
    if (!given_) {
      machine_.download(&global_scale, device_tensors_.computed_global_scale->data,
                        sizeof(global_scale));
    }
    const auto expected = reference::quantize_nvfp4(x_.view(), given_, *options_.global_scale_kind);
    const std::size_t wrong_codes = codes_.bytes() - equal_bytes(codes_, expected.codes);
    const std::size_t wrong_scales = scales_.bytes() - equal_scales(expected.scales);
    CheckResult result;
    if (std::bit_cast<std::uint32_t>(global_scale) !=
        std::bit_cast<std::uint32_t>(expected.global_scale)) {
      result.failure =
          fmt::format("the global scale is {}, must be {}", global_scale, expected.global_scale);
    } else if (wrong_codes + wrong_scales > 0) {
      result.failure =
          fmt::format("{} bytes of codes and {} of scales differ", wrong_codes, wrong_scales);
    }
    return result;
  }

  Timing time(const TimingOptions& timing) { return measure(machine_, launch(), timing); }

  // A copy that reads and writes as many bytes in all.
  Timing time_copy(const TimingOptions& timing) {
    const auto half = static_cast<std::size_t>(bytes() / 2);
    const Memory from = machine_.allocate(half);
    const Memory to = machine_.allocate(half);
    return measure(
        machine_, [&](Stream stream) { machine_.copy(to.get(), from.get(), half, stream); },
        timing);
  }

 private:
  std::vector<std::int64_t> scale_shape(std::int64_t rows, std::int64_t blocks) const {
    if (options_.scale_layout == ScaleLayout::linear) {
      return {rows, blocks};
    }
    const auto shape = swizzled_scale_shape(rows, blocks);
    return {shape[0], shape[1]};
  }

  static std::size_t equal_bytes(const HostTensor& actual,
                                 const std::vector<std::uint8_t>& expected) {
    std::size_t equal = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      equal += actual.data()[i] == std::byte{expected[i]} ? 1 : 0;
    }
    return equal;
  }

  std::size_t equal_scales(const std::vector<std::uint8_t>& expected) const {
    if (options_.scale_layout == ScaleLayout::linear) {
      return equal_bytes(scales_, expected);
    }
    std::vector<std::uint8_t> swizzled(scales_.bytes(), 0);
    const std::int64_t blocks = x_.view().shape[1] / kBlock;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const auto index = static_cast<std::int64_t>(i);
      swizzled[static_cast<std::size_t>(
          reference::swizzled_index(index / blocks, index % blocks, blocks))] = expected[i];
    }
    return equal_bytes(scales_, swizzled);
  }

  QuantizeNvfp4Options options_;
  std::optional<float> given_;
  Machine& machine_;
  DeviceMemory memory_;
  HostTensor x_, codes_, scales_, global_scale_;
  QuantizeNvfp4Tensors device_tensors_;
  Workspace workspace_;
};

ResultCase result_case(const QuantizeArguments& a, double bytes) {
  return {.operation = "quantize_nvfp4",
          .object = {{"m", a.rows},
                     {"k", a.columns},
                     {"dtype", a.run.dtype},
                     {"scale_layout", a.scale_layout},
                     {"global_scale", a.global_scale ? "given" : "computed"},
                     {"global_scale_kind", a.global_scale_kind}},
          .bytes = bytes};
}

void print_timing(std::string_view what, const Timing& timing, double bytes) {
  fmt::print("{:<20} {:>10.1f} us  (p10 {:.1f}, p90 {:.1f})  {:>8.1f} GB/s\n", what,
             timing.median_us, timing.p10_us, timing.p90_us, bytes / timing.median_us * 1e-3);
}

void check_arguments(const QuantizeArguments& a) {
  if (a.columns % kBlock != 0) {
    throw UsageError("--columns",
                     fmt::format("is {}, must be a multiple of {}", a.columns, kBlock));
  }
  const auto element_bytes = static_cast<double>(size_bytes(parse_dtype(a.run.dtype)));
  const double elements = static_cast<double>(a.rows) * static_cast<double>(a.columns);
  check_host_memory(2 * elements * element_bytes);  // the matrix and its copy on the machine
}

int run(const QuantizeArguments& a) {
  check_arguments(a);
  ResultsFile results(a.run.json_path, /*resume=*/false);
  const auto machine = open_machine(parse_device(a.run.device).value_or(default_device()));
  QuantizeRun quantize(a, *machine);
  const ResultCase c = result_case(a, quantize.bytes());
  const MachineDescription description = description_of(*machine);
  Outcome outcome;
  if (a.run.check) {
    outcome.check = quantize.check();
    fmt::print("{}\n", outcome.is_wrong() ? "FAILED: " + outcome.check->failure
                                          : "ok: every byte is the float64 model's");
  }
  if (outcome.is_wrong()) {
    outcome.reason = "wrong result: " + outcome.check->failure;
    results.append(result_line(c, "tilewright/quantize", outcome, description));
    return kMismatch;
  }
  outcome.timing = quantize.time(a.run.timing);
  Outcome copy;
  copy.timing = quantize.time_copy(a.run.timing);
  results.append(result_line(c, "tilewright/quantize", outcome, description));
  results.append(result_line(c, "copy", copy, description));
  print_timing("quantize", *outcome.timing, c.bytes);
  print_timing("copy of as many bytes", *copy.timing, c.bytes);
  fmt::print("{:.1f} % of the copy's bandwidth\n",
             100 * copy.timing->median_us / outcome.timing->median_us);
  return kPass;
}

}  // namespace

Command add_quantize_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("quantize", "Quantise a random matrix to NVFP4, check and time it");
  const auto arguments = std::make_shared<QuantizeArguments>();
  command->add_option("--rows", arguments->rows, "Rows (default: 8192)")
      ->check(tensor_size())
      ->type_name("N");
  command->add_option("--columns", arguments->columns, "Columns, a multiple of 16 (default: 8192)")
      ->check(tensor_size())
      ->type_name("N");
  command
      ->add_option("--device", arguments->run.device,
                   "cpu, cuda or cuda:N (default: cuda where there is one)")
      ->envname("DEVICE");
  command->add_option("--dtype", arguments->run.dtype, "Of the matrix: bf16, fp16 or fp32")
      ->envname("DTYPE")
      ->capture_default_str();
  command->add_option("--scale-layout", arguments->scale_layout, "linear or swizzled")
      ->envname("SCALE_LAYOUT")
      ->capture_default_str();
  command
      ->add_option("--global-scale", arguments->global_scale,
                   "The global scale (default: computed, in the same call)")
      ->check(number<float>("a number of FP32"))
      ->envname("GLOBAL_SCALE")
      ->type_name("FLOAT");
  command
      ->add_option("--global-scale-kind", arguments->global_scale_kind,
                   "encode: value = code * scale / g; decode: value = code * scale * g")
      ->envname("GLOBAL_SCALE_KIND")
      ->capture_default_str();
  add_measurement_options(*command, arguments->run);
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
