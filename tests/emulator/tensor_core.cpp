#include "emulator/tensor_core.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <vector>

namespace tilewright::emulator {
namespace {

constexpr int kWarpRows = 16;     // rows of D that one warp has
constexpr int kMaxColumns = 256;  // of D
constexpr int kMaxSteps = 32;     // of k
constexpr int kChunkBytes = 16;   // what lies together in SMEM, whatever the layout

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

// One operand of a warp's matrix product: A as (row, k), B as (k, column).
struct Operands {
  std::array<float, kWarpRows * kMaxSteps> a;
  std::array<float, kMaxSteps * kMaxColumns> b;
  std::array<float, kWarpRows * kMaxColumns> d;
};

Operands& scratch() {
  static thread_local Operands operands;
  return operands;
}

// d (16, n) += a (16, k) b (k, n), all row-major.
void multiply_add(const float* a, int k, const float* b, int n, float* d) {
  constexpr int kTogether = 8;  // columns, in vector registers
  for (int row = 0; row < kWarpRows; ++row) {
    for (int first = 0; first < n; first += kTogether) {
      std::array<float, kTogether> sum;
      std::copy_n(d + row * n + first, kTogether, sum.begin());
      for (int step = 0; step < k; ++step) {
        const float factor = a[row * k + step];
        const float* const values = b + step * n + first;
        for (int i = 0; i < kTogether; ++i) {
          sum[i] += factor * values[i];
        }
      }
      std::copy_n(sum.begin(), kTogether, d + row * n + first);
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
  require(kind.n % 8 == 0 && kind.n >= 8 && kind.n <= kMaxColumns,
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

// An opcode's parts between dots.
std::vector<std::string_view> split(std::string_view opcode) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= opcode.size();) {
    const std::size_t end = std::min(opcode.find('.', begin), opcode.size());
    parts.push_back(opcode.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

struct Shape {
  int m = 0;
  int n = 0;
  int k = 0;
};

// "m16n8k16"
std::optional<Shape> parse_shape(std::string_view text) {
  Shape shape;
  for (const auto& [name, value] : {std::pair{'m', &shape.m}, {'n', &shape.n}, {'k', &shape.k}}) {
    if (text.empty() || text.front() != name) {
      return std::nullopt;
    }
    text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    if (error != std::errc{}) {
      return std::nullopt;
    }
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  }
  return text.empty() ? std::optional(shape) : std::nullopt;
}

// "f32", "bf16", "bf16": the formats of D, A and B, if tensor cores take them together.
struct Formats {
  NumberFormat d, a, b;
};

std::optional<Formats> parse_formats(std::string_view d, std::string_view a, std::string_view b) {
  const auto d_format = format_named(d);
  const auto a_format = format_named(a);
  const auto b_format = format_named(b);
  const auto is_operand = [](std::optional<NumberFormat> format) {
    return format && *format >= NumberFormat::tf32 && *format <= NumberFormat::e5m2;
  };
  if (!is_operand(a_format) || !is_operand(b_format) || bits_of(*a_format) != bits_of(*b_format) ||
      (bits_of(*a_format) != 8 && *a_format != *b_format)) {
    return std::nullopt;
  }
  const bool f16_fits = *a_format == NumberFormat::f16 || bits_of(*a_format) == 8;
  if (d_format != NumberFormat::f32 && !(d_format == NumberFormat::f16 && f16_fits)) {
    return std::nullopt;
  }
  return Formats{*d_format, *a_format, *b_format};
}

// An 8 x 8 matrix of 16-bit elements, as rows of 16 bytes.
using Matrix8x8 = std::array<std::array<std::uint16_t, 8>, 8>;

constexpr std::uint32_t kMatrixRowBytes = sizeof(Matrix8x8::value_type);

// Lane 4 g + t has elements (g, 2 t) and (g, 2 t + 1) of the matrix, or of its transpose.
std::uint32_t fragment_of(const Matrix8x8& matrix, bool transpose, int lane) {
  const int i = lane / 4;
  const int j = lane % 4 * 2;
  const std::uint32_t low = transpose ? matrix[j][i] : matrix[i][j];
  const std::uint32_t high = transpose ? matrix[j + 1][i] : matrix[i][j + 1];
  return low | high << 16;
}

Matrix8x8 matrix_of(const LaneRegisters& fragments, bool transpose) {
  Matrix8x8 matrix;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int i = lane / 4;
    const int j = lane % 4 * 2;
    (transpose ? matrix[j][i] : matrix[i][j]) = static_cast<std::uint16_t>(fragments[lane]);
    (transpose ? matrix[j + 1][i] : matrix[i][j + 1]) =
        static_cast<std::uint16_t>(fragments[lane] >> 16);
  }
  return matrix;
}

void check_matrices(int count, std::size_t registers) {
  require(count == 1 || count == 2 || count == 4, "ldmatrix and stmatrix move 1, 2 or 4 matrices");
  require(registers == static_cast<std::size_t>(count),
          "ldmatrix and stmatrix take a register for each matrix");
}

}  // namespace

int MmaKind::a_registers() const { return k * bits_of(a) / 64; }
int MmaKind::b_registers() const { return k * bits_of(b) / 128; }
int MmaKind::d_registers() const { return d == NumberFormat::f32 ? 4 : 2; }

std::optional<MmaKind> parse_mma(std::string_view opcode) {
  constexpr std::string_view kPrefix = "mma.sync.aligned.";
  if (!opcode.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const auto parts = split(opcode.substr(kPrefix.size()));
  const std::size_t with_kind = parts.size() == 8 && parts[3] == "kind::f8f6f4" ? 1 : 0;
  if (parts.size() != 7 + with_kind || parts[1] != "row" || parts[2] != "col") {
    return std::nullopt;
  }
  const auto shape = parse_shape(parts[0]);
  const auto formats =
      parse_formats(parts[3 + with_kind], parts[4 + with_kind], parts[5 + with_kind]);
  if (!shape || !formats || shape->m != 16 || shape->n != 8 ||
      parts[3 + with_kind] != parts[6 + with_kind]) {
    return std::nullopt;
  }
  const MmaKind kind{shape->k, formats->a, formats->b, formats->d};
  const int bits = kind.k * bits_of(kind.a);
  return bits == 128 || bits == 256 ? std::optional(kind) : std::nullopt;
}

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

std::optional<WgmmaKind> parse_wgmma(std::string_view opcode) {
  constexpr std::string_view kPrefix = "wgmma.mma_async.sync.aligned.";
  if (!opcode.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const auto parts = split(opcode.substr(kPrefix.size()));
  if (parts.size() != 4) {
    return std::nullopt;
  }
  const auto shape = parse_shape(parts[0]);
  const auto formats = parse_formats(parts[1], parts[2], parts[3]);
  if (!shape || !formats || shape->m != 64) {
    return std::nullopt;
  }
  const WgmmaKind kind{.n = shape->n, .a = formats->a, .b = formats->b, .d = formats->d};
  const bool has_n = kind.n % 8 == 0 && kind.n >= 8 && kind.n <= kMaxColumns;
  return has_n && shape->k == kind.k() ? std::optional(kind) : std::nullopt;
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

void ldmatrix(int count, bool transpose, const LaneRegisters& addresses, std::span<LaneRegisters> d,
              SharedMemory shared) {
  check_matrices(count, d.size());
  std::array<Matrix8x8, 4> matrices;  // all are read before d, which may be `addresses`
  for (int row = 0; row < 8 * count; ++row) {
    std::memcpy(&matrices[row / 8][row % 8],
                shared.at(addresses[row], kMatrixRowBytes, kMatrixRowBytes), kMatrixRowBytes);
  }
  for (int i = 0; i < count; ++i) {
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      d[i][lane] = fragment_of(matrices[i], transpose, lane);
    }
  }
}

void stmatrix(int count, bool transpose, const LaneRegisters& addresses,
              std::span<const LaneRegisters> values, SharedMemory shared) {
  check_matrices(count, values.size());
  for (int row = 0; row < 8 * count; ++row) {
    shared.at(addresses[row], kMatrixRowBytes, kMatrixRowBytes);
  }
  for (int i = 0; i < count; ++i) {
    const Matrix8x8 matrix = matrix_of(values[i], transpose);
    for (int row = 0; row < 8; ++row) {
      std::memcpy(shared.at(addresses[8 * i + row], kMatrixRowBytes, kMatrixRowBytes), &matrix[row],
                  kMatrixRowBytes);
    }
  }
}

LaneRegisters movmatrix(const LaneRegisters& values) {
  const Matrix8x8 matrix = matrix_of(values, false);
  LaneRegisters transposed;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    transposed[lane] = fragment_of(matrix, true, lane);
  }
  return transposed;
}

}  // namespace tilewright::emulator
