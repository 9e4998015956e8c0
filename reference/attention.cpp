#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "reference/attention_row.hpp"
#include "reference/dense_rows.hpp"
#include "reference/host_tensor.hpp"
#include "reference/parallel_for.hpp"

namespace tilewright::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Where sequence b's rows lie in a tensor: `length` of them from `first` on, in batch entry
// `batch`.
struct Rows {
  std::int64_t batch;
  std::int64_t first;
  std::int64_t length;
};

Rows rows_of(std::int64_t b, const DenseRows& tensor,
             const std::optional<ConstTensorView>& cu_seqlens) {
  if (!cu_seqlens) {
    return {.batch = b, .first = 0, .length = tensor.length};
  }
  const auto at = [&](std::int64_t i) { return static_cast<std::int64_t>(load(*cu_seqlens, i)); };
  return {.batch = 0, .first = at(b), .length = at(b + 1) - at(b)};
}

// The keys that query i of nq sees among nk.
std::vector<std::int64_t> visible_keys(std::int64_t i, std::int64_t nq, std::int64_t nk,
                                       const AttentionOptions& options) {
  const std::int64_t here = i + nk - nq;
  const std::int64_t all = nq + nk;  // what a wider window sees, it sees too
  std::int64_t first = 0;
  std::int64_t end = nk;
  if (options.causal) {
    end = std::min(end, here + 1);
  }
  if (options.window.left) {
    first = std::max(first, here - std::min(*options.window.left, all));
  }
  if (options.window.right) {
    end = std::min(end, here + std::min(*options.window.right, all) + 1);
  }
  std::vector<std::int64_t> keys(static_cast<std::size_t>(std::max(end - first, std::int64_t{0})));
  std::iota(keys.begin(), keys.end(), first);
  return keys;
}

// What all rows of a call share.
struct Call {
  Scoring scoring(std::int64_t head) const {
    return {.scale = options.scale ? *options.scale : 1.0 / std::sqrt(static_cast<double>(q.dim)),
            .softcap = options.softcap,
            .sink = tensors.sinks ? load(*tensors.sinks, head * tensors.sinks->stride[0])
                                  : kMinusInfinity,
            .rounding = rounding,
            .product = product};
  }

  std::int64_t sequences() const {
    return tensors.cu_seqlens_q ? tensors.cu_seqlens_q->shape[0] - 1 : q.batch;
  }

  const AttentionTensors& tensors;
  const AttentionOptions& options;
  Rounding rounding;
  DenseRows q;
  DenseRows k;
  DenseRows v;
  Product product;
};

AttentionResult result_of(const Call& call) {
  const auto rows = static_cast<std::size_t>(call.q.batch * call.q.heads * call.q.length);
  AttentionResult result;
  result.o.resize(rows * static_cast<std::size_t>(call.v.dim), kNaN);
  result.lse.resize(rows, kNaN);
  result.row_max.resize(rows, kNaN);
  result.row_sum.resize(rows, kNaN);
  return result;
}

// Query i of a sequence on head h: its row of the result.
void attend_row(const Call& call, const Rows& queries, const Rows& keys, std::int64_t h,
                std::int64_t i, AttentionResult& result) {
  const auto& [tensors, options, rounding, q, k, v, product] = call;
  const std::int64_t n = queries.first + i;
  const std::int64_t kv_head = h / (q.heads / k.heads);
  double* const o = result.o.data() + ((queries.batch * q.length + n) * q.heads + h) * v.dim;
  const RowSums sums =
      attend(q.row(queries.batch, h, n), k.row(keys.batch, kv_head, keys.first), k.dim,
             v.row(keys.batch, kv_head, keys.first), v.dim,
             visible_keys(i, queries.length, keys.length, options), call.scoring(h), o);
  if (!tensors.row_max) {
    normalize(o, v.dim, sums.sum);
    round_output(o, v.dim, rounding);
  }
  const auto row = static_cast<std::size_t>((queries.batch * q.heads + h) * q.length + n);
  result.row_max[row] = sums.max;
  result.row_sum[row] = sums.sum;
  result.lse[row] = sums.max + std::log(sums.sum);
}

void attend_sequence(const Call& call, std::int64_t b, AttentionResult& result) {
  const Rows queries = rows_of(b, call.q, call.tensors.cu_seqlens_q);
  Rows keys = rows_of(b, call.k, call.tensors.cu_seqlens_k);
  if (call.tensors.seqused_k) {
    keys.length = static_cast<std::int64_t>(load(*call.tensors.seqused_k, b));
  }
  parallel_for(call.q.heads * queries.length, [&](std::int64_t row) {
    attend_row(call, queries, keys, row / queries.length, row % queries.length, result);
  });
}

}  // namespace

DenseRows::DenseRows(const ConstTensorView& t)
    : DenseRows(t.rank == 4 ? t.shape[0] : 1, t.shape[t.rank - 3], t.shape[t.rank - 2],
                t.shape[t.rank - 1],
                [&](std::int64_t b, std::int64_t n, std::int64_t h, std::int64_t d) {
                  return load(t, (t.rank == 4 ? b * t.stride[0] : 0) + n * t.stride[t.rank - 3] +
                                     h * t.stride[t.rank - 2] + d);
                }) {}

AttentionResult attention(const AttentionTensors& tensors, const AttentionOptions& options,
                          Rounding rounding, DenseInputs inputs, Product product) {
  const Call call{
      tensors, options, rounding, std::move(inputs.q), std::move(inputs.k), std::move(inputs.v),
      product};
  AttentionResult result = result_of(call);
  for (std::int64_t b = 0; b < call.sequences(); ++b) {
    attend_sequence(call, b, result);
  }
  return result;
}

AttentionResult attention(const AttentionTensors& tensors, const AttentionOptions& options,
                          Rounding rounding) {
  return attention(tensors, options, rounding,
                   {DenseRows(tensors.q), DenseRows(tensors.k), DenseRows(tensors.v)});
}

}  // namespace tilewright::reference
