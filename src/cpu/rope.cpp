// RoPE on the CPU: rows are shared over all cores, in the arithmetic that the GPU has, too.
//
// It is compiled without fusing products and sums (src/CMakeLists.txt), as rotated_row.hpp asks.
#include <algorithm>

#include "cpu/cpu_rope.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rotated_row.hpp"

namespace tilewright::cpu {
namespace {

// Both of a pair are read before one is written, since `out` may be `x`.
template <typename T>
void rotate_head(const RopeParams& p, const T* x, T* out, std::int64_t position) {
  const int end = p.first_rotated + p.rotary.dims;
  if (!p.is_in_place()) {
    std::copy(x, x + p.first_rotated, out);
    std::copy(x + end, x + p.head_dim, out + end);
  }
  const RotatedRow<T> row(x + p.first_rotated, p.rotary, p.rotary.dims, position);
  T* const rotated = out + p.first_rotated;
  const int step = p.rotary.is_interleaved ? 1 : p.rotary.dims / 2;
  for (int pair = 0; pair < p.rotary.dims / 2; ++pair) {
    const int first = p.rotary.is_interleaved ? 2 * pair : pair;
    const float x1 = row.value(first);
    const float x2 = row.value(first + step);
    from_float_as_gpu(x1, rotated[first]);
    from_float_as_gpu(x2, rotated[first + step]);
  }
}

}  // namespace

void rope(const RopeParams& p, Stream) {
  with_element(p.dtype, [&]<typename T>(T*) {
    parallel_for_rows(p.rows, [&](std::int64_t row) {
      for (int head = 0; head < p.heads && p.has_position(static_cast<int>(row)); ++head) {
        rotate_head(p, static_cast<const T*>(p.x) + p.x_stride.offset(0, row, head),
                    static_cast<T*>(p.out) + p.out_stride.offset(0, row, head), p.positions[row]);
      }
    });
  });
}

}  // namespace tilewright::cpu
