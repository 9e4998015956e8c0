#include "ops/rotate_quantize/checks.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <string>
#include <vector>

#include "common/random_signs.hpp"
#include "ops/descale_checks.hpp"
#include "ops/length_checks.hpp"
#include "ops/overlap.hpp"
#include "ops/rotary_tables.hpp"

namespace tilewright {
namespace {

constexpr std::array kOne = {"1"};
constexpr std::array kSequenceHeads = {"batch", "heads"};
constexpr std::array kBatchedPositions = {"batch", "seqlen"};
constexpr std::array kPackedPositions = {"tokens"};
constexpr Form kPositions{kBatchedPositions, kPackedPositions};

bool is_packed(const RotateQuantizeTensors& t) { return t.cu_seqlens.has_value(); }

void check_dtype_and_device(const char* argument, const ConstTensorView& tensor, DType dtype,
                            const RotateQuantizeTensors& t) {
  check_dtype_and_device(argument, tensor, dtype, t.x.device, "", "x");
}

void check_input(const RotateQuantizeTensors& t) {
  check_rows("x", t.x, "cu_seqlens", is_packed(t));
  check_is_float("x", t.x);
  check_int_vector("cu_seqlens", t.cu_seqlens, kBatchAndOne, t.x.device, "x");
  if (t.cu_seqlens && t.cu_seqlens->shape[0] < 2) {
    fail("cu_seqlens", "has 1 element, must have batch + 1, which is at least 2");
  }
}

void check_outputs(const RotateQuantizeTensors& t) {
  if (t.out_transposed) {
    check_is_absent("out", t.out, {"out_transposed is given"});
    const RowsLike rows{"x", t.x, "cu_seqlens", is_packed(t)};
    check_columns("out_transposed", *t.out_transposed, rows);
    check_column_count("out_transposed", *t.out_transposed, rows, batch_size(t));
    const int dim = t.out_transposed->rank - 2;
    check_same("out_transposed", "head_dim", t.out_transposed->shape[dim], "x's", head_dim_of(t.x));
    check_dtype_and_device("out_transposed", *t.out_transposed, DType::e4m3, t);
    check_no_overlap("out_transposed", *t.out_transposed);
    return;
  }
  check_is_given("out", t.out, {"out_transposed is absent"});
  check_rows("out", *t.out, "cu_seqlens", is_packed(t));
  check_outer_sizes("out", *t.out, "x's", t.x);
  check_same("out", "head_dim", head_dim_of(*t.out), "x's", head_dim_of(t.x));
  check_dtype_and_device("out", *t.out, DType::e4m3, t);
  check_no_overlap("out", *t.out);
}

void check_descales(const RotateQuantizeTensors& t, const RotateQuantizeOptions& options) {
  check_descale_rows(options.descale_rows, "64 or 128");
  if (t.fixed_descale) {
    const ConstTensorView& fixed = *t.fixed_descale;
    check_is_absent("descale", t.descale, {"fixed_descale is given"});
    if (fixed.rank == 1) {
      check_tensor("fixed_descale", fixed, kOne);
      check_same("fixed_descale", "size", fixed.shape[0], "a tensor's one descale,", 1);
    } else {
      check_tensor("fixed_descale", fixed, kSequenceHeads, {", or 1 of one descale"});
      check_same("fixed_descale", "batch", fixed.shape[0], "x's", batch_size(t));
      check_same("fixed_descale", "heads", fixed.shape[1], "x's", heads_of(t.x));
    }
    check_dtype_and_device("fixed_descale", fixed, DType::fp32, t);
    return;
  }
  check_is_given("descale", t.descale, {"fixed_descale is absent"});
  check_blocks("descale", *t.descale,
               {.rows_name = "x's",
                .batch = batch_size(t),
                .heads = heads_of(t.x),
                .length = seqlen_of(t.x),
                .descale_rows = options.descale_rows,
                .is_packed = is_packed(t)});
  check_dtype_and_device("descale", *t.descale, DType::fp32, t);
  check_no_overlap("descale", *t.descale);
}

void check_positions(const RotateQuantizeTensors& t) {
  if (!t.rotary_cos) {
    check_is_absent("rotary_sin", t.rotary_sin, {"rotary_cos is absent"});
    check_is_absent("positions", t.positions, {"rotary_cos is absent"});
    return;
  }
  check_is_given("rotary_sin", t.rotary_sin, {"rotary_cos is given"});
  check_rotary_tables(*t.rotary_cos, *t.rotary_sin, "x", t.x);
  if (!t.positions) {
    if (!is_packed(t) && t.rotary_cos->shape[0] < seqlen_of(t.x)) {
      fail("rotary_cos", "has " + std::to_string(t.rotary_cos->shape[0]) +
                             " positions, must have at least " + std::to_string(seqlen_of(t.x)) +
                             ", those of x");
    }
    return;
  }
  check_form("positions", *t.positions, kPositions, "cu_seqlens", is_packed(t));
  check_dtype_and_device("positions", *t.positions, DType::int64, t);
  check_last_dim_is_contiguous("positions", *t.positions, "must be");
  for (int i = 0; i < t.positions->rank; ++i) {
    check_same("positions", is_packed(t) ? "tokens" : kBatchedPositions[i], t.positions->shape[i],
               "x's", t.x.shape[i]);
  }
}

void check_rotation(const RotateQuantizeTensors& t, const RotateQuantizeOptions& options) {
  const std::int64_t dim = head_dim_of(t.x);
  if (options.seed &&
      (dim < 2 || dim > kMaxRotatedDims || !std::has_single_bit(static_cast<std::uint64_t>(dim)))) {
    fail("x", "has head_dim " + std::to_string(dim) +
                  ", must have a power of two from 2 to 256 where seed is given");
  }
}

void check_outputs_are_apart(const RotateQuantizeTensors& t) {
  const auto check = [&](const char* argument, const std::optional<TensorView>& output) {
    if (output) {
      check_is_apart(argument, *output,
                     {{"x", t.x},
                      {"fixed_descale", t.fixed_descale},
                      {"cu_seqlens", t.cu_seqlens},
                      {"rotary_cos", t.rotary_cos},
                      {"rotary_sin", t.rotary_sin},
                      {"positions", t.positions}});
    }
  };
  check("out", t.out);
  check("out_transposed", t.out_transposed);
  check("descale", t.descale);
  if (t.descale) {
    check_is_apart("descale", *t.descale, {{"out", t.out}, {"out_transposed", t.out_transposed}});
  }
}

// ---- Values

void check_position_values(const std::vector<std::int64_t>& positions, std::size_t count,
                           std::int64_t max_positions) {
  for (std::size_t i = 0; i < count; ++i) {
    if (positions[i] < 0 || positions[i] >= max_positions) {
      fail("positions", "is " + std::to_string(positions[i]) + " for row " + std::to_string(i) +
                            ", must be from 0 to " + std::to_string(max_positions - 1) +
                            ", the positions of rotary_cos");
    }
  }
}

// The longest of packed sequences must find its positions.
void check_longest(const std::vector<int>& cu_seqlens, std::int64_t max_positions) {
  for (std::size_t b = 0; b + 1 < cu_seqlens.size(); ++b) {
    const std::int64_t length = cu_seqlens[b + 1] - cu_seqlens[b];
    if (length > max_positions) {
      fail("rotary_cos", "has " + std::to_string(max_positions) +
                             " positions, must have at least " + std::to_string(length) +
                             ", those of sequence " + std::to_string(b));
    }
  }
}

}  // namespace

void check_arguments(const RotateQuantizeTensors& t, const RotateQuantizeOptions& options) {
  check_input(t);
  check_rotation(t, options);
  check_outputs(t);
  check_descales(t, options);
  check_positions(t);
  check_outputs_are_apart(t);
}

void check_alignment(const RotateQuantizeTensors& t, const KernelInfo& kernel) {
  const auto element_bytes = static_cast<int>(size_bytes(t.x.dtype));
  check_rows_are_aligned("x", t.x, kernel.alignment_bytes);
  if (t.out) {  // it has as many elements in a vector as x
    check_rows_are_aligned("out", *t.out, std::max(kernel.alignment_bytes / element_bytes, 1));
  } else {
    check_rows_are_aligned("out_transposed", *t.out_transposed, kernel.alignment_bytes);
  }
  check_elements_are_aligned("descale", t.descale);
  check_elements_are_aligned("fixed_descale", t.fixed_descale);
  check_elements_are_aligned("cu_seqlens", t.cu_seqlens);
  check_elements_are_aligned("positions", t.positions);
}

void check_values(const RotateQuantizeTensors& t, Stream stream) {
  std::size_t rows = static_cast<std::size_t>(batch_size(t) * seqlen_of(t.x));
  std::vector<int> cu_seqlens;
  if (t.cu_seqlens) {
    cu_seqlens = values_of<int>(*t.cu_seqlens, stream);
    check_cu_seqlens("cu_seqlens", cu_seqlens, seqlen_of(t.x), "x");
    rows = static_cast<std::size_t>(cu_seqlens.back());
  }
  if (t.positions) {
    check_position_values(values_of<std::int64_t>(*t.positions, stream), rows,
                          t.rotary_cos->shape[0]);
  } else if (t.rotary_cos) {
    check_longest(cu_seqlens, t.rotary_cos->shape[0]);
  }
  if (t.fixed_descale) {
    for (const float value : values_of<float>(*t.fixed_descale, stream)) {
      if (!(value >= FLT_MIN && value <= FLT_MAX)) {
        fail("fixed_descale",
             "is " + std::to_string(value) + ", must be finite and at least FLT_MIN");
      }
    }
  }
}

}  // namespace tilewright
