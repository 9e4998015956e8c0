// WGMMAs for P V in E4M3, D (64, N) (+)= A (64, 32) B (N, 32)^T, with A in registers, B from SMEM
// and K-major, and D in FP32: those of CuTe, and shapes that CuTe declares only if it is told to
// declare all shapes, which takes some 35 seconds more to compile in every file.
//
// Source    PTX ISA, wgmma.mma_async.
#pragma once

#include <cstdint>
#include <cute/atom/mma_atom.hpp>
#include <cute/tensor.hpp>

namespace tilewright::cuda {

// D (64, 72) (+)= A (64, 32) B (72, 32)^T.
struct Wgmma64x72x32 {
  using DRegisters = void;
  using ARegisters = std::uint32_t[4];
  using BRegisters = std::uint64_t[1];
  using CRegisters = float[36];

  __device__ static void fma(std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                             const std::uint64_t& b, float& d0, float& d1, float& d2, float& d3,
                             float& d4, float& d5, float& d6, float& d7, float& d8, float& d9,
                             float& d10, float& d11, float& d12, float& d13, float& d14, float& d15,
                             float& d16, float& d17, float& d18, float& d19, float& d20, float& d21,
                             float& d22, float& d23, float& d24, float& d25, float& d26, float& d27,
                             float& d28, float& d29, float& d30, float& d31, float& d32, float& d33,
                             float& d34, float& d35, cute::SM90::GMMA::ScaleOut scale_d) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %41, 0; "
        "wgmma.mma_async.sync.aligned.m64n72k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9,"
        " %10, %11, %12, %13, %14, %15, %16, %17, %18, %19,"
        " %20, %21, %22, %23, %24, %25, %26, %27, %28, %29,"
        " %30, %31, %32, %33, %34, %35}, "
        "{%36, %37, %38, %39}, %40, p, 1, 1;}"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3), "+f"(d4), "+f"(d5), "+f"(d6), "+f"(d7), "+f"(d8),
          "+f"(d9), "+f"(d10), "+f"(d11), "+f"(d12), "+f"(d13), "+f"(d14), "+f"(d15), "+f"(d16),
          "+f"(d17), "+f"(d18), "+f"(d19), "+f"(d20), "+f"(d21), "+f"(d22), "+f"(d23), "+f"(d24),
          "+f"(d25), "+f"(d26), "+f"(d27), "+f"(d28), "+f"(d29), "+f"(d30), "+f"(d31), "+f"(d32),
          "+f"(d33), "+f"(d34), "+f"(d35)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(static_cast<int>(scale_d)));
  }
};

// D (64, 136) (+)= A (64, 32) B (136, 32)^T.
struct Wgmma64x136x32 {
  using DRegisters = void;
  using ARegisters = std::uint32_t[4];
  using BRegisters = std::uint64_t[1];
  using CRegisters = float[68];

