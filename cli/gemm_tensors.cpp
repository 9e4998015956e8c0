#include "cli/gemm_tensors.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "reference/gemm.hpp"
#include "reference/nvfp4.hpp"
#include "tilewright/nvfp4.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;
using reference::kBlock;

constexpr int kPoison = 0xFF;

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

// Refuses a case if the host cannot hold its activations, residual and result, and the machine's
// copies of the first and the last.
const GemmCase& check_memory(const GemmCase& c) {
  const GemmNvfp4Problem& p = c.problem;
  const auto c_bytes = static_cast<double>(size_bytes(p.c_dtype));
  const double row_bytes = 2.0 * static_cast<double>(p.k) * size_bytes(DType::bf16) +
                           3.0 * static_cast<double>(p.n) * c_bytes;
  check_host_memory(static_cast<double>(p.l) * static_cast<double>(p.m) * row_bytes);
  return c;
}

bool takes(const Kernel<GemmNvfp4>& kernel, WeightForm form) {
  return std::ranges::find(kernel.facts.weight_forms, form) != kernel.facts.weight_forms.end();
}

}  // namespace

bool takes_packed_weight(const KernelInfo& info, const GemmCase& c) {
  if (is_bf16_step(info)) {
    return false;
  }
  const Kernel<GemmNvfp4>& kernel = *find_kernel<GemmNvfp4>(info.name);
  return takes(kernel, WeightForm::packed) &&
         (c.prepack || info.device == DeviceKind::cuda || !takes(kernel, WeightForm::codes));
}

bool is_bf16_step(const KernelInfo& kernel) { return kernel.operation == GemmBf16::kName; }

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

double flops(const GemmCase& c) {
  const GemmNvfp4Problem& p = c.problem;
  return 2.0 * static_cast<double>(p.l) * static_cast<double>(p.m) * static_cast<double>(p.n) *
         static_cast<double>(p.k);
}

GemmTensors::GemmTensors(const GemmCase& c, Nvfp4Operand weight, Machine& machine)
    : case_(check_memory(c)),
      is_w4a4_(c.problem.a_dtype == DType::e2m1x2),
      a_(random_operand(c.problem.l, is_w4a4_ ? c.problem.m : 1, c.problem.k, c.seed + 1)),
      b_(std::move(weight)),
      values_(random_tensor(is_w4a4_ ? DType::bf16 : c.problem.a_dtype,
                            {c.problem.l, c.problem.m, c.problem.k}, c.seed + 2)),
      bias_(random_tensor(c.problem.c_dtype, {c.problem.n}, c.seed + 3)),
      residual_(
          random_tensor(c.problem.c_dtype, {c.problem.l, c.problem.m, c.problem.n}, c.seed + 4)),
      c_(c.problem.c_dtype, {c.problem.l, c.problem.m, c.problem.n}),
      machine_(machine),
      memory_(machine) {
  std::memset(c_.data(), kPoison, c_.bytes());
  if (c.scale_layout == ScaleLayout::swizzled) {
    a_.scales = swizzled(a_.scales);
    b_.scales = swizzled(b_.scales);
  }
  host_ = {.a = is_w4a4_ ? a_.codes.view() : values_.view(),
           .b = b_.codes.view(),
           .sfb = b_.scales.view(),
           .c = c_.view(),
           .global_scale_b = b_.global_scale.view()};
  device_ = {.a = memory_.upload(is_w4a4_ ? a_.codes : values_),
             .b = memory_.upload(b_.codes),
             .sfb = memory_.upload(b_.scales),
             .c = memory_.upload(c_),
             .global_scale_b = memory_.upload(b_.global_scale)};
  const auto add = [&](std::optional<ConstTensorView> GemmNvfp4Tensors::*field, bool is_given,
                       HostTensor& tensor) {
    if (is_given) {
      host_.*field = tensor.view();
      device_.*field = memory_.upload(tensor);
    }
  };
  add(&GemmNvfp4Tensors::sfa, is_w4a4_, a_.scales);
  add(&GemmNvfp4Tensors::global_scale_a, is_w4a4_, a_.global_scale);
  add(&GemmNvfp4Tensors::bias, c.bias, bias_);
  add(&GemmNvfp4Tensors::residual, c.residual, residual_);
}

