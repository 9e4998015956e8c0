#include "ops/attention_checks.hpp"

#include <cmath>
#include <string>

namespace tilewright {
namespace {

constexpr std::array kBatchedStatistics = {"batch", "heads", "seqlen"};
constexpr std::array kPackedStatistics = {"heads", "tokens"};
constexpr std::array kHeads = {"heads"};
constexpr Form kRows{kBatchedRows, kPackedRows};
constexpr Form kStatistics{kBatchedStatistics, kPackedStatistics};

void check_at_least_0(const char* argument, const char* what, double value) {
  if (!(value >= 0 && std::isfinite(value))) {
    fail(argument,
         what + std::string("is ") + std::to_string(value) + ", must be finite and at least 0");
  }
}

// Checks the factors of scores: scale * log2(e), or 2 log2(e) scale / softcap and then softcap.
void check_factors(float softcap, double scale) {
  constexpr double kMost = 1e38;
  if (scale > kMost) {
    fail("scale", "is " + std::to_string(scale) + ", must be at most 1e38");
  }
  if (softcap > kMost) {
    fail("softcap", "is " + std::to_string(softcap) + ", must be at most 1e38");
  }
  if (softcap > 0 && scale / softcap > kMost) {
    fail("softcap",
         "is scale / " + std::to_string(scale / softcap) + ", must be at least scale / 1e38");
  }
}

}  // namespace

void check_form(const char* argument, const ConstTensorView& tensor, const Form& form,
                const char* lengths, bool is_packed) {
  if (is_packed) {
    check_tensor(argument, tensor, form.packed, {", as ", lengths, " is given"});
  } else {
    check_tensor(argument, tensor, form.batched, {", as no ", lengths, " is given"});
  }
}

void check_rows(const char* argument, const ConstTensorView& rows, const char* lengths,
                bool is_packed) {
  check_form(argument, rows, kRows, lengths, is_packed);
  check_last_dim_is_contiguous(argument, rows, "head_dim must be");
}

void check_dtype_and_device(const char* argument, const ConstTensorView& tensor, DType dtype,
                            Device device, const char* why, const char* like) {
  check_dtype(argument, tensor, dtype, why);
  check_device(argument, tensor, device, like);
}

void check_output_dtype(const TensorView& o, const ConstTensorView& q, bool is_unnormalized) {
  if (is_unnormalized) {
    check_dtype_and_device("o", o, DType::fp32, q.device, ", as row_max and row_sum are given");
  } else {
    check_dtype_and_device("o", o, q.dtype, q.device, ", the dtype of q");
  }
}

void check_int_vector(const char* argument, const std::optional<ConstTensorView>& vector,
                      DimNames dims, Device device, const char* like) {
  if (vector) {
    check_tensor(argument, *vector, dims);
    check_dtype_and_device(argument, *vector, DType::int32, device, "", like);
    check_last_dim_is_contiguous(argument, *vector, "must be");
  }
}

void check_cu_seqlens_q(const std::optional<ConstTensorView>& cu_seqlens_q, Device device) {
  check_int_vector("cu_seqlens_q", cu_seqlens_q, kBatchAndOne, device);
  if (cu_seqlens_q && cu_seqlens_q->shape[0] < 2) {
    fail("cu_seqlens_q", "has 1 element, must have batch + 1, which is at least 2");
  }
}

void check_outer_sizes(const char* argument, const ConstTensorView& rows, const char* of,
                       const ConstTensorView& like) {
  const DimNames names = like.rank == 4 ? kRows.batched : kRows.packed;
  for (int i = 0; i + 1 < like.rank; ++i) {
    check_same(argument, names[static_cast<std::size_t>(i)], rows.shape[i], of, like.shape[i]);
  }
}

void check_statistics(const RowResults& results, const ConstTensorView& q, bool is_packed) {
  check_both_or_none("row_max", results.row_max.has_value(), "row_sum",
                     results.row_sum.has_value());
  const auto check = [&](const char* argument, const std::optional<TensorView>& statistic) {
    if (!statistic) {
      return;
    }
    check_form(argument, *statistic, kStatistics, "cu_seqlens_q", is_packed);
    check_dtype_and_device(argument, *statistic, DType::fp32, q.device);
    check_no_overlap(argument, *statistic);
    const int last = statistic->rank - 1;
    if (!is_packed) {
      check_same(argument, "batch", statistic->shape[0], "q's", q.shape[0]);
    }
    check_same(argument, "heads", statistic->shape[last - 1], "q's", heads_of(q));
    check_same(argument, is_packed ? "tokens" : "seqlen", statistic->shape[last], "q's",
               seqlen_of(q));
  };
  check("lse", results.lse);
  check("row_max", results.row_max);
  check("row_sum", results.row_sum);
}

void check_sinks(const std::optional<ConstTensorView>& sinks, const ConstTensorView& q) {
  if (sinks) {
    check_tensor("sinks", *sinks, kHeads);
    check_dtype_and_device("sinks", *sinks, DType::fp32, q.device);
    check_same("sinks", "heads", sinks->shape[0], "q's", heads_of(q));
  }
}

void check_score_options(const ScoreOptions& options, std::int64_t head_dim) {
  check_at_least_0("scale", "", options.scale.value_or(0.0f));
  check_at_least_0("softcap", "", options.softcap);
  check_factors(options.softcap,
                options.scale.value_or(1.0f / std::sqrt(static_cast<float>(head_dim))));
  check_at_least_0("window", "left ", static_cast<double>(options.window.left.value_or(0)));
  check_at_least_0("window", "right ", static_cast<double>(options.window.right.value_or(0)));
}

}  // namespace tilewright
