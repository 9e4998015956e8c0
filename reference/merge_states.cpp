#include "reference/merge_states.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "reference/host_tensor.hpp"
#include "reference/parallel_for.hpp"

namespace tilewright::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// What has a share in a row's result: a part that has keys for it, or the sink.
struct Share {
  double max = -kInfinity;
  double sum = 1;
  std::optional<std::int64_t> o = std::nullopt;  // the offset of its values; none: they are zeros
};

double statistic(const ConstTensorView& t, std::int64_t part, std::int64_t head,
                 std::int64_t token) {
  return load(t, part * t.stride[0] + head * t.stride[1] + token * t.stride[2]);
}

std::vector<Share> shares_of(const MergeStatesTensors& t, std::int64_t token, std::int64_t head) {
  std::vector<Share> shares;
  for (std::int64_t part = 0; part < t.o.shape[0]; ++part) {
    Share share{.max = statistic(t.lse ? *t.lse : *t.row_max, part, head, token),
                .o = part * t.o.stride[0] + token * t.o.stride[1] + head * t.o.stride[2]};
    if (share.max != -kInfinity) {
      share.sum = t.row_sum ? statistic(*t.row_sum, part, head, token) : 1;
      shares.push_back(share);
    }
  }
  if (t.sinks) {
    const double sink = load(*t.sinks, head * t.sinks->stride[0]);
    if (sink != -kInfinity) {
      shares.push_back({.max = sink});
    }
  }
  return shares;
}

// Of infinite maxima each has the weight 1, and all others have none.
double weight_of(const Share& share, double max) {
  if (max == kInfinity) {
    return share.max == kInfinity ? 1 : 0;
  }
  return std::exp(share.max - max);
}

}  // namespace

MergedStates merge_states(const MergeStatesTensors& t) {
  const std::int64_t tokens = t.o.shape[1];
  const std::int64_t heads = t.o.shape[2];
  const std::int64_t dim = t.o.shape[3];
  const auto rows = static_cast<std::size_t>(tokens * heads);
  MergedStates result{.out = std::vector<double>(rows * static_cast<std::size_t>(dim)),
                      .lse = std::vector<double>(rows),
                      .row_max = std::vector<double>(rows),
                      .row_sum = std::vector<double>(rows)};
  parallel_for(tokens * heads, [&](std::int64_t row) {
    const std::int64_t token = row / heads;
    const std::int64_t head = row % heads;
    const std::vector<Share> shares = shares_of(t, token, head);
    double max = -kInfinity;
    bool is_nan = false;
    for (const Share& share : shares) {
      max = std::max(max, share.max);
      is_nan = is_nan || std::isnan(share.max) || std::isnan(share.sum);
    }
    double sum = 0;
    for (const Share& share : shares) {
      sum += weight_of(share, max) * share.sum;
    }
    for (std::int64_t d = 0; d < dim; ++d) {
      double value = 0;
      for (const Share& share : shares) {
        value += share.o ? weight_of(share, max) * load(t.o, *share.o + d) : 0;
      }
      value = t.row_max_out || sum == 0 ? value : value / sum;
      result.out[static_cast<std::size_t>(row * dim + d)] = is_nan ? kNaN : value;
    }
    const auto at = static_cast<std::size_t>(head * tokens + token);
    result.row_max[at] = is_nan ? kNaN : max;
    result.row_sum[at] = is_nan ? kNaN : sum;
    result.lse[at] = is_nan ? kNaN : sum == 0 ? -kInfinity : max + std::log(sum);
  });
  return result;
}

}  // namespace tilewright::reference
