// The kernel table, and the constraints as pure functions of it.
#include <algorithm>
#include <array>
#include <limits>

#include "cuda/attention/flash/plan.hpp"
#include "cuda/cuda_backend.hpp"
#include "cuda/gemm/nvfp4/choices.hpp"
#include "registry/reasons.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {
namespace {

constexpr std::array kBf16 = {DType::bf16};
constexpr std::array kHalves = {DType::bf16, DType::fp16};
constexpr std::array kFloats = {DType::fp32, DType::fp16, DType::bf16};
constexpr std::array kGemmOperands = {DType::bf16, DType::fp16, DType::e2m1x2};
constexpr std::array kWeightForms = {WeightForm::codes, WeightForm::packed};
constexpr std::span<const WeightForm> kCodes = std::span(kWeightForms).first<1>();
constexpr std::array kHeadDims = {HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{256, 256}};
constexpr std::span<const HeadDims> kLowerHeadDims = std::span(kHeadDims).first<2>();
constexpr std::array kFlashHeadDims = {HeadDims{64, 64},   HeadDims{96, 96},   HeadDims{128, 128},
                                       HeadDims{192, 192}, HeadDims{192, 128}, HeadDims{256, 256}};
constexpr std::array kAllFeatures = {Feature::window, Feature::softcap, Feature::sinks,
                                     Feature::packed, Feature::unnormalized};
constexpr int kHopper = 90;
constexpr int kMaxHeadDim = 1 << 14;  // of kernels that take any

constexpr KernelInfo ladder_rung(std::string_view name, std::string_view summary,
                                 std::string_view doc,
                                 std::span<const HeadDims> head_dims = kLowerHeadDims) {
  return {.name = name,
          .operation = "attention",
          .summary = summary,
          .device = DeviceKind::cuda,
          .compute_capability = kHopper,
          .dtypes = kBf16,
          .alignment_bytes = 16,
          .doc = doc,
          .head_dims = head_dims};
}

constexpr KernelInfo gemm_bf16_step(std::string_view name, std::string_view summary) {
  return {.name = name,
          .operation = "gemm_bf16",
          .summary = summary,
          .device = DeviceKind::cuda,
          .compute_capability = kHopper,
          .dtypes = kBf16,
          .alignment_bytes = 16,
          .doc = "docs/worklog/nvfp4-gemm.md",
          .out_dtypes = kBf16,
          .n_multiple = 16,
          .k_multiple = 64};
}

constexpr KernelInfo kFlash{.name = "flash",
                            .operation = "attention",
                            .summary = "production: K6 with persistent blocks, and every feature",
                            .device = DeviceKind::cuda,
                            .compute_capability = kHopper,
                            .dtypes = kHalves,
                            .alignment_bytes = 16,
                            .doc = "docs/worklog/flash.md",
                            .head_dims = kFlashHeadDims,
                            .features = kAllFeatures};

constexpr KernelInfo kNvfp4{.name = "nvfp4",
                            .operation = "gemm_nvfp4",
                            .summary = "production: packed weights, dequantised in registers",
                            .device = DeviceKind::cuda,
                            .compute_capability = kHopper,
                            .dtypes = kGemmOperands,
                            .alignment_bytes = 16,
                            .doc = "docs/worklog/nvfp4-gemm.md",
                            .out_dtypes = kFloats,
                            .n_multiple = 16,
                            .k_multiple = 16,
                            .weight_forms = kWeightForms};

// Operation by operation, ascending in speed: "auto" takes the last row that can run the problem.
constexpr std::array kKernels = {
    KernelInfo{.name = "cpu",
               .operation = "attention",
               .summary = "FlashAttention-2 tiling on all cores, FP32 arithmetic",
               .device = DeviceKind::cpu,
               .compute_capability = 0,
               .dtypes = kFloats,
               .alignment_bytes = 1,
               .doc = "docs/architecture.md",
               .features = kAllFeatures},
    ladder_rung("k1", "naive: three launches, S in global memory", "docs/worklog/k1.md"),
    ladder_rung("k2", "tiled online softmax in one kernel, CUDA cores", "docs/worklog/k2.md"),
    ladder_rung("k3_1", "K2 fed by TMA, one stage", "docs/worklog/k3.md"),
    ladder_rung("k3_2", "K2 fed by TMA, two stages", "docs/worklog/k3.md"),
    ladder_rung("k3_3", "K2 fed by TMA, five stages", "docs/worklog/k3.md"),
    ladder_rung("k4_qk", "QK^T on tensor cores (WGMMA), PV on CUDA cores", "docs/worklog/k4.md"),
    ladder_rung("k4", "both products on tensor cores, P in registers", "docs/worklog/k4.md"),
    ladder_rung("k5", "K4 with warps for loading and warps for computing", "docs/worklog/k5.md",
                kHeadDims),
    ladder_rung("k6_pingpong", "K5 with consumers that take turns on the tensor cores",
                "docs/worklog/k6.md", kHeadDims),
    ladder_rung("k6_overlap", "K5 with the softmax of a tile under the product of the last",
                "docs/worklog/k6.md", kHeadDims),
    ladder_rung("k6", "both: ping-pong and overlap", "docs/worklog/k6.md", kHeadDims),
    kFlash,
    gemm_bf16_step("gemm_naive", "one thread per output"),
    gemm_bf16_step("gemm_tiled", "tiles in shared memory, CUDA cores"),
    gemm_bf16_step("gemm_swizzled", "swizzled tiles, tensor cores by mma.sync"),
    KernelInfo{.name = "cpu",
               .operation = "gemm_nvfp4",
               .summary = "tiles dequantised to FP32, on all cores",
               .device = DeviceKind::cpu,
               .compute_capability = 0,
               .dtypes = kGemmOperands,
               .alignment_bytes = 1,
               .doc = "docs/architecture.md",
               .out_dtypes = kFloats,
               .k_multiple = 16,
               .weight_forms = kWeightForms},
    KernelInfo{.name = "nvfp4_simple",
               .operation = "gemm_nvfp4",
               .summary = "gemm_swizzled with weights dequantised on their way to its tiles",
               .device = DeviceKind::cuda,
               .compute_capability = kHopper,
               .dtypes = kBf16,
               .alignment_bytes = 16,
               .doc = "docs/worklog/nvfp4-gemm.md",
               .out_dtypes = kFloats,
               .n_multiple = 16,
               .k_multiple = 64,
               .weight_forms = kCodes},
    kNvfp4,
};

constexpr std::array<std::string_view, cuda::kFlashChoiceCount> kFlashRowNames = {
    "flash/0", "flash/1", "flash/2", "flash/3", "flash/4",  "flash/5",
    "flash/6", "flash/7", "flash/8", "flash/9", "flash/10", "flash/11"};
static_assert(!kFlashRowNames.back().empty(), "every row has a name");
constexpr std::array kClusterFeatures = {Feature::softcap, Feature::sinks, Feature::unnormalized};

constexpr auto kFlashRowHeadDims = [] {
  std::array<HeadDims, cuda::kFlashChoiceCount> all{};
  std::ranges::transform(cuda::kFlashChoices, all.begin(), [](const cuda::FlashChoice& shape) {
    return HeadDims{shape.head_dim, shape.value_dim};
  });
  return all;
}();

// "flash", narrowed to what each of its shapes can run.
constexpr auto kFlashRows = [] {
  std::array<KernelInfo, cuda::kFlashChoiceCount> rows{};
  rows.fill(kFlash);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const cuda::FlashChoice& shape = cuda::kFlashChoices[i];
    rows[i].name = kFlashRowNames[i];
    rows[i].summary = "flash in this row of its table";
    rows[i].head_dims = std::span(kFlashRowHeadDims).subspan(i, 1);
    if (!shape.takes_fp16) {
      rows[i].dtypes = kBf16;
    }
    if (shape.cluster > 1) {
      rows[i].features = kClusterFeatures;
    }
  }
  return rows;
}();

