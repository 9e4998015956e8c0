// Every wrong argument of gemm_nvfp4: the error's code, argument and message, and an output that
// stays untouched.
#include "bad_call.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/gemm_bf16.hpp"
#include "tilewright/gemm_nvfp4.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr Device kGpu{DeviceKind::cuda, 0};

// A right call, which a case then spoils: a batch of two GEMMs with M = 5, N = 32 and K = 64.
struct Call {
  Call() { poison(c); }
  Call(const Call&) = delete;

  void pack_b() {
    tensors.b = packed.view();
    tensors.sfb.reset();
  }

  bool outputs_untouched() const { return is_poisoned(c); }

  void move_to(Device device) {
    tensors.a.device = tensors.b.device = tensors.c.device = device;
    tensors.sfa->device = tensors.sfb->device = tensors.bias->device = tensors.residual->device =
        device;
    tensors.global_scale_a->device = tensors.global_scale_b->device = device;
  }

  HostTensor a{DType::e2m1x2, {2, 5, 32}};
  HostTensor b{DType::e2m1x2, {2, 32, 32}};
  HostTensor packed{DType::u8, {2, 1, 2 * 2304}};
  HostTensor sfa{DType::e4m3, {2, 5, 4}};
  HostTensor sfb{DType::e4m3, {2, 32, 4}};
  HostTensor global_scale_a{DType::fp32, {2, 5}};
  HostTensor global_scale_b{DType::fp32, {1}};
  HostTensor bias{DType::bf16, {32}};
  HostTensor residual{DType::bf16, {2, 5, 32}};
  HostTensor c{DType::bf16, {2, 5, 32}};

  GemmNvfp4Tensors tensors{.a = a.view(),
                           .b = b.view(),
                           .sfb = sfb.view(),
                           .c = c.view(),
                           .sfa = sfa.view(),
                           .global_scale_a = global_scale_a.view(),
                           .global_scale_b = global_scale_b.view(),
                           .bias = bias.view(),
                           .residual = residual.view()};
  GemmNvfp4Options options{.global_scale_a_kind = GlobalScale::encode,
                           .global_scale_b_kind = GlobalScale::decode};
};

using BadCall = BadCallOf<Call>;

void expect_refused(const BadCall& bad) {
  Call call;
  bad.spoil(call);
  expect_throws(bad, call, [&] { gemm_nvfp4(call.tensors, call.options); });
  expect_throws(bad, call, [&] { gemm_nvfp4_workspace_bytes(call.tensors, call.options); });
}

class BadGemm : public testing::TestWithParam<BadCall> {};

TEST_P(BadGemm, IsRefused) { expect_refused(GetParam()); }

TEST(GemmCall, ThatTheCasesSpoilIsRight) {
  Call call;
  EXPECT_EQ(gemm_nvfp4_workspace_bytes(call.tensors, call.options), 0u);
  gemm_nvfp4(call.tensors, call.options);
  EXPECT_FALSE(call.outputs_untouched());
}

TEST(GemmCall, WithAPackedWeightIsRight) {
  Call call;
  call.pack_b();
  call.options.sfb_layout = ScaleLayout::swizzled;  // of scales that are not there
  EXPECT_EQ(gemm_nvfp4_workspace_bytes(call.tensors, call.options), 0u);
  gemm_nvfp4(call.tensors, call.options);
  EXPECT_FALSE(call.outputs_untouched());
}

TEST(GemmCall, MayAddToCItself) {
  Call call;
  call.tensors.residual = call.tensors.c;
  gemm_nvfp4(call.tensors, call.options);
  EXPECT_FALSE(call.outputs_untouched());
}

// Rows with 64 values of a and, after them, 32 of c.
TEST(GemmCall, MayWriteBetweenTheRowsOfAnInput) {
  HostTensor buffer(DType::bf16, {5, 96});
  HostTensor b(DType::e2m1x2, {32, 32});
  HostTensor sfb(DType::e4m3, {32, 4});
  const auto columns = [&](std::int64_t first, std::int64_t count) {
    TensorView view = buffer.view();
    view.data = buffer.data() + 2 * first;
    view.shape[1] = count;
    return view;
  };
  poison(buffer);
  GemmNvfp4Tensors tensors{
      .a = columns(0, 64), .b = b.view(), .sfb = sfb.view(), .c = columns(64, 32)};
  gemm_nvfp4(tensors);
  EXPECT_EQ(reference::load(columns(64, 32), 4 * 96 + 31), 0.0);
  tensors.residual = columns(64, 32);
  gemm_nvfp4(tensors);
  tensors.c = columns(63, 32);
  EXPECT_THROW(gemm_nvfp4(tensors), Error);
}

