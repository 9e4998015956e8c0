// Rotating and quantising on the CPU: blocks of rows are shared over all cores, in the arithmetic
// that the GPU has, too.
//
// It is compiled without fusing products and sums (src/CMakeLists.txt).
#include <algorithm>
#include <vector>

#include "cpu/cpu_rotate_quantize.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rotated_row.hpp"

namespace tilewright::cpu {
namespace {

using Params = RotateQuantizeParams;

std::vector<float>& thread_rows() {
  thread_local std::vector<float> rows;
  return rows;
}

// Signs and butterflies, in their order.
void rotate(const Params& p, float* x) {
  for (int d = 0; d < p.head_dim; ++d) {
    const std::uint32_t word = p.negative_dims.words[d / NegativeDims::kBits];
    x[d] = (word >> d % NegativeDims::kBits & 1u) != 0 ? -x[d] : x[d];
  }
  for (int half = 1; half < p.head_dim; half *= 2) {
    for (int first = 0; first < p.head_dim; first += 2 * half) {
      for (int d = first; d < first + half; ++d) {
        const float a = x[d];
        const float b = x[d + half];
        x[d] = a + b;
        x[d + half] = a - b;
      }
    }
  }
  for (int d = 0; d < p.head_dim; ++d) {
    x[d] += 0.0f;  // -0 becomes 0
  }
}

// Where a block's rows begin: their batch entry, and the first one's number in it.
struct Place {
  int batch;
  int row;
};

Place place_of(const Params& p, const RowBlock& block) {
  return p.blocks.cu_seqlens == nullptr
             ? Place{block.sequence, block.first}
             : Place{0, p.blocks.cu_seqlens[block.sequence] + block.first};
}

// The position of a row of a block; -1 if it is not in the tables.
std::int64_t position_of(const Params& p, const RowBlock& block, const Place& place, int row) {
  const std::int64_t position =
      p.positions == nullptr
          ? block.first + row
          : p.positions[place.batch * p.positions_batch_stride + place.row + row];
  return position >= 0 && position < p.max_positions ? position : -1;
}

// Loads a row of a head, rotated.
template <typename T>
void load_row(const Params& p, const RowBlock& block, int row, int head, float* x) {
  const Place place = place_of(p, block);
  const std::int64_t position = p.rotary.dims > 0 ? position_of(p, block, place, row) : 0;
  if (position < 0) {
    std::fill_n(x, p.head_dim, 0.0f);
    return;
  }
  const RotatedRow<T> source(
      static_cast<const T*>(p.x) + p.x_stride.offset(place.batch, place.row + row, head), p.rotary,
      p.rotary.dims, position);
  for (int d = 0; d < p.head_dim; ++d) {
    x[d] = source.value(d);
  }
  if (p.is_rotated) {
    rotate(p, x);
  }
}

void store_row(const Params& p, const RowBlock& block, int row, int head, const float* x,
               float factor) {
  const Place place = place_of(p, block);
  const int first =
      p.is_transposed ? first_column(p.blocks.cu_seqlens, block.sequence) + block.first : place.row;
  std::uint8_t* const out = p.out + p.out_stride.offset(place.batch, first + row, head);
  for (int d = 0; d < p.head_dim; ++d) {
    out[d * p.out_dim_stride] = to_e4m3_as_gpu(x[d] * factor);
  }
}

// The block `index` of a batch entry, or of all packed sequences, on a head.
template <typename T>
void quantize_block(const Params& p, int entry, int index, int head) {
  const RowBlock block = p.blocks.block(entry, index);
  float* const rows = thread_rows().data();
  float amax = 0.0f;
  for (int row = 0; row < block.count; ++row) {
    float* const x = rows + row * p.head_dim;
    load_row<T>(p, block, row, head, x);
    for (int d = 0; d < p.head_dim; ++d) {
      amax = larger_finite(amax, x[d]);
    }
  }
  float descale = e4m3_descale(amax * p.rotation_factor);
  if (p.is_transposed) {
    descale = power_of_two_from(descale);
  }
  if (p.descale != nullptr) {
    p.descale[p.descale_stride.offset(entry, index, head)] = descale;
  } else {
    descale = p.fixed_descale[p.descale_stride.offset(block.sequence, 0, head)];
  }
  const float factor = p.rotation_factor * (1.0f / descale);
  for (int row = 0; row < block.count; ++row) {
    store_row(p, block, row, head, rows + row * p.head_dim, factor);
  }
}

// Sets a head's columns to 0, which those of no row stay.
void clear_columns(const Params& p, int entry, int head) {
  for (int d = 0; d < p.head_dim; ++d) {
    std::fill_n(p.out + p.out_stride.offset(entry, 0, head) + d * p.out_dim_stride, p.out_columns,
                std::uint8_t{0});
  }
}

template <typename T>
void quantize_all(const Params& p) {
  const std::int64_t blocks = p.blocks.count();
  const std::int64_t entries = p.blocks.cu_seqlens == nullptr ? p.blocks.batch : 1;
  const auto reserve = [&] {
    const auto values = static_cast<std::size_t>(p.blocks.rows * p.head_dim);
    if (thread_rows().size() < values) {
      thread_rows().resize(values);
    }
  };
  if (p.is_transposed) {
    parallel_for_rows(entries * p.heads, [&](std::int64_t i) {
      clear_columns(p, static_cast<int>(i / p.heads), static_cast<int>(i % p.heads));
    });
  }
  parallel_for(entries * p.heads * blocks, 1, reserve, [&](std::int64_t i) {
    const auto entry = static_cast<int>(i / (p.heads * blocks));
    const auto head = static_cast<int>(i / blocks % p.heads);
    quantize_block<T>(p, entry, static_cast<int>(i % blocks), head);
  });
}

}  // namespace

void rotate_quantize(const Params& p, Stream) {
  with_element(p.dtype, [&]<typename T>(T*) { quantize_all<T>(p); });
}

}  // namespace tilewright::cpu