constexpr std::array<std::string_view, cuda::kNvfp4ChoiceCount> kNvfp4RowNames = {
    "nvfp4/0", "nvfp4/1", "nvfp4/2", "nvfp4/3", "nvfp4/4",  "nvfp4/5",
    "nvfp4/6", "nvfp4/7", "nvfp4/8", "nvfp4/9", "nvfp4/10", "nvfp4/11"};
static_assert(!kNvfp4RowNames.back().empty(), "every row has a name");

constexpr auto kNvfp4Rows = [] {
  std::array<KernelInfo, cuda::kNvfp4ChoiceCount> rows{};
  rows.fill(kNvfp4);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].name = kNvfp4RowNames[i];
    rows[i].summary = "nvfp4 in this row of its table";
    if (!cuda::kNvfp4Choices[i].takes_fp32()) {
      rows[i].out_dtypes = kHalves;
    }
  }
  return rows;
}();

std::int64_t value_dim_of(const AttentionProblem& problem) {
  return problem.value_dim == 0 ? problem.head_dim : problem.value_dim;
}

std::optional<Reason> size_reason(const AttentionProblem& problem) {
  return size_range_reason({{"batch", problem.batch},
                            {"q_len", problem.q_len},
                            {"kv_len", problem.kv_len},
                            {"heads", problem.heads},
                            {"kv_heads", problem.kv_heads},
                            {"head_dim", problem.head_dim},
                            {"value_dim", value_dim_of(problem)}});
}