  __device__ static void fma(std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                             const std::uint64_t& b, float& d0, float& d1, float& d2, float& d3,
                             float& d4, float& d5, float& d6, float& d7, float& d8, float& d9,
                             float& d10, float& d11, float& d12, float& d13, float& d14, float& d15,
                             float& d16, float& d17, float& d18, float& d19, float& d20, float& d21,
                             float& d22, float& d23, float& d24, float& d25, float& d26, float& d27,
                             float& d28, float& d29, float& d30, float& d31, float& d32, float& d33,
                             float& d34, float& d35, float& d36, float& d37, float& d38, float& d39,
                             float& d40, float& d41, float& d42, float& d43, float& d44, float& d45,
                             float& d46, float& d47, float& d48, float& d49, float& d50, float& d51,
                             float& d52, float& d53, float& d54, float& d55, float& d56, float& d57,
                             float& d58, float& d59, float& d60, float& d61, float& d62, float& d63,
                             float& d64, float& d65, float& d66, float& d67,
                             cute::SM90::GMMA::ScaleOut scale_d) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %73, 0; "
        "wgmma.mma_async.sync.aligned.m64n136k32.f32.e4m3.e4m3 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9,"
        " %10, %11, %12, %13, %14, %15, %16, %17, %18, %19,"
        " %20, %21, %22, %23, %24, %25, %26, %27, %28, %29,"
        " %30, %31, %32, %33, %34, %35, %36, %37, %38, %39,"
        " %40, %41, %42, %43, %44, %45, %46, %47, %48, %49,"
        " %50, %51, %52, %53, %54, %55, %56, %57, %58, %59,"
        " %60, %61, %62, %63, %64, %65, %66, %67}, "
        "{%68, %69, %70, %71}, %72, p, 1, 1;}"
        : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3), "+f"(d4), "+f"(d5), "+f"(d6), "+f"(d7), "+f"(d8),
          "+f"(d9), "+f"(d10), "+f"(d11), "+f"(d12), "+f"(d13), "+f"(d14), "+f"(d15), "+f"(d16),
          "+f"(d17), "+f"(d18), "+f"(d19), "+f"(d20), "+f"(d21), "+f"(d22), "+f"(d23), "+f"(d24),
          "+f"(d25), "+f"(d26), "+f"(d27), "+f"(d28), "+f"(d29), "+f"(d30), "+f"(d31), "+f"(d32),
          "+f"(d33), "+f"(d34), "+f"(d35), "+f"(d36), "+f"(d37), "+f"(d38), "+f"(d39), "+f"(d40),
          "+f"(d41), "+f"(d42), "+f"(d43), "+f"(d44), "+f"(d45), "+f"(d46), "+f"(d47), "+f"(d48),
          "+f"(d49), "+f"(d50), "+f"(d51), "+f"(d52), "+f"(d53), "+f"(d54), "+f"(d55), "+f"(d56),
          "+f"(d57), "+f"(d58), "+f"(d59), "+f"(d60), "+f"(d61), "+f"(d62), "+f"(d63), "+f"(d64),
          "+f"(d65), "+f"(d66), "+f"(d67)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(static_cast<int>(scale_d)));
  }
};

using cute::SM90::GMMA::mma_unpack;  // CuTe looks for it beside the operation

// The operation for (64, kColumns) = P (64, kBc) V (kColumns, kBc)^T.
template <int kColumns, int kBc>
constexpr auto wgmma_pv_e4m3() {
  if constexpr (kColumns == 72) {
    return Wgmma64x72x32{};
  } else if constexpr (kColumns == 136) {
    return Wgmma64x136x32{};
  } else {
    using Element = cute::float_e4m3_t;
    using Shape = cute::Shape<cute::_64, cute::Int<kColumns>, cute::Int<kBc>>;
    return cute::GMMA::rs_op_selector<Element, Element, float, Shape, cute::GMMA::Major::K,
                                      cute::GMMA::Major::K>();
  }
}

// What CuTe must know of such an operation.
template <int kN>
struct WgmmaE4m3Traits {
  using ValTypeD = float;
  using ValTypeA = cute::float_e4m3_t;
  using ValTypeB = cute::float_e4m3_t;
  using ValTypeC = float;
  using FrgTypeB = cute::GMMA::smem_desc<cute::GMMA::Major::K>;
  using Shape_MNK = cute::Shape<cute::_64, cute::Int<kN>, cute::_32>;
  using ThrID = cute::Layout<cute::_128>;
  using ALayout = cute::GMMA::ALayout_64x32;
  using BLayout = cute::GMMA::ABLayout<kN, 32>;
  using CLayout = cute::GMMA::CLayout_64xN<kN>;
  cute::GMMA::ScaleOut accumulate_ = cute::GMMA::ScaleOut::One;
};

}  // namespace tilewright::cuda

template <>
struct cute::MMA_Traits<tilewright::cuda::Wgmma64x72x32> : tilewright::cuda::WgmmaE4m3Traits<72> {};
template <>
struct cute::MMA_Traits<tilewright::cuda::Wgmma64x136x32> : tilewright::cuda::WgmmaE4m3Traits<136> {
};
