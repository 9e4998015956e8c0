// Problems of writing into KV caches: ways of placing, layouts, rotations, descales; and whether a
// result is right.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/append_kv.hpp"

namespace tilewright::test {

// How a call says where rows go.
enum class AppendBy { slots, batch, packed };

// Caches with tokens outside of heads, with heads outside of tokens, and of both k and v, page by
// page in turn, in one tensor.
enum class AppendLayout { tokens_first, heads_first, interleaved };

// Descales of an e4m3 cache; `none`: the cache has k's dtype.
enum class AppendScales { none, tensor, sequence, token };

struct AppendProblem {
  AppendBy by = AppendBy::slots;
  bool is_paged = true;
  AppendLayout layout = AppendLayout::tokens_first;
  std::int64_t sequences = 3;
  std::int64_t tokens = 5;  // new ones of a sequence, at most
  std::int64_t heads = 0;   // 0: no q
  std::int64_t kv_heads = 2;
  std::int64_t head_dim = 64;
  std::int64_t value_dim = 64;
  std::int64_t page_size = 16;
  std::int64_t rotary_dims = 0;
  bool is_interleaved = false;
  bool has_half_tables = false;  // of the dtype of k, not FP32
  bool has_positions = false;
  DType dtype = DType::bf16;
  AppendScales scales = AppendScales::none;
  bool has_specials = false;  // NaN, infinities and zeros in the inputs; rows that are not stored
  bool is_padded = false;     // gaps between rows
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const AppendProblem& problem);

// A problem's tensors, in host or device memory.
template <typename Tensor>
struct AppendSet {
  Tensor k, v, k_cache;
  std::optional<Tensor> v_cache = std::nullopt;  // absent where k_cache holds both
  std::optional<Tensor> slot_mapping = std::nullopt;
  std::optional<Tensor> cache_seqlens = std::nullopt;
  std::optional<Tensor> cu_seqlens_new = std::nullopt;
  std::optional<Tensor> block_table = std::nullopt;
  std::optional<Tensor> cache_batch_idx = std::nullopt;
  std::optional<Tensor> rotary_cos = std::nullopt;
  std::optional<Tensor> rotary_sin = std::nullopt;
  std::optional<Tensor> positions = std::nullopt;
  std::optional<Tensor> q = std::nullopt;
  std::optional<Tensor> q_out = std::nullopt;
  std::optional<Tensor> k_descale = std::nullopt;
  std::optional<Tensor> v_descale = std::nullopt;
  std::optional<Tensor> computed_k_descale = std::nullopt;
  std::optional<Tensor> computed_v_descale = std::nullopt;

  AppendKvTensors views();
  std::vector<Tensor*> outputs();
};

using AppendHostSet = AppendSet<reference::HostTensor>;

inline AppendKvOptions options_of(const AppendProblem& problem) {
  return {.interleaved = problem.is_interleaved};
}

// Inputs, and outputs and gaps filled with kUnwritten.
AppendHostSet make_tensors(const AppendProblem& problem);

// Every byte of the outputs as the oracle has it, what is not written included.
void expect_right(const AppendProblem& problem, AppendHostSet& result);

// Ways of placing, layouts, rotations and descales of a dtype, all small. Head dims are multiples
// of 8.
std::vector<AppendProblem> append_problems(DType dtype);

// The k (index 0) or v (1) of a cache (pages, 2, page size, heads, head_dim).
template <typename View>
View half_of(View both, std::int64_t index) {
  both.data = static_cast<std::byte*>(both.data) +
              index * both.stride[1] * static_cast<std::int64_t>(size_bytes(both.dtype));
  for (int i = 2; i < both.rank; ++i) {
    both.shape[i - 1] = both.shape[i];
    both.stride[i - 1] = both.stride[i];
  }
  --both.rank;
  return both;
}

template <typename Tensor>
AppendKvTensors AppendSet<Tensor>::views() {
  AppendKvTensors t{.k = k.view(),
                    .v = v.view(),
                    .k_cache = v_cache ? k_cache.view() : half_of(k_cache.view(), 0),
                    .v_cache = v_cache ? v_cache->view() : half_of(k_cache.view(), 1)};
  const auto set = [](auto& view, auto& tensor) {
    if (tensor) {
      view = tensor->view();
    }
  };
  set(t.slot_mapping, slot_mapping);
  set(t.cache_seqlens, cache_seqlens);
  set(t.cu_seqlens_new, cu_seqlens_new);
  set(t.block_table, block_table);
  set(t.cache_batch_idx, cache_batch_idx);
  set(t.rotary_cos, rotary_cos);
  set(t.rotary_sin, rotary_sin);
  set(t.positions, positions);
  set(t.q, q);
  set(t.q_out, q_out);
  set(t.k_descale, k_descale);
  set(t.v_descale, v_descale);
  set(t.computed_k_descale, computed_k_descale);
  set(t.computed_v_descale, computed_v_descale);
  return t;
}

template <typename Tensor>
std::vector<Tensor*> AppendSet<Tensor>::outputs() {
  std::vector<Tensor*> all = {&k_cache};
  for (auto* const output : {&v_cache, &q_out, &computed_k_descale, &computed_v_descale}) {
    if (*output) {
      all.push_back(&**output);
    }
  }
  return all;
}

}  // namespace tilewright::test
