#include "fuzz/registry_query.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <limits>
#include <string>
#include <vector>

#include "fuzz/check.hpp"
#include "tilewright/attention_kernels.hpp"
#include "tilewright/attention_with_kvcache_kernels.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"

namespace tilewright::fuzz {
namespace {

constexpr std::int64_t kMostSize = (std::int64_t{1} << 30) - 1;
constexpr std::array kDTypes = {DType::bf16,   DType::fp16, DType::fp32,
                                DType::e2m1x2, DType::u8,   DType::e4m3};
constexpr std::array<std::int64_t, 12> kSizes = {64,
                                                 128,
                                                 256,
                                                 16,
                                                 1,
                                                 1 << 14,
                                                 kMostSize,
                                                 kMostSize + 1,
                                                 0,
                                                 -1,
                                                 std::numeric_limits<std::int64_t>::max(),
                                                 std::numeric_limits<std::int64_t>::min()};

// Variants included.
template <class Op>
const Kernel<Op>& any_kernel(Choices& choices) {
  std::vector<const Kernel<Op>*> all;
  for (const Kernel<Op>& kernel : kernels<Op>()) {
    all.push_back(&kernel);
    for (const Kernel<Op>& variant : kernel.variants) {
      all.push_back(&variant);
    }
  }
  return *choices.one_of(all);
}

// This machine's CPU, or a GPU that need not be here.
DeviceInfo any_device(Choices& choices) {
  if (choices.one_in(4)) {
    return device_info({});
  }
  constexpr std::array kMultiprocessors = {132, 78, 1};
  DeviceInfo device{.device = {DeviceKind::cuda, 0}, .name = "a GPU", .compute_capability = 90};
  device.multiprocessors = choices.one_of(kMultiprocessors);
  device.memory_bytes = std::size_t{1} << 37;
  return device;
}

AttentionProblem any_attention(Choices& choices) {
  const auto size = [&] {
    return choices.one_in(4) ? choices.one_of(kSizes) : choices.between(1, 300);
  };
  AttentionProblem problem{.dtype = choices.one_of(kDTypes),
                           .batch = size(),
                           .q_len = size(),
                           .kv_len = size(),
                           .heads = size(),
                           .kv_heads = size(),
                           .head_dim = choices.one_of(kSizes)};
  for (bool AttentionProblem::*const feature :
       {&AttentionProblem::causal, &AttentionProblem::window, &AttentionProblem::softcap,
        &AttentionProblem::sinks, &AttentionProblem::packed, &AttentionProblem::packed_queries,
        &AttentionProblem::packed_keys, &AttentionProblem::unnormalized,
        &AttentionProblem::batch_invariant}) {
    problem.*feature = choices.one_in(4);
  }
  problem.value_dim = choices.coin() ? 0 : choices.one_of(kSizes);
  return problem;
}

AttentionWithKvCacheProblem any_kvcache(Choices& choices) {
  using Problem = AttentionWithKvCacheProblem;
  const auto size = [&] {
    return choices.one_in(4) ? choices.one_of(kSizes) : choices.between(1, 300);
  };
  Problem problem{.dtype = choices.one_of(kDTypes),
                  .cache_dtype = DType::e4m3,
                  .batch = size(),
                  .q_len = size(),
                  .cache_rows = size(),
                  .page_size = choices.coin() ? 0 : size(),
                  .capacity = size(),
                  .heads = size(),
                  .kv_heads = size(),
                  .head_dim = choices.one_of(kSizes)};
  if (!choices.one_in(4)) {
    problem.cache_dtype = choices.one_in(8) ? choices.one_of(kDTypes) : problem.dtype;
  }
  for (bool Problem::*const feature :
       {&Problem::causal, &Problem::window, &Problem::softcap, &Problem::sinks, &Problem::packed,
        &Problem::unnormalized, &Problem::left_padding, &Problem::shared_prefix, &Problem::new_rows,
        &Problem::tree_mask, &Problem::batch_invariant}) {
    problem.*feature = choices.one_in(4);
  }
  problem.value_dim = choices.coin() ? 0 : choices.one_of(kSizes);
  return problem;
}

GemmNvfp4Problem any_gemm(Choices& choices) {
  const auto size = [&] {
    return choices.coin() ? choices.one_of(kSizes) : 16 * choices.between(1, 300);
  };
  return {.a_dtype = choices.one_of(kDTypes),
          .c_dtype = choices.one_of(kDTypes),
          .m = size(),
          .n = size(),
          .k = size(),
          .l = size(),
          .b_is_packed = choices.coin(),
          .batch_invariant = choices.coin()};
}

bool are_sizes(std::initializer_list<std::int64_t> sizes) {
  return std::ranges::all_of(sizes,
                             [](std::int64_t size) { return size >= 1 && size <= kMostSize; });
}

template <class Op>
void query(const Kernel<Op>& kernel, const typename Op::Problem& problem, const DeviceInfo& device,
           bool has_sizes) {
  const std::optional<Reason> reason = can_run(kernel, problem, device);
  check(has_sizes || reason, "a kernel can run sizes that no tensor has");
  const Kernel<Op>* const variant = variant_of(kernel, problem, device);
  check(variant != nullptr || reason || kernel.variants.empty(),
        "a kernel can run it, its variant cannot be told");
  try {
    workspace_bytes(kernel, problem, device);
    check(has_sizes, "sizes that no tensor has need a workspace");
  } catch (const Error& error) {
    check_printable(error.what());
    check(reason.has_value(),
          std::string("a kernel can run it, its workspace cannot be told: ") + error.what());
  }
}

}  // namespace

void query_registry(Choices& choices) {
  const std::int64_t operation = choices.between(0, 2);
  const DeviceInfo device = any_device(choices);
  if (operation == 0) {
    const AttentionProblem p = any_attention(choices);
    const bool has_sizes =
        are_sizes({p.batch, p.q_len, p.kv_len, p.heads, p.kv_heads, p.head_dim}) &&
        (p.value_dim == 0 || are_sizes({p.value_dim}));
    query(any_kernel<Attention>(choices), p, device, has_sizes);
  } else if (operation == 1) {
    const AttentionWithKvCacheProblem p = any_kvcache(choices);
    const bool has_sizes =
        are_sizes({p.batch, p.q_len, p.cache_rows, p.capacity, p.heads, p.kv_heads, p.head_dim}) &&
        (p.value_dim == 0 || are_sizes({p.value_dim})) &&
        (p.page_size == 0 || (are_sizes({p.page_size}) && p.capacity % p.page_size == 0)) &&
        p.heads % p.kv_heads == 0;
    query(any_kernel<AttentionWithKvCache>(choices), p, device, has_sizes);
  } else {
    const GemmNvfp4Problem p = any_gemm(choices);
    query(any_kernel<GemmNvfp4>(choices), p, device, are_sizes({p.m, p.n, p.k, p.l}));
  }
}

}  // namespace tilewright::fuzz
