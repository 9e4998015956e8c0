// WGMMA shapes for Q K^T that CuTe declares only if it is told to declare all shapes, which takes
// some 35 seconds more to compile in every file.
//
// Source    PTX ISA, wgmma.mma_async.
#pragma once

#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>

namespace tilewright::cuda {

// D (64, 80) (+)= A (64, 16) B (80, 16)^T in BF16, both from SMEM and K-major, D in FP32.
struct Wgmma64x80x16 {
  using DRegisters = void;
  using ARegisters = std::uint64_t[1];
  using BRegisters = std::uint64_t[1];
  using CRegisters = float[40];

  __device__ static void fma(const std::uint64_t& a, const std::uint64_t& b, float& d0, float& d1,
                             float& d2, float& d3, float& d4, float& d5, float& d6, float& d7,
                             float& d8, float& d9, float& d10, float& d11, float& d12, float& d13,
                             float& d14, float& d15, float& d16, float& d17, float& d18, float& d19,
                             float& d20, float& d21, float& d22, float& d23, float& d24, float& d25,
                             float& d26, float& d27, float& d28, float& d29, float& d30, float& d31,
                             float& d32, float& d33, float& d34, float& d35, float& d36, float& d37,
                             float& d38, float& d39, cute::SM90::GMMA::ScaleOut scale_d) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %42, 0; "
        "wgmma.mma_async.sync.aligned.m64n80k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9,"
        " %10, %11, %12, %13, %14, %15, %16, %17, %18, %19,"
        " %20, %21, %22, %23, %24, %25, %26, %27, %28, %29,"
        " %30, %31, %32, %33, %34, %35, %36, %37, %38, %39}, "
        "%40, %41, p, 1, 1, 0, 0;}"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3), "+f"(d4), "+f"(d5), "+f"(d6), "+f"(d7), "+f"(d8),
          "+f"(d9), "+f"(d10), "+f"(d11), "+f"(d12), "+f"(d13), "+f"(d14), "+f"(d15), "+f"(d16),
          "+f"(d17), "+f"(d18), "+f"(d19), "+f"(d20), "+f"(d21), "+f"(d22), "+f"(d23), "+f"(d24),
          "+f"(d25), "+f"(d26), "+f"(d27), "+f"(d28), "+f"(d29), "+f"(d30), "+f"(d31), "+f"(d32),
          "+f"(d33), "+f"(d34), "+f"(d35), "+f"(d36), "+f"(d37), "+f"(d38), "+f"(d39)
        : "l"(a), "l"(b), "r"(static_cast<int>(scale_d)));
  }
};

// D (64, 176) (+)= A (64, 16) B (176, 16)^T in BF16, both from SMEM and K-major, D in FP32.
struct Wgmma64x176x16 {
  using DRegisters = void;
  using ARegisters = std::uint64_t[1];
  using BRegisters = std::uint64_t[1];
  using CRegisters = float[88];

