// Every wrong argument of quantize_kv_rows() and dequantize_kv_rows(): the code, the argument and
// the message of the exception, and outputs that stay untouched.
#include <array>

#include "bad_call.hpp"
#include "registry_test.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr Device kGpu{DeviceKind::cuda, 0};

// Right calls of both on a cache of three pages of four rows, which a case then spoils.
struct RowsCall {
  RowsCall() {
    poison(rows);
    poison(planes);
    poison(out);
    constexpr std::array kSlots = {0, 11, -1, 5};
    for (int i = 0; i < 4; ++i) {
      reference::store(slots.view(), i, kSlots[static_cast<std::size_t>(i)]);
    }
  }
  RowsCall(const RowsCall&) = delete;

  bool outputs_untouched() const {
    return is_poisoned(rows) && is_poisoned(planes) && is_poisoned(out);
  }

  void set_slot(int row, double slot) { reference::store(slots.view(), row, slot); }

  HostTensor x{DType::bf16, {4, 512}};
  HostTensor rows{DType::u8, {3, 4, 528}};
  HostTensor planes{DType::u8, {3, 4, 584}, {2880, 584, 1}};
  HostTensor slots{DType::int64, {4}};
  HostTensor out{DType::fp32, {4, 512}};

  QuantizeKvRowsTensors quantize{.x = x.view(), .rows = rows.view(), .slot_mapping = slots.view()};
  DequantizeKvRowsTensors dequantize{
      .rows = rows.view(), .out = out.view(), .slot_mapping = slots.view()};
  KvRowsOptions options;
};

using BadCall = BadCallOf<RowsCall>;

class BadQuantizedRows : public testing::TestWithParam<BadCall> {};
class BadDequantizedRows : public testing::TestWithParam<BadCall> {};

TEST_P(BadQuantizedRows, IsRefused) {
  RowsCall c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { quantize_kv_rows(c.quantize, c.options); });
}

TEST_P(BadDequantizedRows, IsRefused) {
  RowsCall c;
  GetParam().spoil(c);
  expect_throws(GetParam(), c, [&] { dequantize_kv_rows(c.dequantize, c.options); });
}

TEST(KvRowsCalls, ThatTheCasesSpoilAreRight) {
  RowsCall c;
  dequantize_kv_rows(c.dequantize, c.options);
  EXPECT_FALSE(is_poisoned(c.out));
  quantize_kv_rows(c.quantize, c.options);
  EXPECT_FALSE(is_poisoned(c.rows));
  c.quantize.rows = c.planes.view();
  quantize_kv_rows(c.quantize, c.options);
  EXPECT_FALSE(is_poisoned(c.planes));
}

TEST(KvRowsCalls, MayDequantizeOneRowTwice) {
  RowsCall c;
  c.set_slot(1, 0);
  dequantize_kv_rows(c.dequantize, c.options);
  EXPECT_FALSE(is_poisoned(c.out));
}

TEST(KvRowsCalls, OnAGpuThatIsNotThereAreRefused) {
  if (cuda_device_count() > 0) {
    GTEST_SKIP() << "there is a GPU";
  }
  RowsCall c;
  c.quantize.x.device = c.quantize.rows.device = c.quantize.slot_mapping.device = kGpu;
  const BadCall no_device{
      "no_device", {}, "device", {"cuda:0", cpu_only_notice().data()}, ErrorCode::no_device};
  expect_throws(no_device, c, [&] { quantize_kv_rows(c.quantize); });
}

