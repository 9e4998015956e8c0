// The warp- and warpgroup-wide matrix instructions of sm_90a: mma.sync, wgmma, and the moves of
// 8 x 8 matrices between SMEM and registers.
//
// Arithmetic: products are exact, and their sum is FP32, in ascending k, rounded at each step.
// Hardware aligns a step's products to the largest, truncates them and adds them all at once, so
// that its last bits differ; WGMMA of E4M3 and E5M2 keeps fewer bits of the sum than FP32.
//
// Source    PTX ISA, "Matrix multiply-accumulate operation using mma instruction", "Asynchronous
//           Warpgroup Level Matrix Instructions".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "emulator/convert.hpp"
#include "emulator/shared_memory.hpp"

namespace tilewright::emulator {

inline constexpr int kWarpLanes = 32;
inline constexpr int kMaxWgmmaColumns = 256;  // n of wgmma

// One 32-bit register of every lane of a warp.
using LaneRegisters = std::array<std::uint32_t, kWarpLanes>;

// mma.sync.aligned.m16n8kK.row.col. a and b: f16, bf16, tf32, e4m3, e5m2; d and c: f32, or f16.
struct MmaKind {
  int k = 16;
  NumberFormat a = NumberFormat::bf16;
  NumberFormat b = NumberFormat::bf16;
  NumberFormat d = NumberFormat::f32;  // and c

  int a_registers() const;  // 2 or 4
  int b_registers() const;  // 1 or 2
  int d_registers() const;  // 4 for f32, 2 for f16
};

// Reads "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", with or without a kind. Nothing if
// this emulator does not have it.
std::optional<MmaKind> parse_mma(std::string_view opcode);

// D (16, 8) = A (16, k) B (k, 8) + C. `d` may be `c`.
void mma_sync(const MmaKind& kind, std::span<const LaneRegisters> a,
              std::span<const LaneRegisters> b, std::span<const LaneRegisters> c,
              std::span<LaneRegisters> d);

// wgmma.mma_async.m64nNkK, where k is 32 bytes of elements. The opcode gives n, a, b and d, the
// operands the rest. transpose: the operand lies MN-major in SMEM, for 16-bit formats only.
struct WgmmaKind {
  int n = 8;
  NumberFormat a = NumberFormat::bf16;
  NumberFormat b = NumberFormat::bf16;
  NumberFormat d = NumberFormat::f32;
  bool a_in_registers = false;
  bool transpose_a = false;
  bool transpose_b = false;
  int scale_a = 1;  // or -1
  int scale_b = 1;

  int k() const { return 256 / bits_of(a); }
  int d_registers() const { return d == NumberFormat::f32 ? n / 2 : n / 4; }
};

// Reads "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16". Nothing if this emulator does not
// have it.
std::optional<WgmmaKind> parse_wgmma(std::string_view opcode);

// Rows 16 warp to 16 warp + 15 of D (64, n) = A (64, k) B (k, n) + (scale_d ? D : 0): what the warp
// `warp`, 0 to 3, of the warpgroup has. a: 4 registers if A is in registers; otherwise
// `a_descriptor` counts. d: kind.d_registers(). Throws EmulationError for a descriptor that is not
// one, or leaves the window.
void wgmma(const WgmmaKind& kind, int warp, std::span<const LaneRegisters> a,
           std::uint64_t a_descriptor, std::uint64_t b_descriptor, bool scale_d,
           std::span<LaneRegisters> d, SharedMemory shared);

// ldmatrix.m8n8.x{count}(.trans).b16: lane 8 i + r has the address of row r of matrix i. d: `count`
// registers. Throws EmulationError.
void ldmatrix(int count, bool transpose, const LaneRegisters& addresses, std::span<LaneRegisters> d,
              SharedMemory shared);

// stmatrix, likewise.
void stmatrix(int count, bool transpose, const LaneRegisters& addresses,
              std::span<const LaneRegisters> values, SharedMemory shared);

// movmatrix.m8n8.trans.b16.
LaneRegisters movmatrix(const LaneRegisters& values);

}  // namespace tilewright::emulator
