#include "ops/attention_with_kvcache/checks.hpp"

#include <array>
#include <string>

#include "ops/attention_strides.hpp"
#include "ops/overlap.hpp"

namespace tilewright {
namespace {

using Tensors = AttentionWithKvCacheTensors;

constexpr std::array kWholeCache = {"rows", "capacity", "heads", "head_dim"};
constexpr std::array kPagedCache = {"pages", "page_size", "heads", "head_dim"};
constexpr std::array kTable = {"batch", "max_pages"};
constexpr std::array kGroups = {"groups"};
constexpr std::array kGroupEnds = {"groups + 1"};
constexpr std::array kOne = {"1"};
constexpr std::array kSequenceHeads = {"batch", "heads"};
constexpr std::array kBatchedBits = {"batch", "seqlen"};
constexpr std::array kPackedBits = {"tokens"};
constexpr Form kBits{kBatchedBits, kPackedBits};
constexpr std::int64_t kMaxCapacity = (std::int64_t{1} << 30) - 1;

// The dimensions of the caches.
DimNames cache_dims(const Tensors& t) { return t.block_table ? kPagedCache : kWholeCache; }

const char* batch_source(const Tensors& t) { return t.cu_seqlens_q ? "cu_seqlens_q's" : "q's"; }

// ---- One argument after the other

void check_output(const Tensors& t) {
  check_rows("o", t.o, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  if (t.q.dtype == DType::e4m3 && !t.row_max) {
    check_dtype_and_device("o", t.o, DType::bf16, t.q.device, ", as q has dtype e4m3");
  } else {
    check_output_dtype(t.o, t.q, t.row_max.has_value());
  }
}

void check_queries(const Tensors& t) {
  check_rows("q", t.q, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  check_output(t);
  check_cu_seqlens_q(t.cu_seqlens_q, t.q.device);
  check_outer_sizes("o", t.o, "q's", t.q);
}

void check_caches(const Tensors& t) {
  const DimNames dims = cache_dims(t);
  check_tensor("k_cache", t.k_cache, dims);
  check_last_dim_is_contiguous("k_cache", t.k_cache, "head_dim must be");
  check_tensor("v_cache", t.v_cache, dims);
  check_last_dim_is_contiguous("v_cache", t.v_cache, "head_dim must be");
  if (t.k_cache.dtype != DType::e4m3) {
    const bool is_q_e4m3 = t.q.dtype == DType::e4m3;
    check_dtype("k_cache", t.k_cache, t.q.dtype,
                is_q_e4m3 ? ", the dtype of q" : ", the dtype of q, or e4m3");
  }
  check_device("k_cache", t.k_cache, t.q.device, "q");
  check_dtype_and_device("v_cache", t.v_cache, t.k_cache.dtype, t.q.device,
                         ", the dtype of k_cache");
  check_same("k_cache", "head_dim", head_dim_of(t.k_cache), "q's", head_dim_of(t.q));
  if (heads_of(t.q) % heads_of(t.k_cache) != 0) {
    fail("k_cache", "has " + std::to_string(heads_of(t.k_cache)) + " heads, must divide q's " +
                        std::to_string(heads_of(t.q)) + " heads");
  }
  for (int i = 0; i < 3; ++i) {
    check_same("v_cache", dims[static_cast<std::size_t>(i)], t.v_cache.shape[i], "k_cache's",
               t.k_cache.shape[i]);
  }
  check_same("o", "head_dim", head_dim_of(t.o), "v_cache's", head_dim_of(t.v_cache));
}

// Checks that a tensor has one entry for each sequence.
void check_batch(const char* argument, const std::optional<ConstTensorView>& tensor,
                 const Tensors& t) {
  if (tensor) {
    check_same(argument, "batch", tensor->shape[0], batch_source(t), batch_size(t));
  }
}

// Checks where sequences lie in the caches, and how long they are.
void check_places(const Tensors& t) {
  check_int_vector("cache_seqlens", t.cache_seqlens, kBatch, t.q.device);
  check_int_vector("block_table", t.block_table, kTable, t.q.device);
  check_int_vector("cache_batch_idx", t.cache_batch_idx, kBatch, t.q.device);
  check_int_vector("leftpad_k", t.leftpad_k, kBatch, t.q.device);
  check_batch("cache_seqlens", t.cache_seqlens, t);
  check_batch("block_table", t.block_table, t);
  check_batch("cache_batch_idx", t.cache_batch_idx, t);
  check_batch("leftpad_k", t.leftpad_k, t);
  if (t.block_table && t.cache_batch_idx) {
    fail("cache_batch_idx", "is given, must be absent where block_table is given");
  }
  if (t.block_table && capacity_of(t) > kMaxCapacity) {
    fail("block_table", "has " + std::to_string(t.block_table->shape[1]) + " pages of " +
                            std::to_string(t.k_cache.shape[1]) +
                            " keys for a sequence, must have less than 2^30 keys in all");
  }
  if (!t.block_table && !t.cache_batch_idx && t.k_cache.shape[0] < batch_size(t)) {
    fail("k_cache", "has " + std::to_string(t.k_cache.shape[0]) + " rows, must have " +
                        std::to_string(batch_size(t)) +
                        " or more, one for each sequence, as neither block_table nor "
                        "cache_batch_idx is given");
  }
}

void check_prefixes(const Tensors& t, const AttentionWithKvCacheOptions& options) {
  check_both_or_none("prefix_groups", t.prefix_groups.has_value(), "prefix_seqlens",
                     t.prefix_seqlens.has_value());
  if (!t.prefix_groups) {
    return;
  }
  check_int_vector("prefix_groups", t.prefix_groups, kGroupEnds, t.q.device);
  check_int_vector("prefix_seqlens", t.prefix_seqlens, kGroups, t.q.device);
  const std::int64_t groups = t.prefix_groups->shape[0] - 1;
  if (groups < 1) {
    fail("prefix_groups", "has 1 element, must have at least 2");
  }
  check_same("prefix_seqlens", "groups", t.prefix_seqlens->shape[0], "prefix_groups'", groups);
  if (t.leftpad_k || is_limited(options.window)) {
    fail("prefix_groups", std::string("is given together with ") +
                              (t.leftpad_k ? "leftpad_k" : "a window") + ", must be absent there");
  }
}

// Checks one of k and v, whose rows go to `cache`.
void check_new_rows(const char* argument, const ConstTensorView& rows, const char* cache_argument,
                    const ConstTensorView& cache, const Tensors& t) {
  check_rows(argument, rows, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  check_dtype_and_device(argument, rows, cache.dtype, t.q.device, ", the dtype of the caches");
  if (t.cu_seqlens_q) {
    check_same(argument, "tokens", rows.shape[0], "q's", t.q.shape[0]);
  } else {
    check_same(argument, "batch", rows.shape[0], "q's", t.q.shape[0]);
  }
  check_same(argument, "heads", heads_of(rows), {cache_argument, "'s"}, heads_of(cache));
  check_same(argument, "head_dim", head_dim_of(rows), {cache_argument, "'s"}, head_dim_of(cache));
}

void check_new_rows(const Tensors& t) {
  check_both_or_none("k", t.k.has_value(), "v", t.v.has_value());
  if (!t.k) {
    return;
  }
  check_new_rows("k", *t.k, "k_cache", t.k_cache, t);
  check_new_rows("v", *t.v, "v_cache", t.v_cache, t);
  check_same("v", "seqlen", seqlen_of(*t.v), "k's", seqlen_of(*t.k));
  if (!t.cu_seqlens_q && seqlen_of(*t.k) > capacity_of(t)) {
    fail("k", "has " + std::to_string(seqlen_of(*t.k)) +
                  " rows for a sequence, must have at most " + std::to_string(capacity_of(t)) +
                  ", the capacity of the caches");
  }
}

// Checks a descale of what has this dtype: of one number, or of one for each sequence and head.
void check_descale_of_sequences(const char* argument, const ConstTensorView& descale,
                                const char* owners, DType dtype, const Tensors& t) {
  if (dtype != DType::e4m3) {
    fail(argument, std::string("is given, must be absent where ") + owners + " dtype " +
                       std::string(name(dtype)) + ", no e4m3");
  }
  check_dtype_and_device(argument, descale, DType::fp32, t.q.device);
  if (descale.rank == 1) {
    check_tensor(argument, descale, kOne);
    check_same(argument, "number of elements", descale.shape[0], "one for all,", 1);
  } else if (descale.rank == 2) {
    check_tensor(argument, descale, kSequenceHeads);
    check_same(argument, "batch", descale.shape[0], batch_source(t), batch_size(t));
    check_same(argument, "heads", descale.shape[1], "k_cache's", heads_of(t.k_cache));
  }
}

void check_q_descale(const Tensors& t) {
  if (!t.q_descale) {
    return;
  }
  check_descale_of_sequences("q_descale", *t.q_descale, "q has", t.q.dtype, t);
  if (t.q_descale->rank != 1) {
    check_tensor("q_descale", *t.q_descale, kSequenceHeads, {", or rank 1 (1)"});
  }
}

void check_cache_descale(const char* argument, const std::optional<ConstTensorView>& descale,
                         const Tensors& t) {
  if (!descale) {
    return;
  }
  check_descale_of_sequences(argument, *descale, "caches have", t.k_cache.dtype, t);
  if (descale->rank != 1 && descale->rank != 2) {
    const DimNames rows = cache_dims(t).first(3);
    check_tensor(argument, *descale, rows, {", or rank 1 (1) or 2 (batch, heads)"});
    for (int i = 0; i < 3; ++i) {
      check_same(argument, rows[static_cast<std::size_t>(i)], descale->shape[i], "k_cache's",
                 t.k_cache.shape[i]);
    }
  }
}

void check_tree_mask(const Tensors& t, const AttentionWithKvCacheOptions& options) {
  if (!t.tree_mask) {
    return;
  }
  const ConstTensorView& mask = *t.tree_mask;
  check_form("tree_mask", mask, kBits, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  check_dtype_and_device("tree_mask", mask, DType::int64, t.q.device);
  if (t.cu_seqlens_q) {
    check_same("tree_mask", "tokens", mask.shape[0], "q's", t.q.shape[0]);
  } else {
    check_same("tree_mask", "batch", mask.shape[0], "q's", t.q.shape[0]);
    check_same("tree_mask", "seqlen", mask.shape[1], "q's", t.q.shape[1]);
    if (t.q.shape[1] > kMaxTreeTokens) {
      fail("tree_mask", "is given for " + std::to_string(t.q.shape[1]) +
                            " new tokens of a sequence, q must have at most 64 of each");
    }
  }
  if (options.causal || is_limited(options.window)) {
    fail("tree_mask", std::string("is given together with ") +
                          (options.causal ? "causal" : "a window") + ", must be the only mask");
  }
}

// Checks a length that the host tells, or 0.
void check_told_length(const char* argument, std::int64_t length) {
  if (length < 0) {
    fail(argument, "is " + std::to_string(length) + ", must be at least 0");
  }
}

// ---- Memory

// Checks that what is written shares no memory with what is read or written beside it.
void check_is_apart_from_inputs(const char* argument, const ConstTensorView& output,
                                const Tensors& t) {
  check_is_apart(argument, output,
                 {{"q", t.q},
                  {"cache_seqlens", t.cache_seqlens},
                  {"block_table", t.block_table},
                  {"cache_batch_idx", t.cache_batch_idx},
                  {"leftpad_k", t.leftpad_k},
                  {"prefix_groups", t.prefix_groups},
                  {"prefix_seqlens", t.prefix_seqlens},
                  {"cu_seqlens_q", t.cu_seqlens_q},
                  {"k", t.k},
                  {"v", t.v},
                  {"q_descale", t.q_descale},
                  {"k_descale", t.k_descale},
                  {"v_descale", t.v_descale},
                  {"tree_mask", t.tree_mask},
                  {"sinks", t.sinks}});
}

void check_outputs_are_apart(const Tensors& t) {
  const auto check = [&](const char* argument, const std::optional<TensorView>& output,
                         std::initializer_list<OtherTensor> outputs_behind) {
    if (output) {
      check_is_apart_from_inputs(argument, *output, t);
      check_is_apart(argument, *output, {{"k_cache", t.k_cache}, {"v_cache", t.v_cache}});
      check_is_apart(argument, *output, outputs_behind);
    }
  };
  check("o", t.o, {{"lse", t.lse}, {"row_max", t.row_max}, {"row_sum", t.row_sum}});
  check("lse", t.lse, {{"row_max", t.row_max}, {"row_sum", t.row_sum}});
  check("row_max", t.row_max, {{"row_sum", t.row_sum}});
  check("row_sum", t.row_sum, {});
}

void check_written_caches(const Tensors& t) {
  if (!t.k) {
    return;
  }
  constexpr const char* kWhy = ", as k and v are written to the caches";
  check_no_overlap("k_cache", t.k_cache);
  check_no_overlap("v_cache", t.v_cache);
  check_is_apart("k_cache", t.k_cache, {{"v_cache", t.v_cache}}, kWhy);
  check_is_apart_from_inputs("k_cache", t.k_cache, t);
  check_is_apart_from_inputs("v_cache", t.v_cache, t);
}

}  // namespace

std::int64_t batch_size(const Tensors& t) {
  return t.cu_seqlens_q ? t.cu_seqlens_q->shape[0] - 1 : t.q.shape[0];
}

std::int64_t capacity_of(const Tensors& t) {
  return t.k_cache.shape[1] * (t.block_table ? t.block_table->shape[1] : 1);
}

void check_arguments(const Tensors& t, const AttentionWithKvCacheOptions& options) {
  check_queries(t);
  check_caches(t);
  check_places(t);
  check_new_rows(t);
  check_q_descale(t);
  check_cache_descale("k_descale", t.k_descale, t);
  check_cache_descale("v_descale", t.v_descale, t);
  check_no_overlap("o", t.o);
  check_statistics({.lse = t.lse, .row_max = t.row_max, .row_sum = t.row_sum}, t.q,
                   t.cu_seqlens_q.has_value());
  check_sinks(t.sinks, t.q);
  check_outputs_are_apart(t);
  check_written_caches(t);
  check_score_options(
      {.scale = options.scale, .softcap = options.softcap, .window = options.window},
      head_dim_of(t.q));
  check_told_length("max_seqlen_q", options.max_seqlen_q);
  check_told_length("max_seqlen_k", options.max_seqlen_k);
  check_prefixes(t, options);
  check_tree_mask(t, options);
}

void check_alignment(const Tensors& t, const KernelInfo& kernel) {
  const auto check_rows = [&](const char* argument, const ConstTensorView& rows) {
    check_rows_are_aligned(argument, rows, kernel.alignment_bytes);
  };
  check_rows("q", t.q);
  check_rows("k_cache", t.k_cache);
  check_rows("v_cache", t.v_cache);
  check_rows("o", t.o);
  if (t.k) {
    check_rows("k", *t.k);
    check_rows("v", *t.v);
  }
  check_elements_are_aligned("cache_seqlens", t.cache_seqlens);
  check_elements_are_aligned("block_table", t.block_table);
  check_elements_are_aligned("cache_batch_idx", t.cache_batch_idx);
  check_elements_are_aligned("leftpad_k", t.leftpad_k);
  check_elements_are_aligned("prefix_groups", t.prefix_groups);
  check_elements_are_aligned("prefix_seqlens", t.prefix_seqlens);
  check_elements_are_aligned("cu_seqlens_q", t.cu_seqlens_q);
  check_elements_are_aligned("q_descale", t.q_descale);
  check_elements_are_aligned("k_descale", t.k_descale);
  check_elements_are_aligned("v_descale", t.v_descale);
  check_elements_are_aligned("tree_mask", t.tree_mask);
  check_elements_are_aligned("sinks", t.sinks);
  check_elements_are_aligned("lse", t.lse);
  check_elements_are_aligned("row_max", t.row_max);
  check_elements_are_aligned("row_sum", t.row_sum);
}

}  // namespace tilewright
