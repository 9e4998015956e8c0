#include "emulator/tensor_core.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace tilewright::emulator {
namespace {

constexpr int kWarpRows = 16;    // rows of D that one warp has
constexpr int kMaxSteps = 32;    // of k
constexpr int kChunkBytes = 16;  // what lies together in SMEM, whatever the layout

int elements_per_word(NumberFormat format) { return 32 / bits_of(format); }

// The values of all codes of a format of at most 16 bits.
std::vector<float> values_of(NumberFormat format) {
  std::vector<float> values(std::size_t{1} << bits_of(format));
  for (std::size_t bits = 0; bits < values.size(); ++bits) {
    values[bits] = static_cast<float>(decode(format, bits));
  }
  return values;
}

template <NumberFormat kFormat>
float value_of(std::uint32_t bits) {
  if constexpr (kFormat == NumberFormat::bf16) {
    return std::bit_cast<float>(bits << 16);
  } else if constexpr (kFormat == NumberFormat::tf32) {
    return std::bit_cast<float>(bits & 0xffffe000);
  } else {
    static const std::vector<float> values = values_of(kFormat);
    return values[bits];
  }
}

template <NumberFormat kFormat>
void decode_words_of(std::span<const std::uint32_t> words, float* values) {
  constexpr int kBits = kFormat == NumberFormat::tf32                                   ? 32
                        : kFormat == NumberFormat::bf16 || kFormat == NumberFormat::f16 ? 16
                                                                                        : 8;
  for (const std::uint32_t word : words) {
    for (int shift = 0; shift < 32; shift += kBits) {
      constexpr std::uint32_t kMask = 0xffffffffu >> (32 - kBits);
      *values++ = value_of<kFormat>(word >> shift & kMask);
    }
  }
}

// The elements of the words, the low bits first.
void decode_words(NumberFormat format, std::span<const std::uint32_t> words, float* values) {
  switch (format) {
    case NumberFormat::bf16:
      return decode_words_of<NumberFormat::bf16>(words, values);
    case NumberFormat::f16:
      return decode_words_of<NumberFormat::f16>(words, values);
    case NumberFormat::tf32:
      return decode_words_of<NumberFormat::tf32>(words, values);
    case NumberFormat::e4m3:
      return decode_words_of<NumberFormat::e4m3>(words, values);
    case NumberFormat::e5m2:
      return decode_words_of<NumberFormat::e5m2>(words, values);
    default:
      throw EmulationError("tensor cores of sm_90a do not take operands of this format");
  }
}

// Element (i, j) of a matrix is data[i stride_i + j stride_j].
struct MatrixView {
  float* data;
  int stride_i;
  int stride_j;

  float& operator()(int i, int j) const { return data[i * stride_i + j * stride_j]; }
};

// What a warp multiplies and adds up: A as (row, k), B as (k, column), D as (row, column).
struct Operands {
  std::array<float, kWarpRows * kMaxSteps> a;
  std::array<float, kMaxSteps * kMaxWgmmaColumns> b;
  std::array<float, kWarpRows * kMaxWgmmaColumns> d;
};

Operands& scratch() {
  static thread_local Operands operands;
  return operands;
}

// d (16, n) += a (16, k) b (k, n), all row-major.
void multiply_add(const float* __restrict a, int k, const float* __restrict b, int n,
                  float* __restrict d) {
  for (int row = 0; row < kWarpRows; ++row) {
    for (int step = 0; step < k; ++step) {
      const float factor = a[row * k + step];
      for (int column = 0; column < n; ++column) {
        d[row * n + column] += factor * b[step * n + column];
      }
    }
  }
}

// A fragment of A (16, k): register r of lane 4 g + t has row g + 8 (r % 2) and the elements from
// k = (4 (r / 2) + t) e on, e to a word.
void load_a_registers(NumberFormat format, std::span<const LaneRegisters> registers,
                      const MatrixView& a) {
  const int together = elements_per_word(format);
  for (int r = 0; r < static_cast<int>(registers.size()); ++r) {
    std::array<float, 4 * kWarpLanes> values;
    decode_words(format, registers[r], values.data());
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      const int row = lane / 4 + 8 * (r % 2);
      const int step = (4 * (r / 2) + lane % 4) * together;
      for (int i = 0; i < together; ++i) {
        a(row, step + i) = values[lane * together + i];
      }
    }
  }
}

// A fragment of B (k, 8): register r of lane 4 g + t has column g and the elements from
// k = (4 r + t) e on.
void load_b_registers(NumberFormat format, std::span<const LaneRegisters> registers,
                      const MatrixView& b) {
  const int together = elements_per_word(format);
  for (int r = 0; r < static_cast<int>(registers.size()); ++r) {
    std::array<float, 4 * kWarpLanes> values;
    decode_words(format, registers[r], values.data());
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      for (int i = 0; i < together; ++i) {
        b((4 * r + lane % 4) * together + i, lane / 4) = values[lane * together + i];
      }
    }
  }
}

