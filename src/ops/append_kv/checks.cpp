#include "ops/append_kv/checks.hpp"

#include <algorithm>
#include <array>

#include "ops/overlap.hpp"
#include "ops/rotary_tables.hpp"

namespace tilewright {
namespace {

constexpr std::array kRows = {"sequences", "tokens", "heads", "head_dim"};
constexpr std::array kCache = {"pages", "page size", "heads", "head_dim"};
constexpr std::array kPages = {"sequences", "pages"};
constexpr std::array kSequences = {"sequences"};
constexpr std::array kSequencesAndOne = {"sequences + 1"};
constexpr std::array kOne = {"1"};
constexpr std::array kHeads = {"sequences", "heads"};

// Is each sequence's row count its own, or the rows' sequences not known?
bool is_packed(const AppendKvTensors& t) {
  return t.slot_mapping.has_value() || t.cu_seqlens_new.has_value();
}

// ---- Which arguments are given

void check_way_of_placing(const AppendKvTensors& t) {
  if (!t.slot_mapping) {
    check_is_given("slot_mapping", t.cache_seqlens, {"cache_seqlens is absent"});
    if (t.block_table) {
      check_is_absent("cache_batch_idx", t.cache_batch_idx, {"block_table is given"});
    }
    return;
  }
  check_is_absent("cache_seqlens", t.cache_seqlens, {"slot_mapping is given"});
  check_is_absent("cu_seqlens_new", t.cu_seqlens_new, {"slot_mapping is given"});
  check_is_absent("block_table", t.block_table, {"slot_mapping is given"});
  check_is_absent("cache_batch_idx", t.cache_batch_idx, {"slot_mapping is given"});
}

void check_rotation_is_whole(const AppendKvTensors& t) {
  if (!t.rotary_cos) {
    check_is_absent("rotary_sin", t.rotary_sin, {"rotary_cos is absent"});
    check_is_absent("positions", t.positions, {"rotary_cos is absent"});
    check_is_absent("q", t.q, {"rotary_cos is absent: queries are rotated only"});
    check_is_absent("q_out", t.q_out, {"q is absent"});
    return;
  }
  check_is_given("rotary_sin", t.rotary_sin, {"rotary_cos is given"});
  if (t.slot_mapping) {
    check_is_given("positions", t.positions, {"rotary_cos and slot_mapping are given"});
  }
  if (t.q) {
    check_is_given("q_out", t.q_out, {"q is given"});
  } else {
    check_is_absent("q_out", t.q_out, {"q is absent"});
  }
}

// ---- One argument after the other

void check_dtype_and_device(const char* argument, const ConstTensorView& tensor, DType dtype,
                            const AppendKvTensors& t, const char* why = "") {
  check_dtype(argument, tensor, dtype, why);
  check_device(argument, tensor, t.k.device, "k");
}

// Checks rows (sequences, tokens, heads, head_dim), or without the sequences.
void check_row_tensor(const char* argument, const ConstTensorView& tensor,
                      const AppendKvTensors& t) {
  if (is_packed(t)) {
    check_tensor(argument, tensor, DimNames(kRows).last<3>(),
                 {", as ", t.slot_mapping ? "slot_mapping" : "cu_seqlens_new", " is given"});
  } else {
    check_tensor(argument, tensor, kRows, {", as neither slot_mapping nor cu_seqlens_new is"});
  }
  check_last_dim_is_contiguous(argument, tensor, "head_dim must be");
}

// Checks that the dimensions but the last two are those of k.
void check_same_rows(const char* argument, const ConstTensorView& tensor,
                     const AppendKvTensors& t) {
  for (int i = 0; i + 2 < t.k.rank; ++i) {
    check_same(argument, kRows[static_cast<std::size_t>(i + 4 - t.k.rank)], tensor.shape[i], "k's",
               t.k.shape[i]);
  }
}

void check_rows(const AppendKvTensors& t) {
  check_row_tensor("k", t.k, t);
  check_is_float("k", t.k);
  constexpr std::int64_t kMaxRows = 1 << 30;
  if (rows_in(t.k) >= kMaxRows) {
    fail("k", "has " + std::to_string(rows_in(t.k)) + " tokens, must have fewer than 2^30");
  }
  check_row_tensor("v", t.v, t);
  check_dtype_and_device("v", t.v, t.k.dtype, t, ", the dtype of k");
  check_same_rows("v", t.v, t);
  check_same("v", "heads", heads_of(t.v), "k's", heads_of(t.k));
}

void check_cache(const char* argument, const TensorView& cache, const char* rows_name,
                 const ConstTensorView& rows, const AppendKvTensors& t) {
  check_tensor(argument, cache, kCache);
  check_last_dim_is_contiguous(argument, cache, "head_dim must be");
  check_device(argument, cache, t.k.device, "k");
  check_same(argument, "heads", cache.shape[2], {rows_name, "'s"}, heads_of(rows));
  check_same(argument, "head_dim", cache.shape[3], {rows_name, "'s"}, head_dim_of(rows));
  check_no_overlap(argument, cache);
}

void check_caches(const AppendKvTensors& t) {
  check_cache("k_cache", t.k_cache, "k", t.k, t);
  if (t.k_cache.dtype != t.k.dtype && t.k_cache.dtype != DType::e4m3) {
    fail("k_cache", "has dtype " + std::string(name(t.k_cache.dtype)) + ", must be " +
                        std::string(name(t.k.dtype)) + ", the dtype of k, or e4m3");
  }
  check_cache("v_cache", t.v_cache, "v", t.v, t);
  check_dtype("v_cache", t.v_cache, t.k_cache.dtype, ", the dtype of k_cache");
  check_same("v_cache", "pages", t.v_cache.shape[0], "k_cache's", t.k_cache.shape[0]);
  check_same("v_cache", "page size", t.v_cache.shape[1], "k_cache's", t.k_cache.shape[1]);
}

// Checks a vector or matrix of integers, if it is given.
void check_integers(const char* argument, const std::optional<ConstTensorView>& integers,
                    DType dtype, DimNames dims, const AppendKvTensors& t) {
  if (integers) {
    check_tensor(argument, *integers, dims);
    check_dtype_and_device(argument, *integers, dtype, t);
    check_last_dim_is_contiguous(argument, *integers, "must be");
  }
}

void check_places(const AppendKvTensors& t) {
  check_integers("slot_mapping", t.slot_mapping, DType::int64, DimNames(kRows).subspan<1, 1>(), t);
  check_integers("cache_seqlens", t.cache_seqlens, DType::int32, kSequences, t);
  check_integers("cu_seqlens_new", t.cu_seqlens_new, DType::int32, kSequencesAndOne, t);
  check_integers("block_table", t.block_table, DType::int32, kPages, t);
  check_integers("cache_batch_idx", t.cache_batch_idx, DType::int32, kSequences, t);
  if (t.slot_mapping) {
    check_same("slot_mapping", "tokens", t.slot_mapping->shape[0], "k's", t.k.shape[0]);
    return;
  }
  const std::int64_t sequences = t.cache_seqlens->shape[0];
  if (t.cu_seqlens_new) {
    check_same("cu_seqlens_new", "sequences (elements less one)", t.cu_seqlens_new->shape[0] - 1,
               "cache_seqlens'", sequences);
  } else {
    check_same("k", "sequences", t.k.shape[0], "cache_seqlens'", sequences);
  }
  if (t.block_table) {
    check_same("block_table", "sequences", t.block_table->shape[0], "cache_seqlens'", sequences);
  } else if (t.cache_batch_idx) {
    check_same("cache_batch_idx", "sequences", t.cache_batch_idx->shape[0], "cache_seqlens'",
               sequences);
  } else {
    check_same("k_cache", "sequences", t.k_cache.shape[0],
               "cache_seqlens', as neither block_table nor cache_batch_idx is given,", sequences);
  }
}

void check_rotation(const AppendKvTensors& t) {
  if (!t.rotary_cos) {
    return;
  }
  check_rotary_tables(*t.rotary_cos, *t.rotary_sin, "k", t.k);
  const DimNames row_dims = DimNames(kRows).first<2>();
  check_integers("positions", t.positions, DType::int64,
                 is_packed(t) ? row_dims.subspan(1) : row_dims, t);
  if (t.positions) {
    check_same_rows("positions", *t.positions, t);
  }
}

void check_queries(const AppendKvTensors& t) {
  if (!t.q) {
    return;
  }
  const auto check = [&](const char* argument, const ConstTensorView& queries) {
    check_row_tensor(argument, queries, t);
    check_dtype_and_device(argument, queries, t.k.dtype, t, ", the dtype of k");
    check_same_rows(argument, queries, t);
    check_same(argument, "head_dim", head_dim_of(queries), "k's", head_dim_of(t.k));
  };
  check("q", *t.q);
  check("q_out", *t.q_out);
  check_same("q_out", "heads", heads_of(*t.q_out), "q's", heads_of(*t.q));
  check_no_overlap("q_out", *t.q_out);
}

// ---- Descales

// The names of a cache's two kinds of descales.
struct DescaleNames {
  const char* given;
  const char* computed;
};

void check_given_descale(const char* argument, const ConstTensorView& descale,
                         const AppendKvTensors& t) {
  if (descale.rank == 2 && t.slot_mapping) {
    fail(argument,
         "has rank 2, must have rank 1 where slot_mapping is given: slots have no sequence");
  }
  if (descale.rank == 2) {
    check_tensor(argument, descale, kHeads);
    check_same(argument, "sequences", descale.shape[0], "cache_seqlens'",
               t.cache_seqlens->shape[0]);
    check_same(argument, "heads", descale.shape[1], "k's", heads_of(t.k));
  } else {
    check_tensor(argument, descale, kOne, {", or 2 (sequences, heads)"});
    check_same(argument, "size", descale.shape[0], "a cache's one descale,", 1);
  }
  check_dtype_and_device(argument, descale, DType::fp32, t);
  check_is_aligned(argument, descale.data, static_cast<int>(size_bytes(descale.dtype)));
}

void check_descale(const DescaleNames& names, const std::optional<ConstTensorView>& given,
                   const std::optional<TensorView>& computed, const AppendKvTensors& t) {
  if (t.k_cache.dtype != DType::e4m3) {
    check_is_absent(names.given, given, {"k_cache is not e4m3"});
    check_is_absent(names.computed, computed, {"k_cache is not e4m3"});
    return;
  }
  if (given) {
    check_is_absent(names.computed, computed, {names.given, " is given"});
    check_given_descale(names.given, *given, t);
    return;
  }
  check_is_given(names.given, computed, {"k_cache is e4m3 and ", names.computed, " is absent"});
  check_tensor(names.computed, *computed, DimNames(kCache).first<3>());
  check_dtype_and_device(names.computed, *computed, DType::fp32, t);
  for (int i = 0; i < 3; ++i) {
    check_same(names.computed, kCache[static_cast<std::size_t>(i)], computed->shape[i], "k_cache's",
               t.k_cache.shape[i]);
  }
  check_no_overlap(names.computed, *computed);
  check_is_aligned(names.computed, computed->data, static_cast<int>(size_bytes(computed->dtype)));
}

void check_outputs_are_apart(const AppendKvTensors& t) {
  const auto check = [&](const char* argument, const std::optional<TensorView>& output,
                         std::initializer_list<OtherTensor> outputs_behind) {
    if (output) {
      check_is_apart(argument, *output,
                     {{"k", t.k},
                      {"v", t.v},
                      {"slot_mapping", t.slot_mapping},
                      {"cache_seqlens", t.cache_seqlens},
                      {"cu_seqlens_new", t.cu_seqlens_new},
                      {"block_table", t.block_table},
                      {"cache_batch_idx", t.cache_batch_idx},
                      {"rotary_cos", t.rotary_cos},
                      {"rotary_sin", t.rotary_sin},
                      {"positions", t.positions},
                      {"q", t.q},
                      {"k_descale", t.k_descale},
                      {"v_descale", t.v_descale}});
      check_is_apart(argument, *output, outputs_behind);
    }
  };
  const OtherTensor q_out{"q_out", t.q_out};
  const OtherTensor k_descale{"computed_k_descale", t.computed_k_descale};
  const OtherTensor v_descale{"computed_v_descale", t.computed_v_descale};
  check("k_cache", t.k_cache, {{"v_cache", t.v_cache}, q_out, k_descale, v_descale});
  check("v_cache", t.v_cache, {q_out, k_descale, v_descale});
  check("q_out", t.q_out, {k_descale, v_descale});
  check("computed_k_descale", t.computed_k_descale, {v_descale});
  check("computed_v_descale", t.computed_v_descale, {});
}

}  // namespace

void check_arguments(const AppendKvTensors& t, const AppendKvOptions&) {
  check_way_of_placing(t);
  check_rotation_is_whole(t);
  check_rows(t);
  check_caches(t);
  check_places(t);
  check_rotation(t);
  check_queries(t);
  check_descale({"k_descale", "computed_k_descale"}, t.k_descale, t.computed_k_descale, t);
  check_descale({"v_descale", "computed_v_descale"}, t.v_descale, t.computed_v_descale, t);
  check_outputs_are_apart(t);
}

void check_alignment(const AppendKvTensors& t, const KernelInfo& kernel) {
  const int alignment_bytes = kernel.alignment_bytes;
  const auto cache_bytes = static_cast<int>(size_bytes(t.k_cache.dtype));
  const auto row_bytes = static_cast<int>(size_bytes(t.k.dtype));
  const int cache_alignment_bytes = std::max(alignment_bytes * cache_bytes / row_bytes, 1);
  check_rows_are_aligned("k", t.k, alignment_bytes);
  check_rows_are_aligned("v", t.v, alignment_bytes);
  check_rows_are_aligned("k_cache", t.k_cache, cache_alignment_bytes);
  check_rows_are_aligned("v_cache", t.v_cache, cache_alignment_bytes);
  if (t.q) {
    check_rows_are_aligned("q", *t.q, alignment_bytes);
    check_rows_are_aligned("q_out", *t.q_out, alignment_bytes);
  }
  check_elements_are_aligned("slot_mapping", t.slot_mapping);
  check_elements_are_aligned("cache_seqlens", t.cache_seqlens);
  check_elements_are_aligned("cu_seqlens_new", t.cu_seqlens_new);
  check_elements_are_aligned("block_table", t.block_table);
  check_elements_are_aligned("cache_batch_idx", t.cache_batch_idx);
  check_elements_are_aligned("positions", t.positions);
}

}  // namespace tilewright