TEST(GemmCall, OnAGpuThatIsNotThereIsRefused) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  const auto move = [](Call& call) { call.move_to(kGpu); };
  expect_refused(
      {"no_device", move, "device", {"cuda:0", cpu_only_notice().data()}, ErrorCode::no_device});
}

TEST(GemmBf16, NamesWhatIsWrong) {
  HostTensor a(DType::bf16, {5, 64});
  HostTensor b(DType::bf16, {32, 64});
  HostTensor c(DType::bf16, {5, 32});
  const auto expect_throws = [](const GemmBf16Tensors& tensors, const char* message) {
    try {
      gemm_bf16(tensors);
      FAIL() << "no exception";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::StartsWith(message));
    }
  };
  const GemmBf16Tensors right{.a = a.view(), .b = b.view(), .c = c.view()};
  expect_throws(right, "kernel: no kernel takes tensors on cpu");
  GemmBf16Tensors wrong = right;
  wrong.b.shape[1] = 32;
  expect_throws(wrong, "b: columns is 32, must equal a's 64");
  wrong = right;
  wrong.c.shape[0] = 4;
  expect_throws(wrong, "c: rows is 4, must equal a's 5");
  wrong = right;
  wrong.a.dtype = DType::fp16;
  expect_throws(wrong, "a: has dtype fp16, must be bf16");
  wrong = right;
  wrong.c.data = b.data();
  expect_throws(wrong, "c: shares memory with b, must not overlap an input");
}

