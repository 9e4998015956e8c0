// The emulated matrix instructions against CuTe's layouts of fragments and of SMEM, on the host.
// Operands are small integers, so that sums are exact in any order.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstring>
#include <cute/arch/mma_sm80.hpp>
#include <cute/arch/mma_sm89.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cute/atom/mma_traits_sm89.hpp>
#include <cute/tensor.hpp>
#include <random>
#include <vector>

#include "emulator/tensor_core.hpp"

namespace tilewright::emulator {
namespace {

using namespace cute;

template <typename Element>
constexpr NumberFormat kFormatOf = NumberFormat::f32;
template <>
constexpr NumberFormat kFormatOf<half_t> = NumberFormat::f16;
template <>
constexpr NumberFormat kFormatOf<bfloat16_t> = NumberFormat::bf16;
template <>
constexpr NumberFormat kFormatOf<tfloat32_t> = NumberFormat::tf32;
template <>
constexpr NumberFormat kFormatOf<float_e4m3_t> = NumberFormat::e4m3;
template <>
constexpr NumberFormat kFormatOf<float_e5m2_t> = NumberFormat::e5m2;

std::vector<float> random_integers(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int> values(-8, 8);
  std::vector<float> integers(static_cast<std::size_t>(count));
  for (float& value : integers) {
    value = static_cast<float>(values(random));
  }
  return integers;
}

// A column-major matrix of integers, as TV layouts count positions: (i, j) at i + rows j.
struct Matrix {
  int rows;
  std::vector<float> values;

