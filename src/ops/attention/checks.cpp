#include "ops/attention/checks.hpp"

#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/length_checks.hpp"
#include "ops/overlap.hpp"

namespace tilewright {
namespace {

// A tensor's dimensions, and those that it has instead if its sequences are packed.
struct Form {
  DimNames batched;
  DimNames packed;
};

constexpr std::array kBatchedRows = {"batch", "seqlen", "heads", "head_dim"};
constexpr std::array kPackedRows = {"tokens", "heads", "head_dim"};
constexpr std::array kBatchedStatistics = {"batch", "heads", "seqlen"};
constexpr std::array kPackedStatistics = {"heads", "tokens"};
constexpr std::array kHeads = {"heads"};
constexpr std::array kBatch = {"batch"};
constexpr std::array kBatchAndOne = {"batch + 1"};
constexpr Form kRows{kBatchedRows, kPackedRows};
constexpr Form kStatistics{kBatchedStatistics, kPackedStatistics};

// The same for a tensor whose form depends on whether `lengths` are given.
void check_tensor(const char* argument, const ConstTensorView& tensor, const Form& form,
                  const char* lengths, bool is_packed) {
  if (is_packed) {
    check_tensor(argument, tensor, form.packed, {", as ", lengths, " is given"});
  } else {
    check_tensor(argument, tensor, form.batched, {", as no ", lengths, " is given"});
  }
}

// `why` ends the message on a wrong dtype.
void check_dtype_and_device(const char* argument, const ConstTensorView& tensor, DType dtype,
                            Device device, const char* why = "") {
  check_dtype(argument, tensor, dtype, why);
  check_device(argument, tensor, device, "q");
}

// ---- One argument after the other

void check_rows(const AttentionTensors& t) {
  const auto check = [&](const char* argument, const ConstTensorView& tensor, const char* lengths,
                         bool is_packed) {
    check_tensor(argument, tensor, kRows, lengths, is_packed);
    check_last_dim_is_contiguous(argument, tensor, "head_dim must be");
  };
  check("q", t.q, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  check("k", t.k, "cu_seqlens_k", t.cu_seqlens_k.has_value());
  check("v", t.v, "cu_seqlens_k", t.cu_seqlens_k.has_value());
  check("o", t.o, "cu_seqlens_q", t.cu_seqlens_q.has_value());
  check_dtype_and_device("k", t.k, t.q.dtype, t.q.device, ", the dtype of q");
  check_dtype_and_device("v", t.v, t.q.dtype, t.q.device, ", the dtype of q");
  if (t.row_max) {
    check_dtype_and_device("o", t.o, DType::fp32, t.q.device, ", as row_max and row_sum are given");
  } else {
    check_dtype_and_device("o", t.o, t.q.dtype, t.q.device, ", the dtype of q");
  }
}

// Checks cu_seqlens_q, cu_seqlens_k and seqused_k, each by itself.
void check_length_vectors(const AttentionTensors& t) {
  const auto check = [&](const char* argument, const std::optional<ConstTensorView>& lengths,
                         DimNames dims) {
    if (lengths) {
      check_tensor(argument, *lengths, dims);
      check_dtype_and_device(argument, *lengths, DType::int32, t.q.device);
      check_last_dim_is_contiguous(argument, *lengths, "must be");
    }
  };
  check("cu_seqlens_q", t.cu_seqlens_q, kBatchAndOne);
  check("cu_seqlens_k", t.cu_seqlens_k, kBatchAndOne);
  check("seqused_k", t.seqused_k, kBatch);
  if (t.cu_seqlens_q && t.cu_seqlens_q->shape[0] < 2) {
    fail("cu_seqlens_q", "has 1 element, must have batch + 1, which is at least 2");
  }
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
  const auto check_outer = [](const char* argument, const ConstTensorView& tensor, const char* of,
                              const ConstTensorView& like) {
    const DimNames names = like.rank == 4 ? kRows.batched : kRows.packed;
    for (int i = 0; i + 1 < like.rank; ++i) {
      check_same(argument, names[static_cast<std::size_t>(i)], tensor.shape[i], of, like.shape[i]);
    }
  };
  check_outer("v", t.v, "k's", t.k);
  check_outer("o", t.o, "q's", t.q);
  check_same("o", "head_dim", head_dim_of(t.o), "v's", head_dim_of(t.v));
}

// Checks lse, row_max and row_sum, which have a number for each query row.
void check_statistics(const AttentionTensors& t) {
  if (t.row_max.has_value() != t.row_sum.has_value()) {
    const char* const absent = t.row_max ? "row_sum" : "row_max";
    const char* const given = t.row_max ? "row_max" : "row_sum";
    fail(absent, std::string("is absent, must be given where ") + given + " is");
  }
  const auto check = [&](const char* argument, const std::optional<TensorView>& statistic) {
    if (!statistic) {
      return;
    }
    check_tensor(argument, *statistic, kStatistics, "cu_seqlens_q", t.cu_seqlens_q.has_value());
    check_dtype_and_device(argument, *statistic, DType::fp32, t.q.device);
    check_no_overlap(argument, *statistic);
    const int last = statistic->rank - 1;
    if (!t.cu_seqlens_q) {
      check_same(argument, "batch", statistic->shape[0], "q's", t.q.shape[0]);
    }
    check_same(argument, "heads", statistic->shape[last - 1], "q's", heads_of(t.q));
    check_same(argument, t.cu_seqlens_q ? "tokens" : "seqlen", statistic->shape[last], "q's",
               seqlen_of(t.q));
  };
  check("lse", t.lse);
  check("row_max", t.row_max);
  check("row_sum", t.row_sum);
}

void check_sinks(const AttentionTensors& t) {
  if (t.sinks) {
    check_tensor("sinks", *t.sinks, kHeads);
    check_dtype_and_device("sinks", *t.sinks, DType::fp32, t.q.device);
    check_same("sinks", "heads", t.sinks->shape[0], "q's", heads_of(t.q));
  }
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

void check_at_least_0(const char* argument, const char* what, double value) {
  if (!(value >= 0 && std::isfinite(value))) {
    fail(argument,
         what + std::string("is ") + std::to_string(value) + ", must be finite and at least 0");
  }
}

// Checks the factors of scores: scale * log2(e), or 2 log2(e) scale / softcap and then softcap.
void check_factors(const AttentionOptions& options, double scale) {
  constexpr double kMost = 1e38;
  if (scale > kMost) {
    fail("scale", "is " + std::to_string(scale) + ", must be at most 1e38");
  }
  if (options.softcap > kMost) {
    fail("softcap", "is " + std::to_string(options.softcap) + ", must be at most 1e38");
  }
  if (options.softcap > 0 && scale / options.softcap > kMost) {
    fail("softcap", "is scale / " + std::to_string(scale / options.softcap) +
                        ", must be at least scale / 1e38");
  }
}

void check_options(const AttentionTensors& t, const AttentionOptions& options) {
  check_at_least_0("scale", "", options.scale.value_or(0.0f));
  check_at_least_0("softcap", "", options.softcap);
  check_factors(options,
                options.scale.value_or(1.0f / std::sqrt(static_cast<float>(head_dim_of(t.q)))));
  check_at_least_0("window", "left ", static_cast<double>(options.window.left.value_or(0)));
  check_at_least_0("window", "right ", static_cast<double>(options.window.right.value_or(0)));
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
  check_rows(tensors);
  check_length_vectors(tensors);
  check_shapes(tensors);
  check_no_overlap("o", tensors.o);
  check_statistics(tensors);
  check_sinks(tensors);
  check_outputs_are_apart(tensors);
  check_options(tensors, options);
}

void check_alignment(const AttentionTensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("q", t.q, kernel.alignment_bytes);
  check_rows_are_aligned("k", t.k, kernel.alignment_bytes);
  check_rows_are_aligned("v", t.v, kernel.alignment_bytes);
  check_rows_are_aligned("o", t.o, kernel.alignment_bytes);
  const auto check_elements = [](const char* argument, const auto& tensor) {
    if (tensor) {
      check_is_aligned(argument, tensor->data, static_cast<int>(size_bytes(tensor->dtype)));
    }
  };
  check_elements("lse", t.lse);
  check_elements("row_max", t.row_max);
  check_elements("row_sum", t.row_sum);
  check_elements("sinks", t.sinks);
  check_elements("cu_seqlens_q", t.cu_seqlens_q);
  check_elements("cu_seqlens_k", t.cu_seqlens_k);
  check_elements("seqused_k", t.seqused_k);
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
