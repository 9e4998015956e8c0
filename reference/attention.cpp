#include "reference/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/half.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::reference {
namespace {

double round_to_bf16(double value) {
  return bf16_to_float(float_to_bf16(static_cast<float>(value)));
}

// A (B, N, H, D) tensor as dense (B, H, N, D) doubles.
struct Dense {
  explicit Dense(const ConstTensorView& tensor)
      : batch(tensor.shape[0]),
        length(tensor.shape[1]),
        heads(tensor.shape[2]),
        dim(tensor.shape[3]) {
    values.reserve(static_cast<std::size_t>(batch * length * heads * dim));
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t n = 0; n < length; ++n) {
          const std::int64_t offset =
              b * tensor.stride[0] + n * tensor.stride[1] + h * tensor.stride[2];
          for (std::int64_t d = 0; d < dim; ++d) {
            values.push_back(load(tensor, offset + d));
          }
        }
      }
    }
  }

  const double* row(std::int64_t b, std::int64_t h, std::int64_t n) const {
    return values.data() + ((b * heads + h) * length + n) * dim;
  }

  std::int64_t batch, length, heads, dim;
  std::vector<double> values;
};

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// What a row's softmax depends on beside its keys.
struct Scoring {
  double scale;
  double softcap;  // 0: none
  double sink;     // -infinity: none
  Rounding rounding;
};

// One query row against the keys [first, end) of its head: writes D outputs, returns the LSE.
double attend(const double* q, const Dense& k, const Dense& v, std::int64_t b, std::int64_t kv_head,
              std::int64_t first, std::int64_t end, const Scoring& scoring, double* o) {
  std::vector<double> s;
  double max = scoring.sink;
  for (std::int64_t j = first; j < end; ++j) {
    const double* const key = k.row(b, kv_head, j);
    double dot = 0;
    for (std::int64_t d = 0; d < k.dim; ++d) {
      dot += q[d] * key[d];
    }
    double score = scoring.scale * dot;
    if (scoring.softcap > 0) {
      score = scoring.softcap * std::tanh(score / scoring.softcap);
    }
    s.push_back(score);
    max = std::max(max, score);
  }
  std::fill(o, o + v.dim, 0.0);
  if (s.empty()) {
    return max;
  }
  const bool rounds = scoring.rounding == Rounding::bf16;
  double sum = std::exp(scoring.sink - max);
  for (std::int64_t j = first; j < end; ++j) {
    const double weight = std::exp(s[static_cast<std::size_t>(j - first)] - max);
    sum += weight;
    const double used = rounds ? round_to_bf16(weight) : weight;
    const double* const value = v.row(b, kv_head, j);
    for (std::int64_t d = 0; d < v.dim; ++d) {
      o[d] += used * value[d];
    }
  }
  for (std::int64_t d = 0; d < v.dim; ++d) {
    o[d] = rounds ? round_to_bf16(o[d] / sum) : o[d] / sum;
  }
  return max + std::log(sum);
}

}  // namespace

AttentionResult attention(const AttentionTensors& tensors, const AttentionOptions& options,
                          Rounding rounding) {
  const Dense q(tensors.q);
  const Dense k(tensors.k);
  const Dense v(tensors.v);
  const double scale = options.scale ? *options.scale : 1.0 / std::sqrt(static_cast<double>(q.dim));
  AttentionResult result;
  result.o.resize(q.values.size());
  result.lse.resize(static_cast<std::size_t>(q.batch * q.heads * q.length));

#pragma omp parallel for schedule(dynamic, 16)
  for (std::int64_t row = 0; row < q.batch * q.heads * q.length; ++row) {
    const std::int64_t i = row % q.length;
    const std::int64_t h = row / q.length % q.heads;
    const std::int64_t b = row / q.length / q.heads;
    const std::int64_t here = i + k.length - q.length;
    std::int64_t first = 0;
    std::int64_t end = k.length;
    if (options.causal) {
      end = std::min(end, here + 1);
    }
    if (options.window.left) {
      first = std::max(first, here - *options.window.left);
    }
    if (options.window.right) {
      end = std::min(end, here + *options.window.right + 1);
    }
    const Scoring scoring{
        .scale = scale,
        .softcap = options.softcap,
        .sink = tensors.sinks ? load(*tensors.sinks, h * tensors.sinks->stride[0]) : kMinusInfinity,
        .rounding = rounding};
    double* const o = result.o.data() + ((b * q.length + i) * q.heads + h) * q.dim;
    result.lse[static_cast<std::size_t>(row)] =
        attend(q.row(b, h, i), k, v, b, h / (q.heads / k.heads), first, end, scoring, o);
  }
  return result;
}

}  // namespace tilewright::reference