std::optional<Reason> head_dim_reason(const KernelInfo& kernel, const AttentionProblem& problem) {
  const HeadDims dims{static_cast<int>(problem.head_dim), static_cast<int>(value_dim_of(problem))};
  if (kernel.head_dims.empty()) {
    return std::max(dims.qk, dims.v) <= kMaxHeadDim
               ? std::nullopt
               : std::optional(takes_reason(kernel, "q", "head_dim " + name(dims),
                                            "at most " + std::to_string(kMaxHeadDim)));
  }
  if (std::ranges::find(kernel.head_dims, dims) != kernel.head_dims.end()) {
    return std::nullopt;
  }
  std::string all;
  for (const HeadDims each : kernel.head_dims) {
    all += (all.empty() ? "" : ", ") + name(each);
  }
  return takes_reason(kernel, "q", "head_dim " + name(dims), all);
}

// What the caller gave to ask for a feature.
std::string_view given_for(Feature feature) {
  switch (feature) {
    case Feature::packed:
      return "cu_seqlens_q, cu_seqlens_k or seqused_k is given";
    case Feature::unnormalized:
      return "row_max and row_sum are given";
    default:
      return "is given";
  }
}

std::optional<Reason> feature_reason(const KernelInfo& kernel, const AttentionProblem& problem) {
  for (const Feature feature : kAllFeatures) {
    if (problem.asks_for(feature) &&
        std::ranges::find(kernel.features, feature) == kernel.features.end()) {
      return Reason{
          ErrorCode::unsupported, std::string(name(feature)),
          std::string(given_for(feature)) + ", kernel " + std::string(kernel.name) + " takes none"};
    }
  }
  return std::nullopt;
}

std::optional<Reason> cluster_reason(const KernelInfo& kernel, const AttentionProblem& problem) {
  const std::optional<int> row = cuda::flash_row_named(kernel.name);
  if (!row || cuda::can_share_keys(cuda::kFlashChoices[*row], problem)) {
    return std::nullopt;
  }
  if (problem.causal) {
    return Reason{ErrorCode::unsupported, "causal",
                  "is true, kernel " + std::string(kernel.name) + " takes no mask"};
  }
  const cuda::FlashChoice& shape = cuda::kFlashChoices[*row];
  return takes_reason(kernel, "q", "seqlen " + std::to_string(problem.q_len),
                      "a multiple of " + std::to_string(shape.cluster) + " tiles of " +
                          std::to_string(shape.br()) + " rows");
}

// Parts that the keys are cut into.
std::int64_t parts_of_keys(const KernelInfo& kernel, const AttentionProblem& problem,
                           const DeviceInfo& device) {
  const std::optional<int> row = cuda::flash_row_named(kernel.name);
  return kernel.name == "flash" || row
             ? cuda::plan_flash(problem, device.multiprocessors, row).splits
             : 1;
}

// Every thread block's index fits 31 bits, down to a block per 16 x 16 elements of O, and the
// number of a tile, in parts of the keys too, the 28 bits of a ticket.
std::optional<Reason> launch_reason(const KernelInfo& kernel, const AttentionProblem& problem,
                                    const DeviceInfo& device) {
  constexpr double kMaxRows = 1 << 28;
  if (kernel.device != DeviceKind::cuda) {
    return std::nullopt;
  }
  const std::int64_t batch = problem.packed_queries ? 1 : problem.batch;
  const double rows = static_cast<double>(batch) * static_cast<double>(problem.heads) *
                      static_cast<double>(problem.q_len);
  const auto refused = [&](const std::string& what) {
    return Reason{ErrorCode::unsupported, "q",
                  "has " + std::to_string(batch) + " x " + std::to_string(problem.q_len) + " x " +
                      std::to_string(problem.heads) + " rows (batch, seqlen, heads)" + what};
  };
  if (rows > kMaxRows) {
    return refused(", a launch takes at most 2^28");
  }
  const std::int64_t parts = parts_of_keys(kernel, problem, device);
  if (rows * static_cast<double>(parts) > kMaxRows) {
    return refused(" in " + std::to_string(parts) +
                   " parts of the keys, a launch takes at most 2^28 of both together");
  }
  return std::nullopt;
}

