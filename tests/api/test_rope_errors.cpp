// Every wrong argument of rope(): the code, the argument and the message of the exception, and an
// output that stays untouched.
#include "bad_call.hpp"
#include "registry_test.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr Device kGpu{DeviceKind::cuda, 0};

// A right call on four tokens of two heads, which a case then spoils.
struct RopeCall {
  RopeCall() { poison(out); }
  RopeCall(const RopeCall&) = delete;

  bool outputs_untouched() const { return is_poisoned(out); }

  HostTensor x{DType::bf16, {4, 2, 32}};
  HostTensor out{DType::bf16, {4, 2, 32}};
  HostTensor cos{DType::fp32, {9, 8}};
  HostTensor sin{DType::fp32, {9, 8}};
  HostTensor positions{DType::int64, {4}};

  RopeTensors t{.x = x.view(),
                .out = out.view(),
                .rotary_cos = cos.view(),
                .rotary_sin = sin.view(),
                .positions = positions.view()};
  RopeOptions options;
};

using BadCall = BadCallOf<RopeCall>;

class BadRope : public testing::TestWithParam<BadCall> {};

TEST_P(BadRope, IsRefused) {
  RopeCall c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { rope(c.t, c.options); });
}

TEST(RopeCalls, ThatTheCasesSpoilAreRight) {
  RopeCall c;
  rope(c.t, c.options);
  EXPECT_FALSE(is_poisoned(c.out));
  c.t.x.data = c.out.data();
  rope(c.t, c.options);
}

TEST(RopeCalls, OnAGpuThatIsNotThereAreRefused) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  RopeCall c;
  c.t.x.device = c.t.out.device = c.t.positions.device = kGpu;
  c.t.rotary_cos.device = c.t.rotary_sin.device = kGpu;
  const BadCall no_device{
      "no_device", {}, "device", {"cuda:0", cpu_only_notice().data()}, ErrorCode::no_device};
  expect_throws(no_device, c, [&] { rope(c.t); });
}