  __device__ static void fma(const std::uint64_t& a, const std::uint64_t& b, float& d0, float& d1,
                             float& d2, float& d3, float& d4, float& d5, float& d6, float& d7,
                             float& d8, float& d9, float& d10, float& d11, float& d12, float& d13,
                             float& d14, float& d15, float& d16, float& d17, float& d18, float& d19,
                             float& d20, float& d21, float& d22, float& d23, float& d24, float& d25,
                             float& d26, float& d27, float& d28, float& d29, float& d30, float& d31,
                             float& d32, float& d33, float& d34, float& d35, float& d36, float& d37,
                             float& d38, float& d39, float& d40, float& d41, float& d42, float& d43,
                             float& d44, float& d45, float& d46, float& d47, float& d48, float& d49,
                             float& d50, float& d51, float& d52, float& d53, float& d54, float& d55,
                             float& d56, float& d57, float& d58, float& d59, float& d60, float& d61,
                             float& d62, float& d63, float& d64, float& d65, float& d66, float& d67,
                             float& d68, float& d69, float& d70, float& d71, float& d72, float& d73,
                             float& d74, float& d75, float& d76, float& d77, float& d78, float& d79,
                             float& d80, float& d81, float& d82, float& d83, float& d84, float& d85,
                             float& d86, float& d87, cute::SM90::GMMA::ScaleOut scale_d) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %90, 0; "
        "wgmma.mma_async.sync.aligned.m64n176k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10,"
        " %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21,"
        " %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32,"
        " %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43,"
        " %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54,"
        " %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65,"
        " %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76,"
        " %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87}, "
        "%88, %89, p, 1, 1, 0, 0;}"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3), "+f"(d4), "+f"(d5), "+f"(d6), "+f"(d7), "+f"(d8),
          "+f"(d9), "+f"(d10), "+f"(d11), "+f"(d12), "+f"(d13), "+f"(d14), "+f"(d15), "+f"(d16),
          "+f"(d17), "+f"(d18), "+f"(d19), "+f"(d20), "+f"(d21), "+f"(d22), "+f"(d23), "+f"(d24),
          "+f"(d25), "+f"(d26), "+f"(d27), "+f"(d28), "+f"(d29), "+f"(d30), "+f"(d31), "+f"(d32),
          "+f"(d33), "+f"(d34), "+f"(d35), "+f"(d36), "+f"(d37), "+f"(d38), "+f"(d39), "+f"(d40),
          "+f"(d41), "+f"(d42), "+f"(d43), "+f"(d44), "+f"(d45), "+f"(d46), "+f"(d47), "+f"(d48),
          "+f"(d49), "+f"(d50), "+f"(d51), "+f"(d52), "+f"(d53), "+f"(d54), "+f"(d55), "+f"(d56),
          "+f"(d57), "+f"(d58), "+f"(d59), "+f"(d60), "+f"(d61), "+f"(d62), "+f"(d63), "+f"(d64),
          "+f"(d65), "+f"(d66), "+f"(d67), "+f"(d68), "+f"(d69), "+f"(d70), "+f"(d71), "+f"(d72),
          "+f"(d73), "+f"(d74), "+f"(d75), "+f"(d76), "+f"(d77), "+f"(d78), "+f"(d79), "+f"(d80),
          "+f"(d81), "+f"(d82), "+f"(d83), "+f"(d84), "+f"(d85), "+f"(d86), "+f"(d87)
        : "l"(a), "l"(b), "r"(static_cast<int>(scale_d)));
  }
};

using cute::SM90::GMMA::mma_unpack;  // CuTe looks for it beside the operation

// The operation for S (64, Bc) = Q K^T, both from SMEM.
template <typename Element, int kBc, int kHeadDim>
constexpr auto wgmma_qk() {
  static_assert((kBc != 80 && kBc != 176) || cute::is_same_v<Element, cute::bfloat16_t>,
                "the shapes above are of BF16");
  if constexpr (kBc == 80) {
    return Wgmma64x80x16{};
  } else if constexpr (kBc == 176) {
    return Wgmma64x176x16{};
  } else {
    return cute::GMMA::ss_op_selector<
        Element, Element, float, cute::Shape<cute::Int<64>, cute::Int<kBc>, cute::Int<kHeadDim>>>();
  }
}

// What CuTe must know of an operation D (64, N) += A (64, 16) B (N, 16)^T from SMEM, K-major.
template <int kN>
struct WgmmaTraits {
  using ValTypeD = float;
  using ValTypeA = cute::bfloat16_t;
  using ValTypeB = cute::bfloat16_t;
  using ValTypeC = float;
  using FrgTypeA = cute::GMMA::smem_desc<cute::GMMA::Major::K>;
  using FrgTypeB = cute::GMMA::smem_desc<cute::GMMA::Major::K>;
  using Shape_MNK = cute::Shape<cute::Int<64>, cute::Int<kN>, cute::Int<16>>;
  using ThrID = cute::Layout<cute::Int<128>>;
  using ALayout = cute::GMMA::ABLayout<64, 16>;
  using BLayout = cute::GMMA::ABLayout<kN, 16>;
  using CLayout = cute::GMMA::CLayout_64xN<kN>;
  cute::GMMA::ScaleOut accumulate_ = cute::GMMA::ScaleOut::One;
};

}  // namespace tilewright::cuda

template <>
struct cute::MMA_Traits<tilewright::cuda::Wgmma64x80x16> : tilewright::cuda::WgmmaTraits<80> {};
template <>
struct cute::MMA_Traits<tilewright::cuda::Wgmma64x176x16> : tilewright::cuda::WgmmaTraits<176> {};