TEST(KvRowsKernels, SayWhatTheyDoNotTake) {
  const Kernel<QuantizeKvRows>& hopper = named<QuantizeKvRows>("hopper");
  EXPECT_EQ(workspace_bytes(hopper, {.rows = 100}, kH200), 0u);
  using BadProblem = BadCallOf<KvRowsProblem>;
  for (const BadProblem& bad : {
           BadProblem{"dtype",
                      [](auto& p) { p.dtype = DType::fp16; },
                      "x",
                      {"has dtype fp16, kernel hopper takes fp32, bf16"},
                      ErrorCode::unsupported},
           BadProblem{"rows", [](auto& p) { p.rows = 0; }, "rows", {"is 0, must be at least 1"}},
       }) {
    KvRowsProblem problem;
    bad.spoil(problem);
    expect_throws(bad, [&] { workspace_bytes(hopper, problem, kH200); });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, BadQuantizedRows,
    testing::Values(
        BadCall{"x_rank",
                [](RowsCall& c) { c.quantize.x.rank = 1; },
                "x",
                {"rank 1", "rank 2 (tokens, dims)"}},
        BadCall{"x_dtype",
                [](RowsCall& c) { c.quantize.x.dtype = DType::fp16; },
                "x",
                {"fp16, must be fp32 or bf16"}},
        BadCall{"x_dims",
                [](RowsCall& c) { c.quantize.x.shape[1] = 448; },
                "x",
                {"dims is 448, must equal a row's 512"}},
        BadCall{"x_strided",
                [](RowsCall& c) { c.quantize.x.stride[1] = 2; },
                "x",
                {"dims must be contiguous"}},
        BadCall{"x_null", [](RowsCall& c) { c.quantize.x.data = nullptr; }, "x", {"null"}},
        BadCall{
            "x_misaligned", [](RowsCall& c) { misplace(c.quantize.x, 1); }, "x", {"aligned to 2"}},
        BadCall{"rows_rank",
                [](RowsCall& c) { c.quantize.rows.rank = 2; },
                "rows",
                {"rank 2", "rank 3 (pages, page size, row)"}},
        BadCall{"rows_of_no_format",
                [](RowsCall& c) { c.quantize.rows.shape[2] = 512; },
                "rows",
                {"has rows of 512 u8, must be of 512 bf16, or of 584, 528 or 288 u8"}},
        BadCall{"rows_dtype",
                [](RowsCall& c) { c.quantize.rows.dtype = DType::e4m3; },
                "rows",
                {"has rows of 528 e4m3"}},
        BadCall{"rows_device",
                [](RowsCall& c) { c.quantize.rows.device = kGpu; },
                "rows",
                {"must be on cpu like x"}},
        BadCall{"rows_strided",
                [](RowsCall& c) { c.quantize.rows.stride[2] = 2; },
                "rows",
                {"rows must be contiguous"}},
        BadCall{"rows_overlap",
                [](RowsCall& c) { c.quantize.rows.stride[1] = 512; },
                "rows",
                {"must not overlap"}},
        BadCall{"planes_with_gaps",
                [](RowsCall& c) {
                  c.quantize.rows = c.planes.view();
                  c.quantize.rows.stride[1] = 592;
                },
                "rows",
                {"stride 592 in dimension 1, must be 584: a page's bytes are contiguous"}},
        BadCall{"rows_on_x",
                [](RowsCall& c) {
                  c.quantize.x.data = c.rows.data();
                  c.quantize.x.stride[0] = 512;
                },
                "rows",
                {"x"}},
        BadCall{"slots_rank",
                [](RowsCall& c) { c.quantize.slot_mapping.rank = 2; },
                "slot_mapping",
                {"rank 2", "rank 1 (tokens)"}},
        BadCall{"slots_dtype",
                [](RowsCall& c) { c.quantize.slot_mapping.dtype = DType::int32; },
                "slot_mapping",
                {"int32, must be int64"}},
        BadCall{"slots_device",
                [](RowsCall& c) { c.quantize.slot_mapping.device = kGpu; },
                "slot_mapping",
                {"must be on cpu like x"}},
        BadCall{"slots_count",
                [](RowsCall& c) { c.quantize.slot_mapping.shape[0] = 3; },
                "slot_mapping",
                {"tokens is 3, must equal x's 4"}},
        BadCall{"slots_strided",
                [](RowsCall& c) { c.quantize.slot_mapping.stride[0] = 2; },
                "slot_mapping",
                {"must be contiguous"}},
        BadCall{"slots_misaligned",
                [](RowsCall& c) { misplace(c.quantize.slot_mapping, 4); },
                "slot_mapping",
                {"aligned to 8"}},
        BadCall{"slot_beyond",
                [](RowsCall& c) { c.set_slot(3, 12); },
                "slot_mapping",
                {"is 12 for row 3, must be -1 or less than 12, the slots of rows"}},
        BadCall{"slot_below",
                [](RowsCall& c) { c.set_slot(2, -2); },
                "slot_mapping",
                {"is -2 for row 2"}},
        BadCall{"slot_twice",
                [](RowsCall& c) { c.set_slot(3, 11); },
                "slot_mapping",
                {"gives slot 11 to rows 1 and 3"}},
        BadCall{"kernel",
                [](RowsCall& c) { c.options.kernel = "k1"; },
                "kernel",
                {"is 'k1'", "auto, cpu, hopper"}},
        BadCall{"a_gpu_kernel",
                [](RowsCall& c) { c.options.kernel = "hopper"; },
                "x",
                {"is on cpu, kernel hopper takes tensors on cuda"}}),
    kCaseName);

INSTANTIATE_TEST_SUITE_P(
    Calls, BadDequantizedRows,
    testing::Values(BadCall{"rows_of_no_format",
                            [](RowsCall& c) { c.dequantize.rows.shape[2] = 576; },
                            "rows",
                            {"has rows of 576 u8"}},
                    BadCall{"out_dtype",
                            [](RowsCall& c) { c.dequantize.out.dtype = DType::fp16; },
                            "out",
                            {"fp16, must be fp32 or bf16"}},
                    BadCall{"out_dims",
                            [](RowsCall& c) { c.dequantize.out.shape[1] = 511; },
                            "out",
                            {"dims is 511, must equal a row's 512"}},
                    BadCall{"out_device",
                            [](RowsCall& c) { c.dequantize.out.device = kGpu; },
                            "out",
                            {"must be on cpu like rows"}},
                    BadCall{"out_overlap",
                            [](RowsCall& c) { c.dequantize.out.stride[0] = 511; },
                            "out",
                            {"must not overlap"}},
                    BadCall{"out_on_rows",
                            [](RowsCall& c) {
                              c.dequantize.out.dtype = DType::bf16;
                              c.dequantize.out.data = c.rows.data();
                            },
                            "out",
                            {"rows"}},
                    BadCall{"slots_count",
                            [](RowsCall& c) { c.dequantize.slot_mapping.shape[0] = 3; },
                            "slot_mapping",
                            {"tokens is 3, must equal out's 4"}},
                    BadCall{"slot_beyond",
                            [](RowsCall& c) { c.set_slot(0, 12); },
                            "slot_mapping",
                            {"is 12 for row 0"}}),
    kCaseName);

}  // namespace
}  // namespace tilewright::test
