#include "ops/attention_fp8/checks.hpp"

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "common/descale_blocks.hpp"
#include "ops/attention/checks.hpp"
#include "ops/descale_checks.hpp"
#include "ops/length_checks.hpp"
#include "ops/overlap.hpp"

namespace tilewright {
namespace {

constexpr std::array kOne = {"1"};
constexpr std::array kSequenceHeads = {"batch", "kv heads"};

// ---- q, k, v and o

RowsLike keys_of(const AttentionFp8Tensors& t) {
  return {"k", t.k, "cu_seqlens_k", t.cu_seqlens_k.has_value()};
}

void check_v_transposed(const ConstTensorView& v, const AttentionFp8Tensors& t) {
  check_columns("v_transposed", v, keys_of(t));
  check_dtype_and_device("v_transposed", v, DType::e4m3, t.q.device);
}

void check_output(const AttentionFp8Tensors& t) {
  check_rows("o", t.o, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  check_device("o", t.o, t.q.device, "q");
  if (t.row_max) {
    check_dtype("o", t.o, DType::fp32, ", as row_max and row_sum are given");
  } else if (t.o.dtype != DType::bf16 && t.o.dtype != DType::fp16) {
    fail("o", "has dtype " + std::string(name(t.o.dtype)) +
                  ", must be bf16 or fp16, as no row_max and row_sum are given");
  }
}

void check_all_rows(const AttentionFp8Tensors& t) {
  check_rows("q", t.q, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  check_dtype("q", t.q, DType::e4m3);
  check_rows("k", t.k, "cu_seqlens_k", t.cu_seqlens_k.has_value());
  check_dtype_and_device("k", t.k, DType::e4m3, t.q.device);
  if (t.v_transposed) {
    check_is_absent("v", t.v, {"v_transposed is given"});
    check_v_transposed(*t.v_transposed, t);
  } else {
    check_is_given("v", t.v, {"v_transposed is absent"});
    check_rows("v", *t.v, "cu_seqlens_k", t.cu_seqlens_k.has_value());
    check_dtype_and_device("v", *t.v, DType::e4m3, t.q.device);
  }
  check_output(t);
}

// ---- Descales

// The rows that a descale is of.
struct Described {
  const char* rows_name;
  const ConstTensorView& rows;
  const std::optional<ConstTensorView>& cu_seqlens;
};

// Calls f with each descale's name, tensor and rows.
template <typename F>
void for_each_descale(const AttentionFp8Tensors& t, F f) {
  f("q_descale", t.q_descale, Described{"q's", t.q, t.cu_seqlens_q});
  f("k_descale", t.k_descale, Described{"k's", t.k, t.cu_seqlens_k});
  f("v_descale", t.v_descale, Described{"k's", t.k, t.cu_seqlens_k});
}

void check_descale(const char* argument, const ConstTensorView& descale, const Described& of,
                   const AttentionFp8Tensors& t, int descale_rows) {
  check_dtype_and_device(argument, descale, DType::fp32, t.q.device);
  const std::int64_t batch = batch_size(attention_part(t));
  if (descale.rank == 1) {
    check_tensor(argument, descale, kOne);
    check_same(argument, "size", descale.shape[0], "a tensor's one descale,", 1);
  } else if (descale_rows == 0) {
    check_tensor(argument, descale, kSequenceHeads,
                 {", or 1 of one descale, as descale_rows is 0"});
    check_same(argument, "batch", descale.shape[0], "q's", batch);
    check_same(argument, "kv heads", descale.shape[1], "k's", heads_of(t.k));
  } else {
    check_blocks(argument, descale,
                 {.rows_name = of.rows_name,
                  .batch = batch,
                  .heads = heads_of(of.rows),
                  .length = seqlen_of(of.rows),
                  .descale_rows = descale_rows,
                  .is_packed = of.cu_seqlens.has_value()});
  }
}

void check_descales(const AttentionFp8Tensors& t, const AttentionFp8Options& options) {
  if (options.descale_rows != 0) {
    check_descale_rows(options.descale_rows, "0, 64 or 128");
  }
  for_each_descale(t, [&](const char* argument, const std::optional<ConstTensorView>& descale,
                          const Described& of) {
    if (descale) {
      check_descale(argument, *descale, of, t, options.descale_rows);
    }
  });
}

void check_outputs_are_apart_from_descales(const AttentionFp8Tensors& t) {
  const auto check = [&](const char* argument, const std::optional<TensorView>& output) {
    if (output) {
      check_is_apart(argument, *output,
                     {{"v_transposed", t.v_transposed},
                      {"q_descale", t.q_descale},
                      {"k_descale", t.k_descale},
                      {"v_descale", t.v_descale}});
    }
  };
  check("o", t.o);
  check("lse", t.lse);
  check("row_max", t.row_max);
  check("row_sum", t.row_sum);
}

// ---- Values

void check_descale_values(const char* argument, const ConstTensorView& descale, const Described& of,
                          const AttentionFp8Tensors& t, int descale_rows, Stream stream) {
  const std::vector<float> values = values_of<float>(descale, stream);
  const auto check = [&](std::int64_t i) {
    const float value = values[static_cast<std::size_t>(i)];
    if (!(value >= 0 && std::isfinite(value))) {
      fail(argument, "is " + std::to_string(value) + " in element " + std::to_string(i) +
                         ", must be finite and at least 0");
    }
  };
  if (descale.rank == 1 || descale_rows == 0) {
    for (std::int64_t i = 0; i < static_cast<std::int64_t>(values.size()); ++i) {
      check(i);
    }
    return;
  }
  const std::vector<int> cu_seqlens =
      of.cu_seqlens ? values_of<int>(*of.cu_seqlens, stream) : std::vector<int>{};
  const DescaleBlocks blocks{.cu_seqlens = of.cu_seqlens ? cu_seqlens.data() : nullptr,
                             .batch = static_cast<int>(batch_size(attention_part(t))),
                             .len = static_cast<int>(seqlen_of(of.rows)),
                             .rows = descale_rows};
  const std::int64_t heads = descale.shape[descale.rank - 2];
  const std::int64_t entries = descale.rank == 3 ? descale.shape[0] : 1;
  for (std::int64_t i = 0; i < entries * heads * blocks.count(); ++i) {
    const auto entry = static_cast<int>(i / (heads * blocks.count()));
    if (blocks.block(entry, static_cast<int>(i % blocks.count())).count > 0) {
      check(i);
    }
  }
}

}  // namespace

AttentionTensors attention_part(const AttentionFp8Tensors& t) {
  AttentionTensors part{.q = t.q,
                        .k = t.k,
                        .v = t.v ? *t.v : t.v_transposed.value_or(ConstTensorView{}),
                        .o = t.o,
                        .lse = t.lse,
                        .sinks = t.sinks,
                        .cu_seqlens_q = t.cu_seqlens_q,
                        .cu_seqlens_k = t.cu_seqlens_k,
                        .seqused_k = t.seqused_k,
                        .row_max = t.row_max,
                        .row_sum = t.row_sum};
  if (t.v_transposed) {  // ([batch,] heads, head_dim, columns)
    const ConstTensorView& from = *t.v_transposed;
    const int heads = from.rank - 3;
    const auto set = [&](int to, int dim) {
      part.v.shape[to] = from.shape[dim];
      part.v.stride[to] = from.stride[dim];
    };
    set(heads, heads + 2);
    set(heads + 1, heads);
    set(heads + 2, heads + 1);
    part.v.shape[heads] = seqlen_of(t.k);
  }
  return part;
}

AttentionOptions attention_part(const AttentionFp8Options& options) {
  return {.causal = options.causal,
          .window = options.window,
          .scale = options.scale,
          .softcap = options.softcap,
          .batch_invariant = options.batch_invariant};
}

void check_arguments(const AttentionFp8Tensors& t, const AttentionFp8Options& options) {
  check_all_rows(t);
  check_outputs_are_apart_from_descales(t);
  check_all_but_rows(attention_part(t), attention_part(options));
  if (t.v_transposed) {
    check_column_count("v_transposed", *t.v_transposed, keys_of(t), batch_size(attention_part(t)));
  }
  check_descales(t, options);
}

void check_alignment(const AttentionFp8Tensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("q", t.q, kernel.alignment_bytes);
  check_rows_are_aligned("k", t.k, kernel.alignment_bytes);
  if (t.v_transposed) {
    check_rows_are_aligned("v_transposed", *t.v_transposed, kernel.alignment_bytes);
  } else {
    check_rows_are_aligned("v", *t.v, kernel.alignment_bytes);
  }
  check_rows_are_aligned("o", t.o, kernel.alignment_bytes);
  check_elements_are_aligned("q_descale", t.q_descale);
  check_elements_are_aligned("k_descale", t.k_descale);
  check_elements_are_aligned("v_descale", t.v_descale);
  check_vectors_are_aligned(attention_part(t));
}

void check_values(const AttentionFp8Tensors& t, const AttentionFp8Options& options, Stream stream) {
  check_length_values(attention_part(t), stream);
  for_each_descale(t, [&](const char* argument, const std::optional<ConstTensorView>& descale,
                          const Described& of) {
    if (descale) {
      check_descale_values(argument, *descale, of, t, options.descale_rows, stream);
    }
  });
}

}  // namespace tilewright
