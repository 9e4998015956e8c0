// DeepSeek-V4's KV rows on the GPU: the oracle's bytes, and nothing where slots are wrong.
#include <cstring>
#include <functional>
#include <limits>

#include "bad_call.hpp"
#include "captured_graph.hpp"
#include "device_problem.hpp"
#include "hopper_test.hpp"
#include "problems/kv_rows_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

class KvRowsGpu : public HopperTest {};

// A problem's tensors on the device.
class DeviceRows {
 public:
  explicit DeviceRows(RowsHostSet host)
      : host_(std::move(host)),
        device_{DeviceTensor(host_.vectors), DeviceTensor(host_.rows),
                DeviceTensor(host_.slot_mapping)} {}

  RowsSet<DeviceTensor>& tensors() { return device_; }

  RowsHostSet result() {
    cuda_ok(cudaDeviceSynchronize());
    RowsHostSet result = host_;
    device_.vectors.download(result.vectors);
    device_.rows.download(result.rows);
    return result;
  }

  void reset() {
    device_.vectors.upload(host_.vectors);
    device_.rows.upload(host_.rows);
  }

  bool guards_untouched() const {
    return device_.vectors.guards_untouched() && device_.rows.guards_untouched();
  }

 private:
  RowsHostSet host_;
  RowsSet<DeviceTensor> device_;
};

TEST_F(KvRowsGpu, SmallProblemsQuantized) {
  Ran ran;
  for (const RowsProblem& problem : rows_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    DeviceRows device(make_vectors(problem));
    quantize_kv_rows(device.tensors().quantize(), {.check_values = problem.seed % 2 == 0});
    expect_quantized(problem, device.result());
    EXPECT_TRUE(device.guards_untouched());
  }
}

TEST_F(KvRowsGpu, SmallProblemsDequantized) {
  Ran ran;
  for (const RowsProblem& problem : rows_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    DeviceRows device(make_rows(problem));
    dequantize_kv_rows(device.tensors().dequantize(), {.check_values = problem.seed % 2 == 0});
    expect_dequantized(problem, device.result());
    EXPECT_TRUE(device.guards_untouched());
  }
}

constexpr std::array kFormats = {KvRowFormat::bf16, KvRowFormat::e4m3_bf16, KvRowFormat::e4m3,
                                 KvRowFormat::e2m1};

TEST_F(KvRowsGpu, LargeProblemsEqualTheCpu) {
  for (const KvRowFormat format : kFormats) {
    for (const DType dtype : {DType::bf16, DType::fp32}) {
      const RowsProblem problem{.format = format,
                                .dtype = dtype,
                                .rows = 4000,
                                .pages = 80,
                                .page_size = 64,
                                .has_specials = true,
                                .is_padded = true,
                                .seed = 11};
      SCOPED_TRACE(testing::Message() << problem);
      RowsHostSet host = make_vectors(problem);
      DeviceRows device(host);
      quantize_kv_rows(device.tensors().quantize());
      quantize_kv_rows(host.quantize());
      EXPECT_TRUE(same_bytes(device.result().rows, host.rows));
      dequantize_kv_rows(device.tensors().dequantize());
      dequantize_kv_rows(host.dequantize());
      EXPECT_TRUE(same_bytes(device.result().vectors, host.vectors));
    }
  }
}

// Every bit pattern of BF16, beside neighbours of other magnitudes.
TEST_F(KvRowsGpu, EveryBitPatternEqualsTheCpu) {
  for (const KvRowFormat format : kFormats) {
    for (const std::uint32_t step : {1u, 40503u}) {
      const RowsProblem problem{.format = format, .rows = 160, .page_size = 32};
      SCOPED_TRACE(testing::Message() << problem << " step " << step);
      RowsHostSet host = make_vectors(problem);
      auto* const patterns = reinterpret_cast<std::uint16_t*>(host.vectors.data());
      for (std::uint32_t i = 0; i < 160 * kKvRowDims; ++i) {
        patterns[i] = static_cast<std::uint16_t>(i * step);
      }
      for (std::int64_t row = 0; row < problem.rows; ++row) {
        reference::store(host.slot_mapping.view(), row, static_cast<double>(row));
      }
      DeviceRows device(host);
      quantize_kv_rows(device.tensors().quantize());
      quantize_kv_rows(host.quantize());
      EXPECT_TRUE(same_bytes(device.result().rows, host.rows));
    }
  }
}

