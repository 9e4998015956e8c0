#include "cuda/gemm/nvfp4/launch.hpp"

#include <array>
#include <utility>

#include "common/nvfp4_recipe.hpp"
#include "common/nvfp4_weight_layout.hpp"
#include "cuda/common/epoch.hpp"
#include "ops/dequantize_nvfp4/kernels.hpp"
#include "ops/nvfp4_weight/kernels.hpp"

namespace tilewright::cuda {
namespace {

using Launcher = void (*)(const GemmNvfp4Params&, const Nvfp4Plan&, const PartialSums&, bool,
                          Stream);

template <int... kIndices>
constexpr std::array<Launcher, sizeof...(kIndices)> launchers(
    std::integer_sequence<int, kIndices...>) {
  return {launch_nvfp4_config<kIndices>...};
}

constexpr auto kLaunchers = launchers(std::make_integer_sequence<int, kNvfp4ConfigCount>{});

// Queues the dequantising of NVFP4 activations, which is exact in BF16. Returns `p` with these.
GemmNvfp4Params with_dequantized_a(const GemmNvfp4Params& p, void* activations, Stream stream) {
  const std::int64_t elements = std::int64_t{p.m} * p.k;  // of one GEMM of the batch
  auto* const out = static_cast<std::uint16_t*>(activations);
  for (int batch = 0; batch < p.l; ++batch) {
    DequantizeNvfp4Params a{};
    a.codes = static_cast<const std::uint8_t*>(p.a) + batch * p.a_stride.batch;
    a.codes_stride = p.a_stride.row;
    a.scales = p.sfa;
    a.scales.data += batch * p.sfa_batch_stride;
    a.rows = p.m;
    a.blocks = p.k / nvfp4::kBlock;
    a.out = out + batch * elements;
    a.dtype = DType::bf16;
    a.out_stride = p.k;
    launch_dequantize_nvfp4(a, stream);
  }
  GemmNvfp4Params dequantized = p;
  dequantized.a = out;
  dequantized.a_dtype = DType::bf16;
  dequantized.a_stride = {.batch = elements, .row = p.k};
  return dequantized;
}

// Queues the packing of a weight that is given as codes. Returns `p` with the packed weight.
GemmNvfp4Params with_packed_b(const GemmNvfp4Params& p, void* weight, Stream stream) {
  const auto [row_tiles, row_bytes] = packed_nvfp4_weight_shape(p.n, p.k);
  const bool is_one_weight = p.b_stride.batch == 0 && p.sfb_batch_stride == 0;  // for all GEMMs
  PrepackWeightParams pack{};
  pack.weight = {.codes = p.b,
                 .codes_stride = p.b_stride.row,
                 .codes_batch_stride = p.b_stride.batch,
                 .scales = p.sfb,
                 .scales_batch_stride = p.sfb_batch_stride,
                 .batch = is_one_weight ? 1 : p.l,
                 .rows = p.n,
                 .blocks = p.k / nvfp4::kBlock};
  pack.packed = static_cast<std::uint8_t*>(weight);
  pack.packed_batch_stride = row_tiles * row_bytes;
  launch_prepack_nvfp4_weight(pack, stream);
  GemmNvfp4Params packed = p;
  packed.b = pack.packed;
  packed.b_is_packed = true;
  packed.b_stride = {.batch = is_one_weight ? 0 : pack.packed_batch_stride, .row = row_bytes};
  packed.sfb = {};
  packed.sfb_batch_stride = 0;
  return packed;
}

}  // namespace

void launch_nvfp4(const GemmNvfp4Params& params, const Plan& planned, Stream stream) {
  GemmNvfp4Params p = params;
  const auto [plan, at] = planned.details<Nvfp4Details>();
  auto* const workspace = static_cast<char*>(p.workspace);
  PartialSums partial{};
  if (plan.stream_k_tiles > 0) {
    partial = {.sums = reinterpret_cast<float*>(workspace + at.sums),
               .flags = reinterpret_cast<std::uint64_t*>(workspace + at.flags),
               .epoch = next_epoch(),
               .ticket = reinterpret_cast<std::uint64_t*>(workspace + at.ticket)};
  }
  const bool b_is_ready = p.b_is_packed && p.b_is_constant;
  if (!p.b_is_packed) {
    p = with_packed_b(p, workspace + at.weight, stream);
  }
  if (p.a_dtype == DType::e2m1x2) {
    p = with_dequantized_a(p, workspace + at.activations, stream);
  }
  const Launcher launch = kLaunchers[static_cast<std::size_t>(plan.config)];
  launch(p, plan, partial, b_is_ready, stream);
}

}  // namespace tilewright::cuda
