#include "reference/attention_fp8.hpp"

#include <algorithm>
#include <cmath>

#include "reference/dense_rows.hpp"
#include "reference/host_tensor.hpp"
#include "reference/nvfp4.hpp"
#include "reference/rotate_quantize.hpp"
#include "reference/rotated_row.hpp"

namespace tilewright::reference {
namespace {

using Tensors = AttentionFp8Tensors;
using Options = AttentionFp8Options;

std::int64_t integer(const ConstTensorView& t, std::int64_t index) {
  return static_cast<std::int64_t>(load(t, index));
}

// A row's sequence, and its number there.
struct RowPlace {
  std::int64_t sequence;
  std::int64_t row;
};

// Row n of batch entry b. A row behind the last sequence counts as one of it: no result depends on
// its descale.
RowPlace place_of(std::int64_t b, std::int64_t n,
                  const std::optional<ConstTensorView>& cu_seqlens) {
  if (!cu_seqlens) {
    return {b, n};
  }
  std::int64_t sequence = 0;
  while (sequence + 2 < cu_seqlens->shape[0] && integer(*cu_seqlens, sequence + 1) <= n) {
    ++sequence;
  }
  return {sequence, n - integer(*cu_seqlens, sequence)};
}

// The descale of a row of head h. `group` heads share that of a sequence and head.
double descale_of(const std::optional<ConstTensorView>& t, std::int64_t b, std::int64_t n,
                  std::int64_t h, const std::optional<ConstTensorView>& cu_seqlens,
                  std::int64_t group, std::int64_t rows) {
  if (!t) {
    return 1;
  }
  if (t->rank == 1) {
    return load(*t, 0);
  }
  const RowPlace place = place_of(b, n, cu_seqlens);
  if (rows == 0) {
    return load(*t, place.sequence * t->stride[0] + h / group * t->stride[1]);
  }
  if (!cu_seqlens) {
    return load(*t, b * t->stride[0] + h * t->stride[1] + n / rows * t->stride[2]);
  }
  const std::int64_t block =
      integer(*cu_seqlens, place.sequence) / rows + place.sequence + place.row / rows;
  const std::int64_t last = t->shape[1] - 1;
  return load(*t, h * t->stride[0] + std::min(block, last) * t->stride[1]);
}

double e4m3_at(const ConstTensorView& t, std::int64_t offset) {
  return scale_value(DType::e4m3, static_cast<int>(load(t, offset)));
}

DenseRows values_of_rows(const ConstTensorView& t, const std::optional<ConstTensorView>& descale,
                         const std::optional<ConstTensorView>& cu_seqlens, std::int64_t group,
                         std::int64_t rows) {
  const bool is_packed = t.rank == 3;
  return {is_packed ? 1 : t.shape[0], t.shape[t.rank - 3], t.shape[t.rank - 2], t.shape[t.rank - 1],
          [&](std::int64_t b, std::int64_t n, std::int64_t h, std::int64_t d) {
            const std::int64_t offset = (is_packed ? 0 : b * t.stride[0]) +
                                        n * t.stride[t.rank - 3] + h * t.stride[t.rank - 2] + d;
            return descale_of(descale, b, n, h, cu_seqlens, group, rows) * e4m3_at(t, offset);
          }};
}

// The column of a row of transposed values. Packed sequences begin at multiples of 16.
std::int64_t column_of(std::int64_t n, const std::optional<ConstTensorView>& cu_seqlens) {
  if (!cu_seqlens) {
    return n;
  }
  const RowPlace place = place_of(0, n, cu_seqlens);
  return 16 * (integer(*cu_seqlens, place.sequence) / 16 + place.sequence) + place.row;
}

// Transposed values ([B,] Hk, Dv, Nk'), of which `length` columns are rows.
DenseRows values_of_columns(const ConstTensorView& t, const std::optional<ConstTensorView>& descale,
                            const std::optional<ConstTensorView>& cu_seqlens, std::int64_t length,
                            std::int64_t rows) {
  const bool is_packed = t.rank == 3;
  return {is_packed ? 1 : t.shape[0], length, t.shape[t.rank - 3], t.shape[t.rank - 2],
          [&](std::int64_t b, std::int64_t n, std::int64_t h, std::int64_t d) {
            const std::int64_t offset = (is_packed ? 0 : b * t.stride[0]) +
                                        h * t.stride[t.rank - 3] + d * t.stride[t.rank - 2] +
                                        column_of(n, cu_seqlens);
            return descale_of(descale, b, n, h, cu_seqlens, 1, rows) * e4m3_at(t, offset);
          }};
}

DenseInputs dense(const Tensors& t, const Options& options) {
  const std::int64_t rows = options.descale_rows;
  const std::int64_t group = t.q.shape[t.q.rank - 2] / t.k.shape[t.k.rank - 2];
  return {values_of_rows(t.q, t.q_descale, t.cu_seqlens_q, group, rows),
          values_of_rows(t.k, t.k_descale, t.cu_seqlens_k, 1, rows),
          t.v_transposed ? values_of_columns(*t.v_transposed, t.v_descale, t.cu_seqlens_k,
                                             t.k.shape[t.k.rank - 3], rows)
                         : values_of_rows(*t.v, t.v_descale, t.cu_seqlens_k, 1, rows)};
}

// What the oracle of attention() looks at beside the rows.
AttentionTensors attention_tensors(const Tensors& t) {
  return {.q = t.q,
          .k = t.k,
          .v = t.k,
          .o = t.o,
          .lse = t.lse,
          .sinks = t.sinks,
          .cu_seqlens_q = t.cu_seqlens_q,
          .cu_seqlens_k = t.cu_seqlens_k,
          .seqused_k = t.seqused_k,
          .row_max = t.row_max,
          .row_sum = t.row_sum};
}

AttentionOptions attention_options(const Options& options) {
  return {.causal = options.causal,
          .window = options.window,
          .scale = options.scale,
          .softcap = options.softcap};
}

void take_magnitudes(DenseRows& rows) {
  for (double& value : rows.values) {
    value = std::abs(value);
  }
}

// The most that the tensor cores lose of a dot product, which they add 32 products at a time. Each
// product, and the sum before, is cut toward zero at the last of 14 bits, counted from the largest
// one's leading bit; what is smaller is lost as a whole. The new sum is cut to 14 bits, too.
double lost_in_sums(const double* q, const double* k, std::int64_t dim) {
  constexpr std::int64_t kStep = 32;
  constexpr double kLastBit = 0x1p-13;
  double sum = 0;
  double lost = 0;
  for (std::int64_t first = 0; first < dim; first += kStep) {
    const std::int64_t end = std::min(first + kStep, dim);
    double largest = std::abs(sum) + lost;
    for (std::int64_t d = first; d < end; ++d) {
      largest = std::max(largest, std::abs(q[d] * k[d]));
    }
    double lost_here = std::min(std::abs(sum) + lost, kLastBit * largest);
    for (std::int64_t d = first; d < end; ++d) {
      lost_here += std::min(std::abs(q[d] * k[d]), kLastBit * largest);
      sum += q[d] * k[d];
    }
    lost += lost_here;
    lost += kLastBit * (std::abs(sum) + lost);
  }
  return lost;
}

// E4M3 of a tensor, and its descales.
struct Quantized {
  HostTensor rows;
  HostTensor descale;
};

double amax_of(const DenseRows& x, std::int64_t b, std::int64_t h) {
  double amax = 0;
  for (std::int64_t i = 0; i < x.length * x.dim; ++i) {
    amax = std::max(amax, std::abs(x.row(b, h, 0)[i]));
  }
  return amax;
}

// One descale for each sequence and head, of rows that are not packed.
HostTensor head_descales(const ConstTensorView& t) {
  const DenseRows x(t);
  HostTensor descales(DType::fp32, {x.batch, x.heads});
  for (std::int64_t i = 0; i < x.batch * x.heads; ++i) {
    store(descales.view(), i, e4m3_descale(amax_of(x, i / x.heads, i % x.heads)));
  }
  return descales;
}

Quantized quantize(const ConstTensorView& x, const std::optional<ConstTensorView>& cu_seqlens,
                   std::optional<std::uint64_t> seed, int descale_rows, bool is_transposed) {
  std::vector<std::int64_t> shape(x.shape.begin(), x.shape.begin() + x.rank);
  const std::int64_t rows = x.shape[x.rank - 3];
  const std::int64_t heads = x.shape[x.rank - 2];
  if (is_transposed) {
    const std::int64_t sequences = cu_seqlens ? cu_seqlens->shape[0] - 1 : 0;
    shape.erase(shape.end() - 3);
    shape.push_back(16 * (cu_seqlens ? rows / 16 + sequences : (rows + 15) / 16));
  }
  std::vector<std::int64_t> blocks{heads};
  if (cu_seqlens) {
    blocks.push_back(rows / std::max(descale_rows, 1) + cu_seqlens->shape[0] - 1);
  } else {
    blocks = {x.shape[0], heads, (rows + descale_rows - 1) / std::max(descale_rows, 1)};
  }
  Quantized result{HostTensor(DType::e4m3, shape), HostTensor(DType::fp32, blocks)};
  RotateQuantizeTensors tensors{.x = x, .cu_seqlens = cu_seqlens};
  (is_transposed ? tensors.out_transposed : tensors.out) = result.rows.view();
  RotateQuantizeOptions options{.seed = seed};
  if (descale_rows == 0) {
    result.descale = head_descales(x);
    tensors.fixed_descale = result.descale.view();
  } else {
    tensors.descale = result.descale.view();
    options.descale_rows = descale_rows;
  }
  reference::rotate_quantize(tensors, options);
  return result;
}

}  // namespace

AttentionResult attention_fp8(const Tensors& tensors, const Options& options, Rounding rounding) {
  return attention(attention_tensors(tensors), attention_options(options), rounding,
                   dense(tensors, options));
}

Magnitudes magnitudes(const Tensors& tensors, const Options& options) {
  DenseInputs inputs = dense(tensors, options);
  take_magnitudes(inputs.v);
  const AttentionTensors parts = attention_tensors(tensors);
  AttentionResult weighted = attention(parts, attention_options(options), Rounding::exact, inputs);
  AttentionOptions plain = attention_options(options);
  plain.softcap = 0;
  AttentionTensors without_sinks = parts;
  without_sinks.sinks.reset();
  AttentionResult errors =
      attention(without_sinks, plain, Rounding::exact, std::move(inputs), lost_in_sums);
  return {.o = std::move(weighted.o),
          .score_errors = std::move(errors.row_max),
          .sums = std::move(weighted.row_sum)};
}

double rounded_sum_share(std::int64_t kv_len, double l) {
  return 0x1p-4 + 0x1p-6 + 0x1p-18 * static_cast<double>(kv_len) / l;
}

AttentionResult attention_of_quantized(const AttentionTensors& t, const AttentionOptions& options,
                                       const Quantization& quantization) {
  const int rows = quantization.descale_rows;
  const Quantized q = quantize(t.q, t.cu_seqlens_q, quantization.seed, rows, false);
  const Quantized k = quantize(t.k, t.cu_seqlens_k, quantization.seed, rows, false);
  const Quantized v = quantize(t.v, t.cu_seqlens_k, std::nullopt, rows, quantization.v_transposed);
  // The descales of queries are those of their own heads, which blocks can say.
  DenseInputs inputs{
      values_of_rows(q.rows.view(), q.descale.view(), t.cu_seqlens_q, 1, rows),
      values_of_rows(k.rows.view(), k.descale.view(), t.cu_seqlens_k, 1, rows),
      quantization.v_transposed
          ? values_of_columns(v.rows.view(), v.descale.view(), t.cu_seqlens_k,
                              t.v.shape[t.v.rank - 3], rows)
          : values_of_rows(v.rows.view(), v.descale.view(), t.cu_seqlens_k, 1, rows)};
  return attention(t, options, Rounding::exact, std::move(inputs));
}

}  // namespace tilewright::reference