TEST_F(KvRowsGpu, RunInACapturedGraph) {
  const RowsProblem problem{.format = KvRowFormat::e4m3_bf16, .page_size = 64};
  DeviceRows device(make_vectors(problem));
  const CapturedGraph graph(
      [&](Stream stream) { quantize_kv_rows(device.tensors().quantize(), {}, stream); });
  for (int replay = 0; replay < 2; ++replay) {
    device.reset();
    graph.replay();
    expect_quantized(problem, device.result());
  }
}

// A check names wrong slots; without it their rows are skipped.
TEST_F(KvRowsGpu, WrongSlotsAreFoundOrSkipped) {
  for (const KvRowFormat format : kFormats) {
    const RowsProblem problem{.format = format};
    SCOPED_TRACE(testing::Message() << problem);
    RowsHostSet host = make_vectors(problem);
    constexpr std::array kWrong = {48.0, -2.0, 1e15, -1e18};  // of 48
    for (std::int64_t row = 0; row < problem.rows; ++row) {
      reference::store(host.slot_mapping.view(), row, kWrong[static_cast<std::size_t>(row) % 4]);
    }
    DeviceRows device(host);
    const auto expect_untouched = [&] {
      const RowsHostSet result = device.result();
      EXPECT_TRUE(same_bytes(result.rows, host.rows));
      EXPECT_TRUE(same_bytes(result.vectors, host.vectors));
      EXPECT_TRUE(device.guards_untouched());
    };
    const BadCallOf<RowsHostSet> bad{"slots", {}, "slot_mapping", {"is 48 for row 0, must be -1"}};
    expect_throws(bad,
                  [&] { quantize_kv_rows(device.tensors().quantize(), {.check_values = true}); });
    expect_throws(
        bad, [&] { dequantize_kv_rows(device.tensors().dequantize(), {.check_values = true}); });
    expect_untouched();
    quantize_kv_rows(device.tensors().quantize());
    dequantize_kv_rows(device.tensors().dequantize());
    expect_untouched();
  }
}

TEST_F(KvRowsGpu, OffsetsBeyond32Bits) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 32) + 576;  // bytes between the pages
  const RowsProblem problem{.format = KvRowFormat::e4m3_bf16, .rows = 1, .page_size = 2};
  RowsHostSet host = make_vectors(problem);
  reference::store(host.slot_mapping.view(), 0, 3);  // page 1
  DeviceRows device(host);
  const DeviceBuffer cache(kFar + 4096);
  QuantizeKvRowsTensors tensors = device.tensors().quantize();
  tensors.rows.data = cache.data();
  tensors.rows.shape[0] = 2;
  tensors.rows.stride[0] = kFar;
  quantize_kv_rows(tensors);
  DequantizeKvRowsTensors back = device.tensors().dequantize();
  back.rows = tensors.rows;
  dequantize_kv_rows(back);
  quantize_kv_rows(host.quantize());
  dequantize_kv_rows(host.dequantize());
  EXPECT_TRUE(same_bytes(device.result().vectors, host.vectors));
}

TEST_F(KvRowsGpu, WrongArgumentsAreRefusedAndNothingIsWritten) {
  const std::vector<BadCallOf<QuantizeKvRowsTensors>> cases = {
      {"misaligned_x", [](auto& t) { misplace(t.x, 8); }, "x", {"8 bytes past a 16-byte"}},
      {"x_stride", [](auto& t) { t.x.stride[0] = 516; }, "x", {"multiple of 8 elements"}},
      {"misaligned_rows", [](auto& t) { misplace(t.rows, 4); }, "rows", {"4 bytes past a 16-byte"}},
      {"page_stride", [](auto& t) { t.rows.stride[0] += 8; }, "rows", {"multiple of 16 elements"}},
      {"slots_on_the_host",
       [](auto& t) { t.slot_mapping.device = {}; },
       "slot_mapping",
       {"must be on cuda:0 like x"}},
      {"kernel_of_the_cpu", [](auto& t) { t.rows.device = {}; }, "rows", {"must be on cuda:0"}},
  };
  const RowsProblem problem{.format = KvRowFormat::e4m3_bf16};
  RowsHostSet host = make_vectors(problem);
  DeviceRows device(host);
  for (const auto& bad : cases) {
    QuantizeKvRowsTensors tensors = device.tensors().quantize();
    bad.spoil(tensors);
    expect_throws(bad, [&] { quantize_kv_rows(tensors); });
  }
  EXPECT_TRUE(same_bytes(device.result().rows, host.rows));
}

}  // namespace
}  // namespace tilewright::test