INSTANTIATE_TEST_SUITE_P(
    A, BadGemm,
    testing::Values(
        BadCall{"a_rank", [](Call& c) { c.tensors.a.rank = 4; }, "a", {"rank 4", "rank 3"}},
        BadCall{"a_null",
                [](Call& c) { c.tensors.a.data = nullptr; },
                "a",
                {"null", "must point to memory"}},
        BadCall{"a_dtype",
                [](Call& c) { c.tensors.a.dtype = DType::fp32; },
                "a",
                {"fp32", "must be bf16, fp16"}},
        BadCall{"a_columns",
                [](Call& c) { c.tensors.a.shape[2] = 28; },
                "a",
                {"28 columns", "multiple of 8"}},
        BadCall{"a_stride", [](Call& c) { c.tensors.a.stride[2] = 2; }, "a", {"contiguous"}},
        BadCall{"a_alignment",
                [](Call& c) {
                  c.tensors.sfa.reset();
                  c.tensors.global_scale_a.reset();
                  c.tensors.a.dtype = DType::fp16;
                  c.tensors.a.shape[2] = 64;
                  misplace(c.tensors.a, 1);
                },
                "a",
                {"aligned to 2 bytes"}},
        BadCall{"sfa_absent", [](Call& c) { c.tensors.sfa.reset(); }, "sfa", {"must be given"}},
        BadCall{"sfa_given",
                [](Call& c) { c.tensors.a.dtype = DType::bf16; },
                "sfa",
                {"must be absent", "bf16"}},
        BadCall{"global_scale_a_given",
                [](Call& c) {
                  c.tensors.a.dtype = DType::bf16;
                  c.tensors.sfa.reset();
                },
                "global_scale_a",
                {"must be absent", "bf16"}},
        BadCall{"sfa_rank", [](Call& c) { c.tensors.sfa->rank = 2; }, "sfa", {"rank 2", "rank 3"}},
        BadCall{"sfa_dtype",
                [](Call& c) { c.tensors.sfa->dtype = DType::e8m0; },
                "sfa",
                {"e8m0", "e4m3"}},
        BadCall{"sfa_rows", [](Call& c) { c.tensors.sfa->shape[1] = 4; }, "sfa", {"4", "5"}},
        BadCall{"sfa_columns",
                [](Call& c) { c.tensors.sfa->shape[2] = 2; },
                "sfa",
                {"blocks in a row, 4"}},
        BadCall{"sfa_swizzled_rows",
                [](Call& c) { c.options.sfa_layout = ScaleLayout::swizzled; },
                "sfa",
                {"multiple of 128", "128"}},
        BadCall{"sfa_batch", [](Call& c) { c.tensors.sfa->shape[0] = 1; }, "sfa", {"batch is 1"}},
        BadCall{"global_scale_a_without_kind",
                [](Call& c) { c.options.global_scale_a_kind.reset(); },
                "global_scale_a_kind",
                {"is absent", "must be encode or decode"}},
        BadCall{"global_scale_a_size",
                [](Call& c) { c.tensors.global_scale_a->shape[1] = 4; },
                "global_scale_a",
                {"size is 4", "rows of a's 5"}},
        BadCall{"global_scale_a_rank",
                [](Call& c) { c.tensors.global_scale_a->rank = 3; },
                "global_scale_a",
                {"rank 3", "rank 2", "or size 1"}},
        BadCall{"global_scale_a_dtype",
                [](Call& c) { c.tensors.global_scale_a->dtype = DType::fp16; },
                "global_scale_a",
                {"fp16", "fp32"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    B, BadGemm,
    testing::Values(
        BadCall{"b_rank", [](Call& c) { c.tensors.b.rank = 2; }, "b", {"rank 2", "as a"}},
        BadCall{"b_batch", [](Call& c) { c.tensors.b.shape[0] = 3; }, "b", {"batch is 3", "2"}},
        BadCall{"b_dtype",
                [](Call& c) { c.tensors.b.dtype = DType::bf16; },
                "b",
                {"bf16", "e2m1x2, or u8 of prepack_nvfp4_weight()"}},
        BadCall{"sfb_absent",
                [](Call& c) { c.tensors.sfb.reset(); },
                "sfb",
                {"must be given where b is codes"}},
        BadCall{"b_device", [](Call& c) { c.tensors.b.device = kGpu; }, "b", {"cuda:0", "cpu"}},
        BadCall{"b_columns", [](Call& c) { c.tensors.b.shape[2] = 16; }, "b", {"16", "32"}},
        BadCall{"b_stride", [](Call& c) { c.tensors.b.stride[2] = 3; }, "b", {"contiguous"}},
        BadCall{"sfb_rows", [](Call& c) { c.tensors.sfb->shape[1] = 31; }, "sfb", {"31", "32"}},
        BadCall{"sfb_not_contiguous",
                [](Call& c) {
                  c.options.sfb_layout = ScaleLayout::swizzled;
                  c.tensors.sfb->shape[1] = 128;
                  c.tensors.sfb->stride[1] = 8;
                },
                "sfb",
                {"row stride of 8", "contiguous (stride 4)"}},
        BadCall{"global_scale_b_without_kind",
                [](Call& c) { c.options.global_scale_b_kind.reset(); },
                "global_scale_b_kind",
                {"is absent", "must be encode or decode"}},
        BadCall{"global_scale_b_size",
                [](Call& c) { c.tensors.global_scale_b->shape[0] = 2; },
                "global_scale_b",
                {"rank 1", "rank 2"}},
        BadCall{"global_scale_b_alignment",
                [](Call& c) { misplace(*c.tensors.global_scale_b, 2); },
                "global_scale_b",
                {"4-byte"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(PackedB, BadGemm,
                         testing::Values(BadCall{"packed_b_rank",
                                                 [](Call& c) {
                                                   c.pack_b();
                                                   c.tensors.b.rank = 2;
                                                 },
                                                 "b",
                                                 {"rank 2", "as a"}},
                                         BadCall{"packed_b_batch",
                                                 [](Call& c) {
                                                   c.pack_b();
                                                   c.tensors.b.shape[0] = 1;
                                                 },
                                                 "b",
                                                 {"batch is 1", "a's 2"}},
                                         BadCall{"packed_b_device",
                                                 [](Call& c) {
                                                   c.pack_b();
                                                   c.tensors.b.device = kGpu;
                                                 },
                                                 "b",
                                                 {"cuda:0", "cpu like a"}},
                                         BadCall{"packed_b_rows",
                                                 [](Call& c) {
                                                   c.pack_b();
                                                   c.tensors.b.shape[1] = 2;
                                                 },
                                                 "b",
                                                 {"rows is 2", "tiles of 64 of N 32, 1"}},
                                         BadCall{
                                             "packed_b_columns",
                                             [](Call& c) {
                                               c.pack_b();
                                               c.tensors.b.shape[2] = 2304;
                                             },
                                             "b",
                                             {"columns is 2304", "tiles that K 64 takes, 4608"}},
                                         BadCall{"packed_b_of_codes",
                                                 [](Call& c) {
                                                   c.tensors.b.dtype = DType::u8;
                                                   c.tensors.sfb.reset();
                                                 },
                                                 "b",
                                                 {"rows is 32", "1"}},
                                         BadCall{"packed_b_with_sfb",
                                                 [](Call& c) {
                                                   c.pack_b();
                                                   c.tensors.sfb = c.sfb.view();
                                                 },
                                                 "sfb",
                                                 {"is given", "must be absent where b is packed"}},
                                         BadCall{"packed_b_c_rank",
                                                 [](Call& c) {
                                                   c.pack_b();
                                                   c.tensors.c.rank = 2;
                                                 },
                                                 "c",
                                                 {"rank 2", "as a"}},
                                         BadCall{"packed_b_bias",
                                                 [](Call& c) {
                                                   c.pack_b();
                                                   c.tensors.bias->shape[0] = 16;
                                                 },
                                                 "bias",
                                                 {"16", "32"}}),
                         kCaseName);

INSTANTIATE_TEST_SUITE_P(
    C, BadGemm,
    testing::Values(
        BadCall{"c_dtype", [](Call& c) { c.tensors.c.dtype = DType::e4m3; }, "c", {"e4m3", "fp32"}},
        BadCall{"c_rows", [](Call& c) { c.tensors.c.shape[1] = 6; }, "c", {"rows is 6", "5"}},
        BadCall{"c_columns", [](Call& c) { c.tensors.c.shape[2] = 31; }, "c", {"31", "32"}},
        BadCall{"c_overlap", [](Call& c) { c.tensors.c.stride[0] = 0; }, "c", {"overlap"}},
        BadCall{"c_is_a", [](Call& c) { c.tensors.c.data = c.a.data(); }, "c", {"memory with a,"}},
        BadCall{"c_is_b", [](Call& c) { c.tensors.c.data = c.b.data(); }, "c", {"memory with b,"}},
        BadCall{"c_ends_in_sfa",
                [](Call& c) { c.tensors.sfa->data = c.c.data() + c.c.bytes() - 1; },
                "c",
                {"shares memory with sfa, must not overlap an input"}},
        BadCall{"c_is_sfb",
                [](Call& c) { c.tensors.sfb->data = c.c.data(); },
                "c",
                {"memory with sfb,"}},
        BadCall{"c_holds_global_scale_a",
                [](Call& c) { c.tensors.global_scale_a->data = c.c.data() + 64; },
                "c",
                {"memory with global_scale_a,"}},
        BadCall{"c_holds_global_scale_b",
                [](Call& c) { c.tensors.global_scale_b->data = c.c.data(); },
                "c",
                {"memory with global_scale_b,"}},
        BadCall{"c_holds_bias",
                [](Call& c) { c.tensors.bias->data = c.c.data() + 128; },
                "c",
                {"memory with bias,"}},
        BadCall{"residual_is_some_of_c",
                [](Call& c) {
                  c.tensors.residual = c.tensors.c;
                  c.tensors.residual->stride[1] = 0;
                },
                "c",
                {"memory with residual,", "but for a residual that is the result"}},
        BadCall{"residual_dtype",
                [](Call& c) { c.tensors.residual->dtype = DType::fp16; },
                "residual",
                {"fp16", "bf16", "the dtype of the result"}},
        BadCall{"residual_rows",
                [](Call& c) { c.tensors.residual->shape[1] = 4; },
                "residual",
                {"rows is 4", "5"}},
        BadCall{"bias_dtype",
                [](Call& c) { c.tensors.bias->dtype = DType::fp32; },
                "bias",
                {"fp32", "bf16", "the dtype of the result"}},
        BadCall{"bias_size", [](Call& c) { c.tensors.bias->shape[0] = 16; }, "bias", {"16", "32"}},
        BadCall{"bias_rank", [](Call& c) { c.tensors.bias->rank = 2; }, "bias", {"rank 2"}},
        BadCall{"bias_device",
                [](Call& c) { c.tensors.bias->device = kGpu; },
                "bias",
                {"cuda:0", "like a"}},
        BadCall{"kernel",
                [](Call& c) { c.options.kernel = "k4"; },
                "kernel",
                {"'k4'", "auto, cpu, nvfp4_simple"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
