#include <cstdint>

#include "problems/gemm_problem.hpp"

namespace tilewright::test {

std::vector<GemmCase> gemm_cases() {
  std::vector<GemmCase> cases;
  std::uint64_t seed = 0;
  const auto add = [&](GemmCase c) {
    c.seed = ++seed;
    cases.push_back(c);
  };
  for (const DType a : {DType::bf16, DType::fp16, DType::e2m1x2}) {
    for (const DType out : {DType::bf16, DType::fp16, DType::fp32}) {
      add({.m = 5, .n = 48, .k = 192, .a_dtype = a, .c_dtype = out});
      if (a != DType::e2m1x2) {
        add({.m = 64,
             .n = 2048,
             .a_dtype = a,
             .c_dtype = out,
             .global_scales = GlobalScales::none,
             .inputs = GemmInputs::pairs});
      }
      add({.m = 130, .n = 64, .k = 64, .l = 2, .a_dtype = a, .c_dtype = out, .bias = true});
      add({.m = 33, .n = 144, .k = 320, .a_dtype = a, .c_dtype = out, .residual = true});
    }
    for (const GemmOrder order : {GemmOrder::padded_rows, GemmOrder::batch_inside}) {
      for (const std::int64_t l : {1, 3}) {
        add({.m = 7,
             .n = 32,
             .k = 128,
             .l = l,
             .a_dtype = a,
             .bias = true,
             .residual = true,
             .order = order});
        for (const std::int64_t m : {9, 70, 140}) {
          add({.m = m, .n = 80, .k = 64, .l = l, .a_dtype = a, .bias = true, .order = order});
        }
      }
    }
    for (const GlobalScales scales :
         {GlobalScales::none, GlobalScales::one, GlobalScales::each_row}) {
      for (const GlobalScale kind : {GlobalScale::encode, GlobalScale::decode}) {
        add({.m = 20, .n = 32, .k = 64, .a_dtype = a, .global_scales = scales, .kind = kind});
        add({.m = 20,
             .n = 32,
             .k = 64,
             .l = 2,
             .a_dtype = a,
             .c_dtype = DType::fp32,
             .global_scales = scales,
             .kind = kind});
      }
    }
    for (const std::int64_t m : {6, 40, 130}) {
      add({.m = m,
           .n = 80,
           .k = 64,
           .a_dtype = a,
           .global_scales = GlobalScales::small,
           .kind = a == DType::e2m1x2 && m != 40 ? GlobalScale::encode : GlobalScale::decode});
    }
    if (a == DType::bf16) {  // which reaches far enough to match large scales
      for (const std::int64_t m : {6, 40, 130}) {
        add({.m = m,
             .n = 80,
             .k = 64,
             .global_scales = GlobalScales::large,
             .kind = GlobalScale::decode});
      }
    }
    for (const std::int64_t l : {1, 3}) {
      add({.m = 140, .n = 272, .k = 320, .l = l, .a_dtype = a, .layout = ScaleLayout::swizzled});
    }
    add({.m = 17, .n = 64, .k = 1024, .a_dtype = a, .residual = true, .in_place = true});
    for (const std::int64_t k : {16, 32, 48}) {  // the least that there is
      add({.m = 5, .n = 16, .k = k, .a_dtype = a});
    }
    for (const std::int64_t m : {1, 40, 130}) {  // K is no multiple of 64
      add({.m = m, .n = 48, .k = 80, .l = 2, .a_dtype = a});
      add({.m = m, .n = 80, .k = 1040, .a_dtype = a, .bias = true});
    }
    for (const std::int64_t m : {5, 70, 140}) {
      for (const std::int64_t k : {80, 1040}) {
        add({.m = m, .n = 48, .k = k, .a_dtype = a, .order = GemmOrder::padded_rows});
      }
      for (const GemmOrder order : {GemmOrder::dense, GemmOrder::padded_rows}) {
        add({.m = m,
             .n = 80,
             .k = 128,
             .l = 3,
             .a_dtype = a,
             .layout = order == GemmOrder::dense ? ScaleLayout::swizzled : ScaleLayout::linear,
             .global_scales =
                 order == GemmOrder::dense ? GlobalScales::one : GlobalScales::each_row,
             .kind = order == GemmOrder::dense ? GlobalScale::decode : GlobalScale::encode,
             .bias = true,
             .residual = true,
             .order = order,
             .is_mixed = true});
      }
    }
    add({.m = 40, .n = 80, .k = 256, .a_dtype = a, .inputs = GemmInputs::nans});
    add({.m = 40,
         .n = 80,
         .k = 256,
         .l = 2,
         .a_dtype = a,
         .layout = ScaleLayout::swizzled,
         .inputs = GemmInputs::nans});
  }
  for (const std::int64_t m : {1, 12, 27}) {
    for (const DType out : {DType::bf16, DType::fp16}) {
      GemmCase c{.m = m,
                 .n = 80,
                 .k = 592,
                 .l = 2,
                 .a_dtype = DType::e2m1x2,
                 .c_dtype = out,
                 .layout = ScaleLayout::swizzled,
                 .inputs = GemmInputs::nans};
      add(c);
      c.l = 3;
      c.layout = ScaleLayout::linear;
      c.order = GemmOrder::batch_inside;
      add(c);
    }
  }
  add({.m = 16384, .n = 48, .k = 128});
  for (const DType a : {DType::bf16, DType::fp16, DType::e2m1x2}) {
    for (const std::int64_t k : {64, 1040, 4096}) {
      for (const DType out : {DType::bf16, DType::fp16, DType::fp32}) {
        GemmCase c{.m = k == 1040 ? 130 : 65,
                   .n = 48,
                   .k = k,
                   .l = 2,
                   .a_dtype = a,
                   .c_dtype = out,
                   .bias = true,
                   .residual = true,
                   .is_mixed = k != 64,
                   .inputs = GemmInputs::exact};
        add(c);
        c.m = 9;
        c.layout = ScaleLayout::swizzled;
        c.global_scales = k == 64 ? GlobalScales::none : GlobalScales::each_row;
        add(c);
      }
    }
  }
  return cases;
}

}  // namespace tilewright::test
