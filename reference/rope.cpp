#include "reference/rope.hpp"

#include <span>
#include <vector>

#include "reference/host_tensor.hpp"
#include "reference/rotation.hpp"

namespace tilewright::reference {
namespace {

std::int64_t offset_of(const ConstTensorView& t, std::int64_t token, std::int64_t head) {
  return token * t.stride[0] + (t.rank == 3 ? head * t.stride[1] : 0);
}

}  // namespace

void rope(const RopeTensors& t, const RopeOptions& options) {
  const std::int64_t head_dim = t.x.shape[t.x.rank - 1];
  const std::int64_t dims = 2 * t.rotary_cos.shape[1];
  const std::int64_t first = options.rotates_last ? head_dim - dims : 0;
  const Rotation rotation{t.rotary_cos, t.rotary_sin, options.interleaved, options.inverse};
  for (std::int64_t token = 0; token < t.x.shape[0]; ++token) {
    const auto position = static_cast<std::int64_t>(load(t.positions, token));
    for (std::int64_t head = 0; head < (t.x.rank == 3 ? t.x.shape[1] : 1); ++head) {
      const std::int64_t from = offset_of(t.x, token, head);
      std::vector<double> values = row_values(t.x, from, head_dim);
      rotate(std::span(values).subspan(static_cast<std::size_t>(first),
                                       static_cast<std::size_t>(dims)),
             rotation, position);
      store_rotated(t.out, offset_of(t.out, token, head), values, first, dims, t.x, from);
    }
  }
}

}  // namespace tilewright::reference
