// Checks of arguments that operations of attention share.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "ops/tensor_checks.hpp"
#include "tilewright/attention.hpp"

namespace tilewright {

// A tensor's dimensions, and those that it has instead if its sequences are packed.
struct Form {
  DimNames batched;
  DimNames packed;
};

inline constexpr std::array kBatchedRows = {"batch", "seqlen", "heads", "head_dim"};
inline constexpr std::array kPackedRows = {"tokens", "heads", "head_dim"};
inline constexpr std::array kBatch = {"batch"};
inline constexpr std::array kBatchAndOne = {"batch + 1"};

// Sizes of q, k, v and o, packed or not: ([batch,] seqlen, heads, head_dim).
inline std::int64_t seqlen_of(const ConstTensorView& rows) { return rows.shape[rows.rank - 3]; }
inline std::int64_t heads_of(const ConstTensorView& rows) { return rows.shape[rows.rank - 2]; }
inline std::int64_t head_dim_of(const ConstTensorView& rows) { return rows.shape[rows.rank - 1]; }

// Checks a tensor whose form depends on whether `lengths` are given.
void check_form(const char* argument, const ConstTensorView& tensor, const Form& form,
                const char* lengths, bool is_packed);

// The same for q, k, v or o, whose last dimension is contiguous.
void check_rows(const char* argument, const ConstTensorView& rows, const char* lengths,
                bool is_packed);

// `why` ends the message on a wrong dtype; `like` is the argument that is on `device`.
void check_dtype_and_device(const char* argument, const ConstTensorView& tensor, DType dtype,
                            Device device, const char* why = "", const char* like = "q");

// Checks dtype and device of o.
void check_output_dtype(const TensorView& o, const ConstTensorView& q, bool is_unnormalized);

// Checks integers, one for each sequence or one more, if they are given.
void check_int_vector(const char* argument, const std::optional<ConstTensorView>& vector,
                      DimNames dims, Device device, const char* like = "q");

// The same for cu_seqlens_q, which must be of one sequence at least.
void check_cu_seqlens_q(const std::optional<ConstTensorView>& cu_seqlens_q, Device device);

// Checks that all sizes of rows but the last are those of the argument `of`, whose tensor is
// `like`.
void check_outer_sizes(const char* argument, const ConstTensorView& rows, const char* of,
                       const ConstTensorView& like);

// What a call may write beside o: a number for each row of q.
struct RowResults {
  std::optional<TensorView> lse;
  std::optional<TensorView> row_max;
  std::optional<TensorView> row_sum;
};

void check_statistics(const RowResults& results, const ConstTensorView& q, bool is_packed);

void check_sinks(const std::optional<ConstTensorView>& sinks, const ConstTensorView& q);

// What becomes of the product of a query and a key.
struct ScoreOptions {
  std::optional<float> scale;
  float softcap;
  Window window;
};

void check_score_options(const ScoreOptions& options, std::int64_t head_dim);

}  // namespace tilewright