  Matrix(int m, int n, unsigned seed) : rows(m), values(random_integers(m * n, seed)) {}
  float& operator()(int i, int j) { return values[static_cast<std::size_t>(i + rows * j)]; }
};

// c (m, n) + scale a (m, k) b (n, k)^T
Matrix product(Matrix& a, Matrix& b, int k, const Matrix& c, float scale = 1.0f) {
  Matrix d = c;
  for (int i = 0; i < a.rows; ++i) {
    for (int j = 0; j < b.rows; ++j) {
      for (int step = 0; step < k; ++step) {
        d(i, j) += scale * a(i, step) * b(j, step);
      }
    }
  }
  return d;
}

// Registers of the lanes [32 warp, 32 warp + 32) that hold `matrix` by a TV layout.
template <typename Element, typename TvLayout>
std::vector<LaneRegisters> fragments(const Matrix& matrix, TvLayout layout, int warp = 0) {
  constexpr int kTogether = 4 / sizeof(Element);
  const int values = size<1>(layout);
  std::vector<LaneRegisters> registers(static_cast<std::size_t>(values / kTogether));
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    for (int value = 0; value < values; ++value) {
      const auto at = static_cast<std::size_t>(layout(32 * warp + lane, value));
      const Element element(matrix.values[at]);
      auto* const word =
          &registers[static_cast<std::size_t>(value / kTogether)][static_cast<std::size_t>(lane)];
      std::memcpy(reinterpret_cast<std::byte*>(word) + value % kTogether * sizeof(Element),
                  &element, sizeof(Element));
    }
  }
  return registers;
}

template <typename Operation>
void expect_mma(std::string_view opcode) {
  using Traits = MMA_Traits<Operation>;
  using A = typename Traits::ValTypeA;
  using B = typename Traits::ValTypeB;
  using D = typename Traits::ValTypeD;
  constexpr int kK = size<2>(typename Traits::Shape_MNK{});
  const auto kind = parse_mma(opcode);
  ASSERT_TRUE(kind) << opcode;
  EXPECT_EQ(kind->k, kK);
  EXPECT_EQ(kind->a, kFormatOf<A>);
  EXPECT_EQ(kind->b, kFormatOf<B>);
  EXPECT_EQ(kind->d, kFormatOf<D>);
  Matrix a(16, kK, 1), b(8, kK, 2), c(16, 8, 3);
  const auto expected = fragments<D>(product(a, b, kK, c), typename Traits::CLayout{});
  auto d = fragments<D>(c, typename Traits::CLayout{});
  mma_sync(*kind, fragments<A>(a, typename Traits::ALayout{}),
           fragments<B>(b, typename Traits::BLayout{}), d, d);
  EXPECT_EQ(d, expected) << opcode;
}

TEST(MmaSync, HasCutesFragments) {
  expect_mma<SM80_16x8x8_F32F16F16F32_TN>("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32");
  expect_mma<SM80_16x8x16_F32F16F16F32_TN>("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
  expect_mma<SM80_16x8x16_F16F16F16F16_TN>("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16");
  expect_mma<SM80_16x8x8_F32BF16BF16F32_TN>("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32");
  expect_mma<SM80_16x8x16_F32BF16BF16F32_TN>("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
  expect_mma<SM80_16x8x4_F32TF32TF32F32_TN>("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32");
  expect_mma<SM80_16x8x8_F32TF32TF32F32_TN>("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32");
  expect_mma<SM89_16x8x32_F32E4M3E4M3F32_TN>("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32");
  expect_mma<SM89_16x8x32_F32E4M3E5M2F32_TN>("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e5m2.f32");
  expect_mma<SM89_16x8x32_F32E5M2E4M3F32_TN>("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32");
}

TEST(MmaSync, RefusesOtherOpcodes) {
  for (const char* opcode : {"mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
                             "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32",
                             "mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16",
                             "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32"}) {
    EXPECT_FALSE(parse_mma(opcode)) << opcode;
  }
}

// A block's SMEM, and where an operand lies in it.
class Smem {
 public:
  SharedMemory memory() { return {reinterpret_cast<std::byte*>(words_.data()), kBytes}; }

  // Writes the matrix at `address` by a CuTe layout of SMEM.
  template <typename Element, typename Layout>
  void write(Matrix& matrix, int columns, Layout layout, std::uint32_t address) {
    auto tensor = make_tensor(make_smem_ptr(reinterpret_cast<Element*>(at(address))), layout);
    for (int i = 0; i < matrix.rows; ++i) {
      for (int j = 0; j < columns; ++j) {
        tensor(i, j) = Element(matrix(i, j));
      }
    }
  }

  std::byte* at(std::uint32_t address) { return memory().base + address; }

 private:
  static constexpr std::uint32_t kBytes = 160 * 1024;
  struct alignas(1024) Kilobyte {
    std::array<std::byte, 1024> bytes;
  };
  std::vector<Kilobyte> words_{kBytes / 1024};
};

constexpr std::uint32_t kA = 1024;
constexpr std::uint32_t kB = 48 * 1024;

// On the host CuTe takes every SMEM address for 0: the descriptors begin there.
template <typename Fragments>
std::uint64_t descriptor_of(const Fragments& fragments, int step, std::uint32_t address) {
  const GmmaDescriptor descriptor = *fragments(_, _0{}, step).data();
  return std::uint64_t{descriptor} + (address >> 4);
}

// One wgmma after the other over a tile of K, from SMEM or with A in registers, as CuTe issues
// them: its layouts of SMEM, its descriptors, its fragments.
template <typename FromSmem, typename FromRegisters, typename AtomA, typename AtomB>
void expect_wgmma(std::string_view opcode, AtomA atom_a, AtomB atom_b, bool transpose_a,
                  bool transpose_b) {
  using Traits = MMA_Traits<FromSmem>;
  using A = typename Traits::ValTypeA;
  using B = typename Traits::ValTypeB;
  using D = typename Traits::ValTypeD;
  constexpr int kN = size<1>(typename Traits::Shape_MNK{});
  constexpr int kStep = size<2>(typename Traits::Shape_MNK{});
  constexpr int kK = 4 * kStep;
  auto kind = parse_wgmma(opcode);
  ASSERT_TRUE(kind) << opcode;
  EXPECT_EQ(kind->n, kN);
  EXPECT_EQ(kind->k(), kStep);
  kind->transpose_a = transpose_a;
  kind->transpose_b = transpose_b;

  Matrix a(64, kK, 1), b(kN, kK, 2), c(64, kN, 3);
  const auto layout_a = tile_to_shape(atom_a, Shape<_64, Int<kK>>{});
  const auto layout_b = tile_to_shape(atom_b, Shape<Int<kN>, Int<kK>>{});
  Smem smem;
  smem.write<A>(a, kK, layout_a, kA);
  smem.write<B>(b, kK, layout_b, kB);
  const auto mma = make_tiled_mma(FromSmem{});
  const auto thread = mma.get_slice(0);
  const auto make_descriptors = [&](auto* element, auto layout, auto partition) {
    return partition(make_tensor(make_smem_ptr(element), layout));
  };
  testing::internal::CaptureStdout();  // CuTe says that there is no SMEM
  const auto descriptors_a = make_descriptors(
      reinterpret_cast<A*>(smem.at(kA)), layout_a,
      [&](auto tensor) { return thread.make_fragment_A(thread.partition_A(tensor)); });
  const auto descriptors_b = make_descriptors(
      reinterpret_cast<B*>(smem.at(kB)), layout_b,
      [&](auto tensor) { return thread.make_fragment_B(thread.partition_B(tensor)); });
  testing::internal::GetCapturedStdout();
  for (const bool in_registers : {false, true}) {
    kind->a_in_registers = in_registers;
    kind->transpose_a = transpose_a && !in_registers;
    for (const int scale : {1, -1}) {
      kind->scale_a = scale;
      for (const bool scale_d : {false, true}) {
        Matrix start = c;
        if (!scale_d) {
          std::fill(start.values.begin(), start.values.end(), 0.0f);
        }
        const Matrix expected = product(a, b, kK, start, static_cast<float>(scale));
        for (int warp = 0; warp < 4; ++warp) {
          auto d = fragments<D>(c, typename Traits::CLayout{}, warp);
          for (int step = 0; step < 4; ++step) {
            Matrix columns(64, kStep, 1);
            std::copy_n(a.values.begin() + step * kStep * 64, kStep * 64, columns.values.begin());
            const auto registers =
                fragments<A>(columns, typename MMA_Traits<FromRegisters>::ALayout{}, warp);
            wgmma(*kind, warp,
                  in_registers ? std::span(registers) : std::span<const LaneRegisters>{},
                  descriptor_of(descriptors_a, step, kA), descriptor_of(descriptors_b, step, kB),
                  scale_d || step > 0, d, smem.memory());
          }
          ASSERT_EQ(d, fragments<D>(expected, typename Traits::CLayout{}, warp))
              << opcode << " registers " << in_registers << " warp " << warp;
        }
      }
    }
  }
}

template <typename Element, GMMA::Major kMajor, typename Check>
void for_each_atom(Check check) {
  check(GMMA::Layout_INTER_Atom<Element, kMajor>{});
  check(GMMA::Layout_SW32_Atom<Element, kMajor>{});
  check(GMMA::Layout_SW64_Atom<Element, kMajor>{});
  check(GMMA::Layout_SW128_Atom<Element, kMajor>{});
}

template <GMMA::Major kMajorA, GMMA::Major kMajorB>
void expect_bf16_wgmma() {
  constexpr bool kMnA = kMajorA == GMMA::Major::MN;
  constexpr bool kMnB = kMajorB == GMMA::Major::MN;
  for_each_atom<bfloat16_t, kMajorA>([&](auto atom_a) {
    for_each_atom<bfloat16_t, kMajorB>([&](auto atom_b) {
      expect_wgmma<SM90_64x128x16_F32BF16BF16_SS<kMajorA, kMajorB>,
                   SM90_64x128x16_F32BF16BF16_RS<GMMA::Major::K, kMajorB>>(
          "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16", atom_a, atom_b, kMnA, kMnB);
    });
  });
}

TEST(Wgmma, TakesEveryLayoutOfSmem) {
  expect_bf16_wgmma<GMMA::Major::K, GMMA::Major::K>();
  expect_bf16_wgmma<GMMA::Major::K, GMMA::Major::MN>();
  expect_bf16_wgmma<GMMA::Major::MN, GMMA::Major::K>();
  expect_bf16_wgmma<GMMA::Major::MN, GMMA::Major::MN>();
}

TEST(Wgmma, TakesOtherKinds) {
  constexpr auto kK = GMMA::Major::K;
  constexpr auto kMN = GMMA::Major::MN;
  const auto check = [&]<typename FromSmem, typename FromRegisters, typename A, typename B>(
                         FromSmem, FromRegisters, A, B, std::string_view opcode) {
    for_each_atom<B, kK>([&](auto atom) {
      expect_wgmma<FromSmem, FromRegisters>(opcode, GMMA::Layout_SW128_Atom<A, kK>{}, atom, false,
                                            false);
    });
  };
  check(SM90_64x256x16_F32F16F16_SS<kK, kK>{}, SM90_64x256x16_F32F16F16_RS<kK, kK>{}, half_t{},
        half_t{}, "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16");
  check(SM90_64x8x16_F32F16F16_SS<kK, kK>{}, SM90_64x8x16_F32F16F16_RS<kK, kK>{}, half_t{},
        half_t{}, "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16");
  check(SM90_64x64x16_F16F16F16_SS<kK, kK>{}, SM90_64x64x16_F16F16F16_RS<kK, kK>{}, half_t{},
        half_t{}, "wgmma.mma_async.sync.aligned.m64n64k16.f16.f16.f16");
  check(SM90_64x96x32_F32E4M3E4M3_SS_TN<>{}, SM90_64x96x32_F32E4M3E4M3_RS_TN<>{}, float_e4m3_t{},
        float_e4m3_t{}, "wgmma.mma_async.sync.aligned.m64n96k32.f32.e4m3.e4m3");
  check(SM90_64x64x32_F32E4M3E5M2_SS_TN<>{}, SM90_64x64x32_F32E4M3E5M2_RS_TN<>{}, float_e4m3_t{},
        float_e5m2_t{}, "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e5m2");
  check(SM90_64x64x8_F32TF32TF32_SS_TN<>{}, SM90_64x64x8_F32TF32TF32_RS_TN<>{}, tfloat32_t{},
        tfloat32_t{}, "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32");
  for_each_atom<half_t, kMN>([&](auto atom) {
    expect_wgmma<SM90_64x256x16_F32F16F16_SS<kK, kMN>, SM90_64x256x16_F32F16F16_RS<kK, kMN>>(
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16", GMMA::Layout_SW64_Atom<half_t, kK>{},
        atom, false, true);
  });
}

TEST(Wgmma, ChecksItsOperands) {
  Smem smem;
  std::vector<LaneRegisters> d(4);
  const auto run = [&](WgmmaKind kind, std::uint64_t b) {
    wgmma(kind, 0, {}, 0, b, false, d, smem.memory());
  };
  EXPECT_NO_THROW(run({.n = 8}, 0));
  EXPECT_THROW(run({.n = 16}, 0), EmulationError);  // registers of D
  EXPECT_THROW(run({.n = 12}, 0), EmulationError);
  EXPECT_THROW(run({.n = 8, .a_in_registers = true}, 0), EmulationError);
  EXPECT_THROW(run({.n = 8}, 160 * 1024 >> 4), EmulationError);  // outside the window
  EXPECT_THROW(
      run({.n = 8, .a = NumberFormat::e4m3, .b = NumberFormat::e4m3, .transpose_b = true}, 0),
      EmulationError);
  for (const char* opcode :
       {"wgmma.mma_async.sync.aligned.m64n12k16.f32.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n16k32.f32.bf16.bf16",
        "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8", "wgmma.fence.sync.aligned"}) {
    EXPECT_FALSE(parse_wgmma(opcode)) << opcode;
  }
}

// Runs ldmatrix or stmatrix on SMEM whose elements are numbered as CuTe numbers them.
template <typename Operation, bool kTranspose, int kCount>
void expect_matrix_moves() {
  using Traits = Copy_Traits<Operation>;
  Smem smem;
  LaneRegisters addresses{};
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const int row = lane % (8 * kCount);
    addresses[static_cast<std::size_t>(lane)] = static_cast<std::uint32_t>(48 * row);
    for (int i = 0; i < 8; ++i) {
      const auto number =
          static_cast<std::uint16_t>(typename Traits::SrcLayout{}(lane, 16 * i) / 16);
      std::memcpy(smem.at(static_cast<std::uint32_t>(48 * row + 2 * i)), &number, sizeof(number));
    }
  }
  const std::vector<std::byte> before(smem.at(0), smem.at(0) + 2048);
  std::vector<LaneRegisters> d(kCount);
  ldmatrix(kCount, kTranspose, addresses, d, smem.memory());
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    for (int value = 0; value < 2 * kCount; ++value) {
      const std::uint32_t word =
          d[static_cast<std::size_t>(value / 2)][static_cast<std::size_t>(lane)];
      ASSERT_EQ(word >> (16 * (value % 2)) & 0xffff,
                static_cast<std::uint32_t>(typename Traits::DstLayout{}(lane, 16 * value) / 16));
    }
  }
  if (kTranspose) {
    std::vector<LaneRegisters> straight(kCount);
    ldmatrix(kCount, false, addresses, straight, smem.memory());
    for (int i = 0; i < kCount; ++i) {
      EXPECT_EQ(movmatrix(straight[static_cast<std::size_t>(i)]), d[static_cast<std::size_t>(i)]);
    }
  }
  std::fill_n(smem.at(0), 2048, std::byte{});
  stmatrix(kCount, kTranspose, addresses, d, smem.memory());
  EXPECT_TRUE(std::equal(before.begin(), before.end(), smem.at(0)));
}

TEST(MatrixMoves, HaveCutesFragments) {
  expect_matrix_moves<SM75_U32x1_LDSM_N, false, 1>();
  expect_matrix_moves<SM75_U32x2_LDSM_N, false, 2>();
  expect_matrix_moves<SM75_U32x4_LDSM_N, false, 4>();
  expect_matrix_moves<SM75_U16x2_LDSM_T, true, 1>();
  expect_matrix_moves<SM75_U16x4_LDSM_T, true, 2>();
  expect_matrix_moves<SM75_U16x8_LDSM_T, true, 4>();
}

TEST(MatrixMoves, CheckAddresses) {
  Smem smem;
  std::vector<LaneRegisters> d(1);
  LaneRegisters addresses{};
  addresses[7] = 8;
  EXPECT_THROW(ldmatrix(1, false, addresses, d, smem.memory()), EmulationError);
  addresses[7] = smem.memory().bytes;
  EXPECT_THROW(stmatrix(1, false, addresses, d, smem.memory()), EmulationError);
  addresses[7] = 0;
  addresses[8] = 8;  // of no matrix
  EXPECT_NO_THROW(ldmatrix(1, false, addresses, d, smem.memory()));
}

}  // namespace
}  // namespace tilewright::emulator