double GemmTensors::bytes() const {
  std::size_t bytes = b_.codes.bytes() + b_.scales.bytes() + c_.bytes();
  bytes += is_w4a4_ ? a_.codes.bytes() + a_.scales.bytes() : values_.bytes();
  bytes += (host_.bias ? bias_.bytes() : 0) + (host_.residual ? residual_.bytes() : 0);
  return static_cast<double>(bytes);
}

GemmNvfp4Options GemmTensors::options(const KernelInfo& kernel) const {
  return {.sfa_layout = case_.scale_layout,
          .sfb_layout = case_.scale_layout,
          .global_scale_a_kind = a_.kind,
          .global_scale_b_kind = b_.kind,
          .b_is_constant = true,
          .batch_invariant = case_.problem.batch_invariant,
          .kernel = kernel.name};
}

Launch GemmTensors::launch(const KernelInfo& kernel) {
  if (is_bf16_step(kernel)) {
    return [name = kernel.name, tensors = bf16_tensors()](Stream stream) {
      gemm_bf16(tensors, {.kernel = name}, stream);
    };
  }
  const GemmNvfp4Tensors tensors = tensors_for(kernel);
  const Workspace workspace =
      memory_.workspace(gemm_nvfp4_workspace_bytes(tensors, options(kernel)));
  return [options = options(kernel), tensors, workspace](Stream stream) {
    gemm_nvfp4(tensors, options, workspace, stream);
  };
}

GemmNvfp4Tensors GemmTensors::tensors_for(const KernelInfo& kernel) {
  GemmNvfp4Tensors tensors = device_;
  if (takes_packed_weight(kernel, case_)) {
    tensors.b = packed_weight();
    tensors.sfb.reset();
  }
  return tensors;
}

GemmBf16Tensors GemmTensors::bf16_tensors() {
  return {.a = as_matrix(device_.a), .b = bf16_weight(), .c = as_matrix(device_.c)};
}

TensorView GemmTensors::packed_weight() {
  if (!packed_) {
    const GemmNvfp4Problem& p = case_.problem;
    const auto [row_tiles, row_bytes] = packed_nvfp4_weight_shape(p.n, p.k);
    packed_ = contiguous(memory_.allocate(static_cast<std::size_t>(p.l * row_tiles * row_bytes)),
                         DType::u8, std::array{p.l, row_tiles, row_bytes}, machine_.device());
    machine_.run([this](Stream stream) {
      prepack_nvfp4_weight({.codes = device_.b, .scales = *device_.sfb, .packed = *packed_},
                           case_.scale_layout, stream);
    });
  }
  return *packed_;
}

TensorView GemmTensors::bf16_weight() {
  if (!bf16_) {
    const std::array shape{case_.problem.n, case_.problem.k};
    const std::int64_t bytes = shape[0] * shape[1] * std::int64_t{size_bytes(DType::bf16)};
    bf16_ = contiguous(memory_.allocate(static_cast<std::size_t>(bytes)), DType::bf16, shape,
                       machine_.device());
    machine_.run([this](Stream stream) {
      dequantize_nvfp4(
          {.codes = as_matrix(device_.b), .scales = as_matrix(*device_.sfb), .out = *bf16_},
          {.scale_layout = case_.scale_layout}, stream);
    });
  }
  return *bf16_;
}

CheckResult GemmTensors::check(const KernelInfo& kernel) {
  std::memset(c_.data(), kPoison, c_.bytes());
  machine_.upload(device_.c.data, c_.data(), c_.bytes());
  machine_.run(launch(kernel));
  machine_.download(c_.data(), device_.c.data, c_.bytes());
  GemmNvfp4Tensors product = host_;
  if (is_bf16_step(kernel)) {
    product.global_scale_b.reset();
  }
  const reference::GemmResult expected = reference::gemm_nvfp4(product, options(kernel));
  const reference::ErrorNorms norms = reference::compare(c_.view(), expected.c);
  const double limit = reference::rounding_error(host_.c.dtype, expected.c) + 1e-6;
  CheckResult result;
  result.rel_fro_error = norms.rel_fro;
  result.max_abs_error = norms.max_abs;
  if (std::ranges::none_of(expected.c, [](double value) { return std::isfinite(value); })) {
    result.failure = "the right result has no finite value to compare with";
  } else if (!norms.same_specials) {
    result.failure = "NaN or infinities stand in other places than they must";
  } else if (!(norms.rel_fro <= limit)) {
    result.failure =
        fmt::format("the relative error is {:.4e}, must be at most {:.4e}", norms.rel_fro, limit);
  }
  return result;
}

}  // namespace tilewright::cli
