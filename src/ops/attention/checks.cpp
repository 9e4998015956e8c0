#include "ops/attention/checks.hpp"

#include <string>
#include <vector>

#include "ops/length_checks.hpp"
#include "ops/overlap.hpp"

namespace tilewright {
namespace {

// ---- One argument after the other

void check_all_rows(const AttentionTensors& t) {
  check_rows("q", t.q, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  check_rows("k", t.k, "cu_seqlens_k", t.cu_seqlens_k.has_value());
  check_rows("v", t.v, "cu_seqlens_k", t.cu_seqlens_k.has_value());
  check_rows("o", t.o, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  check_dtype_and_device("k", t.k, t.q.dtype, t.q.device, ", the dtype of q");
  check_dtype_and_device("v", t.v, t.q.dtype, t.q.device, ", the dtype of q");
  check_output_dtype(t.o, t.q, t.row_max.has_value());
}

// Checks cu_seqlens_q, cu_seqlens_k and seqused_k, each by itself.
void check_length_vectors(const AttentionTensors& t) {
  check_cu_seqlens_q(t.cu_seqlens_q, t.q.device);
  check_int_vector("cu_seqlens_k", t.cu_seqlens_k, kBatchAndOne, t.q.device);
  check_int_vector("seqused_k", t.seqused_k, kBatch, t.q.device);
}

void check_batch(const AttentionTensors& t) {
  const std::int64_t batch = batch_size(t);
  const char* const of = t.cu_seqlens_q ? "cu_seqlens_q's" : "q's";
  if (t.cu_seqlens_k) {
    check_same("cu_seqlens_k", "batch (elements less one)", t.cu_seqlens_k->shape[0] - 1, of,
               batch);
  } else {
    check_same("k", "batch", t.k.shape[0], of, batch);
  }
  if (t.seqused_k) {
    check_same("seqused_k", "batch", t.seqused_k->shape[0], of, batch);
  }
}

void check_shapes(const AttentionTensors& t) {
  check_batch(t);
  check_same("k", "head_dim", head_dim_of(t.k), "q's", head_dim_of(t.q));
  if (heads_of(t.q) % heads_of(t.k) != 0) {
    fail("k", "has " + std::to_string(heads_of(t.k)) + " heads, must divide q's " +
                  std::to_string(heads_of(t.q)) + " heads");
  }
  check_outer_sizes("v", t.v, "k's", t.k);
  check_outer_sizes("o", t.o, "q's", t.q);
  check_same("o", "head_dim", head_dim_of(t.o), "v's", head_dim_of(t.v));
}

void check_outputs_are_apart(const AttentionTensors& t) {
  const auto check = [&](const char* argument, const std::optional<TensorView>& output,
                         std::initializer_list<OtherTensor> outputs_behind) {
    if (output) {
      check_is_apart(argument, *output,
                     {{"q", t.q},
                      {"k", t.k},
                      {"v", t.v},
                      {"sinks", t.sinks},
                      {"cu_seqlens_q", t.cu_seqlens_q},
                      {"cu_seqlens_k", t.cu_seqlens_k},
                      {"seqused_k", t.seqused_k}});
      check_is_apart(argument, *output, outputs_behind);
    }
  };
  check("o", t.o, {{"lse", t.lse}, {"row_max", t.row_max}, {"row_sum", t.row_sum}});
  check("lse", t.lse, {{"row_max", t.row_max}, {"row_sum", t.row_sum}});
  check("row_max", t.row_max, {{"row_sum", t.row_sum}});
  check("row_sum", t.row_sum, {});
}

// ---- Values of lengths

void check_seqused_k(const std::vector<int>& used, const std::vector<int>& cu_seqlens_k,
                     std::int64_t kv_len) {
  for (std::size_t b = 0; b < used.size(); ++b) {
    const std::int64_t length =
        cu_seqlens_k.empty() ? kv_len : cu_seqlens_k[b + 1] - cu_seqlens_k[b];
    if (used[b] < 0 || used[b] > length) {
      fail("seqused_k", "is " + std::to_string(used[b]) + " for sequence " + std::to_string(b) +
                            ", must be between 0 and its length " + std::to_string(length));
    }
  }
}

}  // namespace

std::int64_t batch_size(const AttentionTensors& t) {
  return t.cu_seqlens_q ? t.cu_seqlens_q->shape[0] - 1 : t.q.shape[0];
}

void check_arguments(const AttentionTensors& tensors, const AttentionOptions& options) {
  check_all_rows(tensors);
  check_all_but_rows(tensors, options);
}

void check_all_but_rows(const AttentionTensors& tensors, const AttentionOptions& options) {
  check_length_vectors(tensors);
  check_shapes(tensors);
  check_no_overlap("o", tensors.o);
  check_statistics({.lse = tensors.lse, .row_max = tensors.row_max, .row_sum = tensors.row_sum},
                   tensors.q, tensors.cu_seqlens_q.has_value());
  check_sinks(tensors.sinks, tensors.q);
  check_outputs_are_apart(tensors);
  check_score_options(
      {.scale = options.scale, .softcap = options.softcap, .window = options.window},
      head_dim_of(tensors.q));
}

void check_alignment(const AttentionTensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("q", t.q, kernel.alignment_bytes);
  check_rows_are_aligned("k", t.k, kernel.alignment_bytes);
  check_rows_are_aligned("v", t.v, kernel.alignment_bytes);
  check_rows_are_aligned("o", t.o, kernel.alignment_bytes);
  check_vectors_are_aligned(t);
}

void check_vectors_are_aligned(const AttentionTensors& t) {
  check_elements_are_aligned("lse", t.lse);
  check_elements_are_aligned("row_max", t.row_max);
  check_elements_are_aligned("row_sum", t.row_sum);
  check_elements_are_aligned("sinks", t.sinks);
  check_elements_are_aligned("cu_seqlens_q", t.cu_seqlens_q);
  check_elements_are_aligned("cu_seqlens_k", t.cu_seqlens_k);
  check_elements_are_aligned("seqused_k", t.seqused_k);
}

void check_length_values(const AttentionTensors& t, Stream stream) {
  if (t.cu_seqlens_q) {
    check_cu_seqlens("cu_seqlens_q", values_of<int>(*t.cu_seqlens_q, stream), seqlen_of(t.q), "q");
  }
  std::vector<int> cu_seqlens_k;
  if (t.cu_seqlens_k) {
    cu_seqlens_k = values_of<int>(*t.cu_seqlens_k, stream);
    check_cu_seqlens("cu_seqlens_k", cu_seqlens_k, seqlen_of(t.k), "k");
  }
  if (t.seqused_k) {
    check_seqused_k(values_of<int>(*t.seqused_k, stream), cu_seqlens_k, seqlen_of(t.k));
  }
}

}  // namespace tilewright