// A fragment of D (16, n): lane 4 g + t has rows g and g + 8, of which columns 8 j + 2 t and the
// next one, in the order (column within the pair, row, j). FP16 has a pair in a register.
template <typename Visit>
void for_each_pair(int n, Visit visit) {
  for (int pair = 0; pair < n / 4; ++pair) {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      visit(pair, lane, (lane / 4 + 8 * (pair % 2)) * n + 8 * (pair / 2) + 2 * (lane % 4));
    }
  }
}

void load_d(NumberFormat format, std::span<const LaneRegisters> registers, int n, float* d) {
  for_each_pair(n, [&](int pair, int lane, int at) {
    if (format == NumberFormat::f32) {
      d[at] = std::bit_cast<float>(registers[2 * pair][lane]);
      d[at + 1] = std::bit_cast<float>(registers[2 * pair + 1][lane]);
    } else {
      decode_words(format, {&registers[pair][lane], 1}, d + at);
    }
  });
}

void store_d(NumberFormat format, const float* d, int n, std::span<LaneRegisters> registers) {
  for_each_pair(n, [&](int pair, int lane, int at) {
    if (format == NumberFormat::f32) {
      registers[2 * pair][lane] = std::bit_cast<std::uint32_t>(d[at]);
      registers[2 * pair + 1][lane] = std::bit_cast<std::uint32_t>(d[at + 1]);
    } else {
      registers[pair][lane] =
          static_cast<std::uint32_t>(encode(format, d[at]) | encode(format, d[at + 1]) << 16);
    }
  });
}

void require(bool condition, const char* message) {
  if (!condition) {
    throw EmulationError(message);
  }
}

// An operand of wgmma in SMEM. In chunks of 16 bytes, which hold consecutive elements of the major
// dimension, it is `span` chunks wide: 8 of 128 bytes, 4, 2, or 1 without a swizzle.
class SmemOperand {
 public:
  SmemOperand(std::uint64_t descriptor, NumberFormat format, SharedMemory shared)
      : shared_(shared),
        format_(format),
        start_(field(descriptor, 0)),
        leading_(field(descriptor, 16)),
        stride_(field(descriptor, 32)),
        base_offset_(static_cast<std::uint32_t>(descriptor >> 49) & 7) {
    constexpr std::array<std::uint32_t, 4> kSpans = {1, 8, 4, 2};
    span_ = kSpans[descriptor >> 62];
  }

  // Rows [first, first + rows) of the operand (M or N, k), k in two chunks.
  void load_k_major(int first, int rows, const MatrixView& out) const {
    const int together = kChunkBytes * 8 / bits_of(format_);
    const std::uint32_t next_chunk = span_ == 1 ? leading_ : kChunkBytes;
    for (int row = 0; row < rows; ++row) {
      const auto at = static_cast<std::uint32_t>(first + row);
      for (std::uint32_t chunk = 0; chunk < 2; ++chunk) {
        const auto values =
            load(at % 8 * span_ * kChunkBytes + at / 8 * stride_ + chunk * next_chunk);
        for (int i = 0; i < together; ++i) {
          out(row, static_cast<int>(chunk) * together + i) = values[i];
        }
      }
    }
  }

  // The same of an operand of 16-bit elements that lies M- or N-major.
  void load_mn_major(int first, int rows, const MatrixView& out) const {
    constexpr int kTogether = 8;
    const std::uint32_t next_span = span_ == 1 ? stride_ : leading_;
    const std::uint32_t next_steps = span_ == 1 ? leading_ : stride_;  // 8 of them
    for (int row = 0; row < rows; row += kTogether) {
      const auto chunk = static_cast<std::uint32_t>((first + row) / kTogether);
      const std::uint32_t column = chunk % span_ * kChunkBytes + chunk / span_ * next_span;
      for (std::uint32_t step = 0; step < 16; ++step) {
        const auto values = load(column + step % 8 * span_ * kChunkBytes + step / 8 * next_steps);
        for (int i = 0; i < kTogether; ++i) {
          out(row + i, static_cast<int>(step)) = values[i];
        }
      }
    }
  }

 private:
  static std::uint32_t field(std::uint64_t descriptor, int first_bit) {
    return static_cast<std::uint32_t>(descriptor >> first_bit & 0x3fff) * kChunkBytes;
  }