TEST(RopeKernels, SayWhatTheyDoNotTake) {
  const Kernel<Rope>& hopper = named<Rope>("hopper");
  EXPECT_EQ(workspace_bytes(hopper, {.rows = 100, .heads = 64}, kH200), 0u);
  using BadProblem = BadCallOf<RopeProblem>;
  for (const BadProblem& bad : {
           BadProblem{"head_dim",
                      [](auto& p) { p.head_dim = 100; },
                      "x",
                      {"has head_dim 100, kernel hopper takes multiples of 8"},
                      ErrorCode::unsupported},
           BadProblem{"rotary_dims",
                      [](auto& p) { p.rotary_dims = 24; },
                      "rotary_cos",
                      {"has rotary_dims 24, kernel hopper takes multiples of 16"},
                      ErrorCode::unsupported},
           BadProblem{"dtype",
                      [](auto& p) { p.dtype = DType::fp32; },
                      "x",
                      {"has dtype fp32, kernel hopper takes fp16, bf16"},
                      ErrorCode::unsupported},
           BadProblem{"heads",
                      [](auto& p) { p.rows = p.heads = 1 << 16; },
                      "x",
                      {"has 2^31 or more heads in all rows"},
                      ErrorCode::unsupported},
           BadProblem{"rows", [](auto& p) { p.rows = 0; }, "rows", {"is 0, must be at least 1"}},
       }) {
    RopeProblem problem;
    bad.spoil(problem);
    expect_throws(bad, [&] { workspace_bytes(hopper, problem, kH200); });
  }
  EXPECT_EQ(workspace_bytes(named<Rope>("cpu"), {.head_dim = 100, .rotary_dims = 6}, kH200), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, BadRope,
    testing::Values(BadCall{"x_rank",
                            [](RopeCall& c) { c.t.x.rank = 1; },
                            "x",
                            {"rank 1",
                             "rank 3 (tokens, heads, head_dim), or 2 (tokens, head_dim)"}},
                    BadCall{"x_dtype",
                            [](RopeCall& c) { c.t.x.dtype = DType::int32; },
                            "x",
                            {"int32, must be fp32, fp16 or bf16"}},
                    BadCall{"x_strided",
                            [](RopeCall& c) { c.t.x.stride[2] = 2; },
                            "x",
                            {"head_dim must be contiguous"}},
                    BadCall{"out_rank",
                            [](RopeCall& c) { c.t.out.rank = 2; },
                            "out",
                            {"rank 2", "rank 3 (tokens, heads, head_dim), as x has"}},
                    BadCall{"out_dtype",
                            [](RopeCall& c) { c.t.out.dtype = DType::fp16; },
                            "out",
                            {"fp16, must be bf16, the dtype of x"}},
                    BadCall{"out_heads",
                            [](RopeCall& c) { c.t.out.shape[1] = 1; },
                            "out",
                            {"heads is 1, must equal x's 2"}},
                    BadCall{"out_device",
                            [](RopeCall& c) { c.t.out.device = kGpu; },
                            "out",
                            {"must be on cpu like x"}},
                    BadCall{"out_overlap",
                            [](RopeCall& c) { c.t.out.stride[1] = 16; },
                            "out",
                            {"must not overlap"}},
                    BadCall{"out_beside_x",
                            [](RopeCall& c) {
                              c.t.x.data = c.out.data() + 64;
                              c.t.x.shape[0] = c.t.out.shape[0] = c.t.positions.shape[0] = 3;
                            },
                            "out",
                            {"x", "or be x itself"}},
                    BadCall{"out_in_another_order",
                            [](RopeCall& c) {
                              c.t.x.data = c.out.data();
                              c.t.x.stride[0] = 32;
                              c.t.x.stride[1] = 128;
                            },
                            "out",
                            {"x", "or be x itself"}},
                    BadCall{"cos_device",
                            [](RopeCall& c) { c.t.rotary_cos.device = kGpu; },
                            "rotary_cos",
                            {"must be on cpu like x"}},
                    BadCall{"cos_dtype",
                            [](RopeCall& c) { c.t.rotary_cos.dtype = DType::fp16; },
                            "rotary_cos",
                            {"fp16, must be fp32 or bf16, the dtype of x"}},
                    BadCall{"cos_pairs",
                            [](RopeCall& c) { c.t.x.shape[2] = c.t.out.shape[2] = 14; },
                            "rotary_cos",
                            {"has 8 pairs, must have at most half of x's head_dim 14"}},
                    BadCall{"sin_dtype",
                            [](RopeCall& c) { c.t.rotary_sin.dtype = DType::bf16; },
                            "rotary_sin",
                            {"bf16, must be fp32, the dtype of rotary_cos"}},
                    BadCall{"sin_pairs",
                            [](RopeCall& c) { c.t.rotary_sin.shape[1] = 4; },
                            "rotary_sin",
                            {"pairs is 4, must equal rotary_cos' 8"}},
                    BadCall{"out_on_sin",
                            [](RopeCall& c) { c.t.rotary_sin.data = c.out.data(); },
                            "out",
                            {"rotary_sin"}},
                    BadCall{"positions_dtype",
                            [](RopeCall& c) { c.t.positions.dtype = DType::int32; },
                            "positions",
                            {"int32, must be int64"}},
                    BadCall{"positions_count",
                            [](RopeCall& c) { c.t.positions.shape[0] = 3; },
                            "positions",
                            {"tokens is 3, must equal x's 4"}},
                    BadCall{"a_position_beyond",
                            [](RopeCall& c) { reference::store(c.positions.view(), 2, 9); },
                            "positions",
                            {"is 9 for row 2, must be from 0 to 8, the positions of rotary_cos"}},
                    BadCall{"a_position_below",
                            [](RopeCall& c) { reference::store(c.positions.view(), 0, -1); },
                            "positions",
                            {"is -1 for row 0"}},
                    BadCall{"kernel",
                            [](RopeCall& c) { c.options.kernel = "k1"; },
                            "kernel",
                            {"is 'k1'", "auto, cpu, hopper"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
