#include "ops/dsv4_attention/checks.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "ops/attention_strides.hpp"
#include "ops/kv_rows/checks.hpp"
#include "ops/overlap.hpp"
#include "ops/rotary_tables.hpp"

namespace tilewright {
namespace {

using Tensors = Dsv4AttentionTensors;

constexpr std::array kBatchedTokens = {"batch", "seqlen"};
constexpr std::array kBatchedLists = {"batch", "seqlen", "entries"};
constexpr std::array kBatchedVectors = {"batch", "seqlen", "head_dim"};
constexpr std::array kBatchedScales = {"batch", "seqlen", "heads", "groups"};
constexpr std::array kPackedTokens = {"tokens"};
constexpr std::array kPackedLists = {"tokens", "entries"};
constexpr std::array kPackedVectors = {"tokens", "head_dim"};
constexpr std::array kPackedScales = {"tokens", "heads", "groups"};
constexpr Form kTokens{kBatchedTokens, kPackedTokens};
constexpr Form kLists{kBatchedLists, kPackedLists};
constexpr Form kVectors{kBatchedVectors, kPackedVectors};
constexpr Form kScales{kBatchedScales, kPackedScales};
constexpr std::array kTable = {"batch", "max_pages"};
constexpr std::int64_t kMaxHeads = 128;
constexpr std::int64_t kMaxCapacity = (std::int64_t{1} << 30) - 1;

bool is_packed(const Tensors& t) { return t.cu_seqlens_q.has_value(); }

// Checks a tensor with something for each token of q.
void check_token_tensor(const char* argument, const ConstTensorView& tensor, const Form& form,
                        DType dtype, const Tensors& t, const char* why = "") {
  check_form(argument, tensor, form, "cu_seqlens_q", is_packed(t));
  check_dtype_and_device(argument, tensor, dtype, t.q.device, why);
  const DimNames names = is_packed(t) ? form.packed : form.batched;
  for (int i = 0; i < (is_packed(t) ? 1 : 2); ++i) {
    check_same(argument, names[static_cast<std::size_t>(i)], tensor.shape[i], "q's", t.q.shape[i]);
  }
}

// The same of one that may be absent, and whose last dimension is contiguous.
void check_token_ints(const char* argument, const std::optional<ConstTensorView>& tensor,
                      const Form& form, const Tensors& t) {
  if (tensor) {
    check_token_tensor(argument, *tensor, form, DType::int32, t);
  }
}

// ---- Queries and results

void check_queries(const Tensors& t) {
  check_rows("q", t.q, "cu_seqlens_q", is_packed(t));
  if (t.q.dtype != DType::bf16 && t.q.dtype != DType::fp32) {
    fail("q", "has dtype " + std::string(name(t.q.dtype)) + ", must be bf16, or fp32 on the cpu");
  }
  check_same("q", "head_dim", head_dim_of(t.q), "that of DeepSeek-V4,", kDsv4HeadDim);
  if (heads_of(t.q) > kMaxHeads) {
    fail("q", "has " + std::to_string(heads_of(t.q)) + " heads, must have at most 128");
  }
  if (!is_packed(t) && seqlen_of(t.q) > kMaxNewTokens) {
    fail("q", "has " + std::to_string(seqlen_of(t.q)) +
                  " new tokens of each request, must have at most 8");
  }
  check_cu_seqlens_q(t.cu_seqlens_q, t.q.device);
}

void check_output(const Tensors& t) {
  check_rows("o", t.o, "cu_seqlens_q", is_packed(t));
  if (t.row_max) {
    check_is_absent("o_scale", t.o_scale, {"row_max and row_sum are given: o is fp32"});
  }
  if (t.o_scale) {
    check_dtype_and_device("o", t.o, DType::e4m3, t.q.device, ", as o_scale is given");
  } else {
    check_output_dtype(t.o, t.q, t.row_max.has_value());
  }
  check_outer_sizes("o", t.o, "q's", t.q);
  check_same("o", "head_dim", head_dim_of(t.o), "q's", head_dim_of(t.q));
  check_no_overlap("o", t.o);
}

void check_output_scale(const Tensors& t) {
  if (!t.o_scale) {
    return;
  }
  const TensorView& scale = *t.o_scale;
  check_token_tensor("o_scale", scale, kScales, DType::fp32, t);
  check_same("o_scale", "heads", scale.shape[scale.rank - 2], "q's", heads_of(t.q));
  check_same("o_scale", "groups", scale.shape[scale.rank - 1], "head_dim / 128,",
             kDsv4HeadDim / 128);
  check_no_overlap("o_scale", scale);
}

// ---- Keys

void check_fresh_rows(const Tensors& t) {
  if (t.fresh_rows) {
    check_token_tensor("fresh_rows", *t.fresh_rows, kVectors, t.q.dtype, t, ", the dtype of q");
    check_last_dim_is_contiguous("fresh_rows", *t.fresh_rows, "head_dim must be");
    check_same("fresh_rows", "head_dim", t.fresh_rows->shape[t.fresh_rows->rank - 1], "q's",
               head_dim_of(t.q));
  }
}

void check_ring(const Dsv4Scope& scope, const ScopeNames& names) {
  const std::int64_t page_size = scope.rows.shape[1];
  const std::int64_t capacity = capacity_of(scope);
  const bool fits = scope.ring <= page_size || scope.ring % page_size == 0;
  if (scope.ring < 0 || scope.ring > capacity || !fits) {
    fail(names.ring, "is " + std::to_string(scope.ring) + ", must be 0, at most the page size " +
                         std::to_string(page_size) + ", or a multiple of that and at most " +
                         std::to_string(capacity) + ", the rows of a request's pages");
  }
}

void check_bound(const Dsv4Scope& scope, const ScopeNames& names) {
  if (scope.most_keys < 0) {
    fail(names.most_keys, "is " + std::to_string(scope.most_keys) + ", must be at least 0");
  }
}

void check_range(const Dsv4Scope& scope, const ScopeNames& names, const Tensors& t) {
  check_is_absent(names.list_lengths, scope.list_lengths, {names.indices, " is absent"});
  check_token_ints(names.range_end, scope.range_end, kTokens, t);
  check_token_ints(names.range_begin, scope.range_begin, kTokens, t);
  check_int_vector(names.block_table, scope.block_table, kTable, t.q.device);
  const std::int64_t batch = batch_size(t);
  if (scope.block_table) {
    check_same(names.block_table, "batch", scope.block_table->shape[0],
               is_packed(t) ? "cu_seqlens_q's" : "q's", batch);
    if (capacity_of(scope) > kMaxCapacity) {
      fail(names.block_table, "has " + std::to_string(scope.block_table->shape[1]) + " pages of " +
                                  std::to_string(scope.rows.shape[1]) +
                                  " keys for a request, must have less than 2^30 keys in all");
    }
  } else if (scope.rows.shape[0] < batch) {
    fail(names.rows, "has " + std::to_string(scope.rows.shape[0]) + " pages, must have " +
                         std::to_string(batch) + " or more, one for each request, as no " +
                         names.block_table + " is given");
  }
  check_ring(scope, names);
  check_bound(scope, names);
}

void check_list(const Dsv4Scope& scope, const ScopeNames& names, const Tensors& t) {
  const auto check_no_range = [&](const char* argument,
                                  const std::optional<ConstTensorView>& tensor) {
    check_is_absent(argument, tensor, {names.indices, " is given"});
  };
  check_no_range(names.range_end, scope.range_end);
  check_no_range(names.range_begin, scope.range_begin);
  check_no_range(names.block_table, scope.block_table);
  const auto check_is_0 = [&](const char* argument, std::int64_t value) {
    if (value != 0) {
      fail(argument,
           "is " + std::to_string(value) + ", must be 0 where " + names.indices + " is given");
    }
  };
  check_is_0(names.ring, scope.ring);
  check_is_0(names.most_keys, scope.most_keys);
  check_token_ints(names.indices, scope.indices, kLists, t);
  check_last_dim_is_contiguous(names.indices, *scope.indices, "must be");
  check_int_vector(names.list_lengths, scope.list_lengths, kBatch, t.q.device);
  if (scope.list_lengths) {
    check_same(names.list_lengths, "batch", scope.list_lengths->shape[0],
               is_packed(t) ? "cu_seqlens_q's" : "q's", batch_size(t));
  }
}

void check_scopes(const Tensors& t) {
  if (!t.window && !t.compressed && !t.fresh_rows) {
    fail(kWindowNames.rows, "is absent, must be given where neither compressed nor fresh_rows is");
  }
  for_each_scope(t, [&](const Dsv4Scope& scope, const ScopeNames& names) {
    check_kv_rows(names.rows, scope.rows);
    check_device(names.rows, scope.rows, t.q.device, "q");
    if (!scope.range_end && !scope.indices) {
      fail(names.range_end,
           std::string("is absent, must be given where ") + names.indices + " is absent");
    }
    if (scope.indices) {
      check_list(scope, names, t);
    } else {
      check_range(scope, names, t);
    }
  });
}

// ---- Inverse RoPE

void check_rotation(const Tensors& t) {
  check_both_or_none("rotary_cos", t.rotary_cos.has_value(), "rotary_sin",
                     t.rotary_sin.has_value());
  check_both_or_none("rotary_cos", t.rotary_cos.has_value(), "positions", t.positions.has_value());
  if (!t.rotary_cos) {
    return;
  }
  if (t.row_max) {
    check_is_absent("rotary_cos", t.rotary_cos,
                    {"row_max and row_sum are given: o is rotated when it is whole"});
  }
  check_rotary_tables(*t.rotary_cos, *t.rotary_sin, "q", t.q);
  check_dtype("rotary_cos", *t.rotary_cos, DType::fp32);
  check_same("rotary_cos", "pairs", t.rotary_cos->shape[1], "half of the rotated dims,",
             kDsv4RotaryDims / 2);
  check_token_tensor("positions", *t.positions, kTokens, DType::int64, t);
}

// ---- Memory

void check_is_apart_from_scope(const char* argument, const ConstTensorView& output,
                               const Dsv4Scope& scope, const ScopeNames& names) {
  check_is_apart(argument, output,
                 {{names.rows, scope.rows},
                  {names.range_end, scope.range_end},
                  {names.range_begin, scope.range_begin},
                  {names.block_table, scope.block_table},
                  {names.indices, scope.indices},
                  {names.list_lengths, scope.list_lengths}});
}

void check_outputs_are_apart(const Tensors& t) {
  const auto check = [&](const char* argument, const std::optional<TensorView>& output,
                         std::initializer_list<OtherTensor> outputs_behind) {
    if (!output) {
      return;
    }
    check_is_apart(argument, *output,
                   {{"q", t.q},
                    {"fresh_rows", t.fresh_rows},
                    {"sinks", t.sinks},
                    {"rotary_cos", t.rotary_cos},
                    {"rotary_sin", t.rotary_sin},
                    {"positions", t.positions},
                    {"cu_seqlens_q", t.cu_seqlens_q}});
    for_each_scope(t, [&](const Dsv4Scope& scope, const ScopeNames& names) {
      check_is_apart_from_scope(argument, *output, scope, names);
    });
    check_is_apart(argument, *output, outputs_behind);
  };
  const OtherTensor o_scale{"o_scale", t.o_scale};
  const OtherTensor row_max{"row_max", t.row_max};
  const OtherTensor row_sum{"row_sum", t.row_sum};
  check("o", t.o, {{"lse", t.lse}, row_max, row_sum, o_scale});
  check("lse", t.lse, {row_max, row_sum, o_scale});
  check("row_max", t.row_max, {row_sum});
  check("row_sum", t.row_sum, {});
  check("o_scale", t.o_scale, {});
}

}  // namespace

std::int64_t batch_size(const Tensors& t) {
  return t.cu_seqlens_q ? t.cu_seqlens_q->shape[0] - 1 : t.q.shape[0];
}

std::int64_t capacity_of(const Dsv4Scope& scope) {
  return scope.rows.shape[1] * (scope.block_table ? scope.block_table->shape[1] : 1);
}

std::int64_t most_keys_of(const Dsv4Scope& scope) {
  if (scope.indices) {
    return scope.indices->shape[scope.indices->rank - 1];
  }
  const std::int64_t rows = scope.ring > 0 ? scope.ring : capacity_of(scope);
  return scope.most_keys > 0 ? std::min(scope.most_keys, rows) : rows;
}

void check_arguments(const Tensors& t, const Dsv4AttentionOptions& options) {
  check_queries(t);
  check_output(t);
  check_scopes(t);
  check_fresh_rows(t);
  check_sinks(t.sinks, t.q);
  check_statistics({.lse = t.lse, .row_max = t.row_max, .row_sum = t.row_sum}, t.q, is_packed(t));
  check_rotation(t);
  check_output_scale(t);
  check_outputs_are_apart(t);
  check_score_options({.scale = options.scale, .softcap = 0.0f, .window = {}}, head_dim_of(t.q));
}

void check_alignment(const Tensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("q", t.q, kernel.alignment_bytes);
  check_rows_are_aligned("o", t.o, kernel.alignment_bytes);
  if (t.fresh_rows) {
    check_rows_are_aligned("fresh_rows", *t.fresh_rows, kernel.alignment_bytes);
  }
  for_each_scope(t, [&](const Dsv4Scope& scope, const ScopeNames& names) {
    check_kv_rows_are_aligned(names.rows, scope.rows, kernel.alignment_bytes);
    check_elements_are_aligned(names.range_end, scope.range_end);
    check_elements_are_aligned(names.range_begin, scope.range_begin);
    check_elements_are_aligned(names.block_table, scope.block_table);
    check_elements_are_aligned(names.indices, scope.indices);
    check_elements_are_aligned(names.list_lengths, scope.list_lengths);
  });
  check_elements_are_aligned("sinks", t.sinks);
  check_elements_are_aligned("lse", t.lse);
  check_elements_are_aligned("row_max", t.row_max);
  check_elements_are_aligned("row_sum", t.row_sum);
  check_elements_are_aligned("positions", t.positions);
  check_elements_are_aligned("o_scale", t.o_scale);
  check_elements_are_aligned("cu_seqlens_q", t.cu_seqlens_q);
}

}  // namespace tilewright