  std::array<float, kChunkBytes> load(std::uint32_t offset) const {
    const std::uint32_t linear = start_ + offset;
    const std::uint32_t pattern_row = (linear >> 7) - base_offset_;
    const std::uint32_t address = linear ^ (pattern_row & (span_ - 1)) * kChunkBytes;
    std::array<std::uint32_t, kChunkBytes / 4> words;
    std::memcpy(words.data(), shared_.at(address, kChunkBytes, kChunkBytes), kChunkBytes);
    std::array<float, kChunkBytes> values;
    decode_words(format_, words, values.data());
    return values;
  }

  SharedMemory shared_;
  NumberFormat format_;
  std::uint32_t start_;
  std::uint32_t leading_;
  std::uint32_t stride_;
  std::uint32_t base_offset_;
  std::uint32_t span_;
};

void load_smem(std::uint64_t descriptor, NumberFormat format, bool transpose, int first, int rows,
               const MatrixView& out, SharedMemory shared) {
  const SmemOperand operand(descriptor, format, shared);
  if (transpose) {
    operand.load_mn_major(first, rows, out);
  } else {
    operand.load_k_major(first, rows, out);
  }
}

void check(const WgmmaKind& kind, int warp, std::size_t a_registers, std::size_t d_registers) {
  require(kind.n % 8 == 0 && kind.n >= 8 && kind.n <= kMaxWgmmaColumns,
          "wgmma: n must be a multiple of 8 up to 256");
  require(bits_of(kind.a) == bits_of(kind.b), "wgmma: A and B must have elements of one size");
  require(warp >= 0 && warp < 4, "wgmma: a warpgroup has the warps 0 to 3");
  require(d_registers == static_cast<std::size_t>(kind.d_registers()),
          "wgmma: the wrong number of registers for D");
  require(!kind.a_in_registers || a_registers == 4, "wgmma: A takes 4 registers");
  require((!kind.transpose_a && !kind.transpose_b) || bits_of(kind.a) == 16,
          "wgmma: only operands of 16 bits can be transposed");
  require(!kind.transpose_a || !kind.a_in_registers, "wgmma: A in registers is not transposed");
}

}  // namespace

int MmaKind::a_registers() const { return k * bits_of(a) / 64; }
int MmaKind::b_registers() const { return k * bits_of(b) / 128; }
int MmaKind::d_registers() const { return d == NumberFormat::f32 ? 4 : 2; }

void mma_sync(const MmaKind& kind, std::span<const LaneRegisters> a,
              std::span<const LaneRegisters> b, std::span<const LaneRegisters> c,
              std::span<LaneRegisters> d) {
  constexpr int kColumns = 8;
  const auto has = [](const auto& registers, int count) {
    return registers.size() == static_cast<std::size_t>(count);
  };
  require(has(a, kind.a_registers()) && has(b, kind.b_registers()) && has(c, kind.d_registers()) &&
              has(d, kind.d_registers()),
          "mma.sync: the wrong number of registers for an operand");
  Operands& operands = scratch();
  load_a_registers(kind.a, a, {operands.a.data(), kind.k, 1});
  load_b_registers(kind.b, b, {operands.b.data(), kColumns, 1});
  load_d(kind.d, c, kColumns, operands.d.data());
  multiply_add(operands.a.data(), kind.k, operands.b.data(), kColumns, operands.d.data());
  store_d(kind.d, operands.d.data(), kColumns, d);
}

void wgmma(const WgmmaKind& kind, int warp, std::span<const LaneRegisters> a,
           std::uint64_t a_descriptor, std::uint64_t b_descriptor, bool scale_d,
           std::span<LaneRegisters> d, SharedMemory shared) {
  check(kind, warp, a.size(), d.size());
  Operands& operands = scratch();
  const int k = kind.k();
  const MatrixView a_view{operands.a.data(), k, 1};
  if (kind.a_in_registers) {
    load_a_registers(kind.a, a, a_view);
  } else {
    load_smem(a_descriptor, kind.a, kind.transpose_a, kWarpRows * warp, kWarpRows, a_view, shared);
  }
  load_smem(b_descriptor, kind.b, kind.transpose_b, 0, kind.n, {operands.b.data(), 1, kind.n},
            shared);
  if (kind.scale_a * kind.scale_b < 0) {
    std::for_each_n(operands.a.begin(), kWarpRows * k, [](float& value) { value = -value; });
  }
  if (scale_d) {
    load_d(kind.d, d, kind.n, operands.d.data());
  } else {
    std::fill_n(operands.d.begin(), kWarpRows * kind.n, 0.0f);
  }
  multiply_add(operands.a.data(), k, operands.b.data(), kind.n, operands.d.data());
  store_d(kind.d, operands.d.data(), kind.n, d);
}

}  // namespace tilewright::emulator