// Why the kernel cannot run the problem on any device with so many SMs.
std::optional<Reason> problem_reason(const KernelInfo& kernel, const AttentionProblem& problem,
                                     const DeviceInfo& device) {
  if (auto reason = size_reason(problem)) {
    return reason;
  }
  if (auto reason = dtype_reason(kernel, kernel.dtypes, "q", problem.dtype)) {
    return reason;
  }
  if (auto reason = head_dim_reason(kernel, problem)) {
    return reason;
  }
  if (auto reason = feature_reason(kernel, problem)) {
    return reason;
  }
  if (auto reason = cluster_reason(kernel, problem)) {
    return reason;
  }
  return launch_reason(kernel, problem, device);
}

std::size_t needed_bytes(const KernelInfo& kernel, const AttentionProblem& problem,
                         const DeviceInfo& device) {
  const std::optional<int> row = cuda::flash_row_named(kernel.name);
  if (kernel.name == "flash" || row) {
    const cuda::FlashPlan plan = cuda::plan_flash(problem, device.multiprocessors, row);
    return cuda::flash_workspace(problem, plan).bytes;
  }
  if (kernel.name != "k1") {
    return 0;
  }
  // S, in FP32: (batch, heads, q_len, kv_len). Saturates where that is no size_t.
  const double bytes = 4.0 * static_cast<double>(problem.batch) *
                       static_cast<double>(problem.heads) * static_cast<double>(problem.q_len) *
                       static_cast<double>(problem.kv_len);
  constexpr auto kMax = std::numeric_limits<std::size_t>::max();
  return bytes < static_cast<double>(kMax) ? static_cast<std::size_t>(bytes) : kMax;
}

std::optional<Reason> memory_reason(const KernelInfo& kernel, const AttentionProblem& problem,
                                    const DeviceInfo& device) {
  const std::size_t needed = needed_bytes(kernel, problem, device);
  if (needed <= device.memory_bytes) {
    return std::nullopt;
  }
  return Reason{ErrorCode::unsupported, "workspace",
                "kernel " + std::string(kernel.name) + " needs " + std::to_string(needed) +
                    " bytes for this problem, " + device.name + " has " +
                    std::to_string(device.memory_bytes)};
}

}  // namespace

bool AttentionProblem::asks_for(Feature feature) const {
  switch (feature) {
    case Feature::window:
      return window;
    case Feature::softcap:
      return softcap;
    case Feature::sinks:
      return sinks;
    case Feature::packed:
      return packed;
    case Feature::unnormalized:
      return unnormalized;
  }
  return false;
}

std::span<const KernelInfo> kernels() { return kKernels; }

std::span<const KernelInfo> kernels(std::string_view operation) {
  const auto is_other = [&](std::string_view other) { return other != operation; };
  const auto first = std::ranges::find(kKernels, operation, &KernelInfo::operation);
  const auto last = std::ranges::find_if(first, kKernels.end(), is_other, &KernelInfo::operation);
  return {first, last};
}

std::span<const KernelInfo> flash_rows() { return kFlashRows; }

std::span<const KernelInfo> nvfp4_rows() { return kNvfp4Rows; }

const KernelInfo* find_kernel(std::string_view operation, std::string_view name) {
  for (const std::span<const KernelInfo> table : {kernels(), flash_rows(), nvfp4_rows()}) {
    const auto found = std::ranges::find_if(table, [&](const KernelInfo& kernel) {
      return kernel.operation == operation && kernel.name == name;
    });
    if (found != table.end()) {
      return &*found;
    }
  }
  return nullptr;
}

std::optional<Reason> can_run(const KernelInfo& kernel, const AttentionProblem& problem,
                              const DeviceInfo& device) {
  if (auto reason = can_run(kernel, device)) {
    return reason;
  }
  if (auto reason = problem_reason(kernel, problem, device)) {
    return reason;
  }
  return memory_reason(kernel, problem, device);
}

const KernelInfo* flash_row_of(const AttentionProblem& problem, const DeviceInfo& device) {
  if (problem_reason(kFlash, problem, device)) {
    return nullptr;
  }
  const std::optional<int> row = cuda::best_flash_row(problem, device.multiprocessors);
  return row ? &flash_rows()[static_cast<std::size_t>(*row)] : nullptr;
}

std::size_t workspace_bytes(const KernelInfo& kernel, const AttentionProblem& problem,
                            const DeviceInfo& device) {
  throw_if(problem_reason(kernel, problem, device));
  return needed_bytes(kernel, problem, device);
}

}  // namespace tilewright
