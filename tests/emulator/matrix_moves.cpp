// ldmatrix, stmatrix and movmatrix.
#include <cstring>

#include "emulator/tensor_core.hpp"

namespace tilewright::emulator {
namespace {

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
  if ((count != 1 && count != 2 && count != 4) || registers != static_cast<std::size_t>(count)) {
    throw EmulationError("ldmatrix and stmatrix move 1, 2 or 4 matrices, each of one register");
  }
}

}  // namespace

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
