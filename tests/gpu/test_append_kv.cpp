// Writing into KV caches on the GPU: the oracle's bytes, and nothing where values are wrong.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "bad_call.hpp"
#include "captured_graph.hpp"
#include "device_problem.hpp"
#include "hopper_test.hpp"
#include "problems/append_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

class AppendKvGpu : public HopperTest {};

// A problem on the device, its outputs poisoned.
class DeviceAppend {
 public:
  explicit DeviceAppend(AppendHostSet host)
      : host_(std::move(host)),
        device_{.k = DeviceTensor(host_.k),
                .v = DeviceTensor(host_.v),
                .k_cache = DeviceTensor(host_.k_cache),
                .v_cache = copy(host_.v_cache),
                .slot_mapping = copy(host_.slot_mapping),
                .cache_seqlens = copy(host_.cache_seqlens),
                .cu_seqlens_new = copy(host_.cu_seqlens_new),
                .block_table = copy(host_.block_table),
                .cache_batch_idx = copy(host_.cache_batch_idx),
                .rotary_cos = copy(host_.rotary_cos),
                .rotary_sin = copy(host_.rotary_sin),
                .positions = copy(host_.positions),
                .q = copy(host_.q),
                .q_out = copy(host_.q_out),
                .k_descale = copy(host_.k_descale),
                .v_descale = copy(host_.v_descale),
                .computed_k_descale = copy(host_.computed_k_descale),
                .computed_v_descale = copy(host_.computed_v_descale)} {}

  AppendKvTensors views() { return device_.views(); }

  void launch(const AppendKvOptions& options, Stream stream) {
    append_kv(device_.views(), options, stream);
  }

  void reset_outputs() {
    const auto from = host_.outputs();
    const auto to = device_.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i]->upload(*from[i]);
    }
  }

  AppendHostSet run(const AppendKvOptions& options) {
    launch(options, nullptr);
    cuda_ok(cudaDeviceSynchronize());
    return result();
  }

  AppendHostSet result() {
    AppendHostSet result = host_;
    const auto from = device_.outputs();
    const auto to = result.outputs();
    for (std::size_t i = 0; i < to.size(); ++i) {
      from[i]->download(*to[i]);
    }
    return result;
  }

  bool guards_untouched() {
    const auto outputs = device_.outputs();
    return std::ranges::all_of(outputs,
                               [](const auto* tensor) { return tensor->guards_untouched(); });
  }

 private:
  static std::optional<DeviceTensor> copy(const std::optional<HostTensor>& tensor) {
    return tensor ? std::optional<DeviceTensor>(std::in_place, *tensor) : std::nullopt;
  }

  AppendHostSet host_;
  AppendSet<DeviceTensor> device_;
};

void expect_same_bits(AppendHostSet a, AppendHostSet b) {
  const auto ours = a.outputs();
  const auto theirs = b.outputs();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(same_bytes(*ours[i], *theirs[i])) << "output " << i;
  }
}

AppendHostSet appended_on_the_cpu(const AppendProblem& problem) {
  AppendHostSet set = make_tensors(problem);
  append_kv(set.views(), options_of(problem));
  return set;
}

TEST_F(AppendKvGpu, SmallProblems) {
  Ran ran;
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const AppendProblem& problem : append_problems(dtype)) {
      ++ran;
      SCOPED_TRACE(testing::Message() << problem);
      DeviceAppend device(make_tensors(problem));
      AppendKvOptions options = options_of(problem);
      options.check_values = problem.seed % 2 == 0;
      AppendHostSet result = device.run(options);
      expect_right(problem, result);
      EXPECT_TRUE(device.guards_untouched());
    }
  }
}

TEST_F(AppendKvGpu, LargeProblemsEqualTheCpu) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const AppendScales scales :
         {AppendScales::none, AppendScales::sequence, AppendScales::token}) {
      const AppendProblem problem{.by = AppendBy::packed,
                                  .sequences = 60,
                                  .tokens = 200,
                                  .heads = 32,
                                  .kv_heads = 8,
                                  .head_dim = 128,
                                  .value_dim = 128,
                                  .page_size = 64,
                                  .rotary_dims = 128,
                                  .has_positions = true,
                                  .dtype = dtype,
                                  .scales = scales,
                                  .has_specials = true,
                                  .seed = 11};
      SCOPED_TRACE(testing::Message() << problem);
      DeviceAppend device(make_tensors(problem));
      expect_same_bits(device.run(options_of(problem)), appended_on_the_cpu(problem));
    }
  }
}

// Every bit pattern of k, by a few angles and descales.
TEST_F(AppendKvGpu, EveryBitPatternEqualsTheCpu) {
  for (const DType dtype : {DType::bf16, DType::fp16}) {
    for (const std::int64_t rotary_dims : {0, 64}) {
      for (const AppendScales scales :
           {AppendScales::none, AppendScales::tensor, AppendScales::token}) {
        const AppendProblem problem{.by = AppendBy::batch,
                                    .sequences = 16,
                                    .tokens = 64,
                                    .kv_heads = 1,
                                    .page_size = 32,
                                    .rotary_dims = rotary_dims,
                                    .dtype = dtype,
                                    .scales = scales};
        SCOPED_TRACE(testing::Message() << problem);
        AppendHostSet host = make_tensors(problem);
        auto* const patterns = reinterpret_cast<std::uint16_t*>(host.k.data());
        for (std::uint32_t i = 0; i < 65536; ++i) {
          patterns[i] = static_cast<std::uint16_t>(i * 40503u);
        }
        DeviceAppend device(host);
        append_kv(host.views(), options_of(problem));
        expect_same_bits(device.run(options_of(problem)), host);
      }
    }
  }
}

TEST_F(AppendKvGpu, RunsInACapturedGraph) {
  const AppendProblem problem{
      .by = AppendBy::packed, .heads = 4, .rotary_dims = 64, .scales = AppendScales::token};
  DeviceAppend device(make_tensors(problem));
  const CapturedGraph graph([&](Stream stream) { device.launch(options_of(problem), stream); });
  for (int replay = 0; replay < 2; ++replay) {
    device.reset_outputs();
    graph.replay();
    AppendHostSet result = device.result();
    expect_right(problem, result);
  }
}

// Wrong values of one tensor, which a check finds and without which nothing is written.
struct WrongValues {
  const char* argument;
  AppendProblem problem;
  std::optional<HostTensor> AppendHostSet::*tensor;
  std::vector<double> values;
};

TEST_F(AppendKvGpu, RowsOfWrongValuesAreFoundOrLeftOut) {
  constexpr double kMax = std::numeric_limits<int>::max();
  const AppendProblem slots{.by = AppendBy::slots, .heads = 2, .rotary_dims = 64};
  const AppendProblem paged{.by = AppendBy::batch, .heads = 2, .rotary_dims = 64};
  AppendProblem contiguous = paged;
  contiguous.is_paged = false;
  contiguous.seed = 2;  // with cache_batch_idx
  const std::vector<WrongValues> cases = {
      {"slot_mapping", slots, &AppendHostSet::slot_mapping, {1e15, -2, -1e18, 240}},
      {"positions", slots, &AppendHostSet::positions, {300, -1, 1e15, -1e18}},
      {"cache_seqlens", paged, &AppendHostSet::cache_seqlens, {kMax, -1, -kMax}},
      {"block_table", paged, &AppendHostSet::block_table, {kMax, -1, 15}},
      {"cache_batch_idx", contiguous, &AppendHostSet::cache_batch_idx, {kMax, -1, 6}},
  };
  for (const WrongValues& wrong : cases) {
    SCOPED_TRACE(wrong.argument);
    AppendHostSet host = make_tensors(wrong.problem);
    HostTensor& tensor = *(host.*wrong.tensor);
    const auto count = static_cast<std::int64_t>(tensor.bytes() / size_bytes(tensor.view().dtype));
    for (std::int64_t i = 0; i < count; ++i) {
      reference::store(tensor.view(), i,
                       wrong.values[static_cast<std::size_t>(i) % wrong.values.size()]);
    }
    DeviceAppend device(host);
    AppendKvOptions options = options_of(wrong.problem);
    options.check_values = true;
    const BadCallOf<AppendKvTensors> bad{wrong.argument, {}, wrong.argument, {"must be"}};
    expect_throws(bad, [&] { device.launch(options, nullptr); });
    cuda_ok(cudaDeviceSynchronize());
    expect_same_bits(device.result(), host);

    options.check_values = false;
    AppendHostSet result = device.run(options);
    EXPECT_TRUE(same_bytes(result.k_cache, host.k_cache));
    EXPECT_TRUE(same_bytes(*result.v_cache, *host.v_cache));
    EXPECT_TRUE(device.guards_untouched());
  }
}

TEST_F(AppendKvGpu, StartsThatAreNoneWriteWithinTheCache) {
  const AppendProblem problem{
      .by = AppendBy::packed, .sequences = 4, .heads = 2, .rotary_dims = 64};
  AppendHostSet host = make_tensors(problem);
  constexpr std::array kStarts = {-7.0, 2e9, -2e9, 3.0, 2e9};
  for (int i = 0; i < 5; ++i) {
    reference::store(host.cu_seqlens_new->view(), i, kStarts[static_cast<std::size_t>(i)]);
  }
  DeviceAppend device(host);
  device.run(options_of(problem));
  EXPECT_TRUE(device.guards_untouched());
}

TEST_F(AppendKvGpu, OffsetsBeyond32Bits) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64;  // elements between the pages
  const AppendProblem problem{.by = AppendBy::slots, .kv_heads = 1};
  AppendHostSet host = make_tensors(problem);
  for (int row = 0; row < 15; ++row) {
    reference::store(host.slot_mapping->view(), row, row + 1 < 15 ? -1 : 16);  // page 1
  }
  DeviceAppend device(host);
  const DeviceBuffer cache(2 * kFar + 4096);
  AppendKvTensors tensors = device.views();
  tensors.k_cache.data = cache.data();
  tensors.k_cache.shape[0] = tensors.v_cache.shape[0] = 2;
  tensors.k_cache.stride[0] = kFar;
  append_kv(tensors);
  cuda_ok(cudaDeviceSynchronize());
  HostTensor row(DType::bf16, {64});
  copy_bytes(row.data(), cache.data() + 2 * kFar, row.bytes());
  EXPECT_EQ(std::memcmp(row.data(), host.k.data() + 14 * row.bytes(), row.bytes()), 0);
}

TEST_F(AppendKvGpu, WrongArgumentsAreRefusedAndNothingIsWritten) {
  const std::vector<BadCallOf<AppendKvTensors>> cases = {
      {"misaligned_k", [](auto& t) { misplace(t.k, 8); }, "k", {"8 bytes past a 16-byte"}},
      {"v_stride", [](auto& t) { t.v.stride[0] = 132; }, "v", {"multiple of 8 elements"}},
      {"misaligned_cache",
       [](auto& t) { misplace(t.k_cache, 4); },
       "k_cache",
       {"4 bytes past a 8-byte"}},
      {"cache_stride",
       [](auto& t) {
         t.k_cache.shape[1] = t.v_cache.shape[1] = 8;
         t.v_cache.stride[1] = 132;
       },
       "v_cache",
       {"multiple of 8 elements"}},
      {"misaligned_q", [](auto& t) { misplace(*t.q, 2); }, "q", {"2 bytes past a 16-byte"}},
      {"head_dim",
       [](auto& t) { t.v.shape[2] = t.v_cache.shape[3] = 60; },
       "v",
       {"head_dim 60", "multiples of 8"},
       ErrorCode::unsupported},
      {"fp32",
       [](auto& t) { t.k.dtype = t.v.dtype = t.q->dtype = t.q_out->dtype = DType::fp32; },
       "k",
       {"dtype fp32", "fp16, bf16"},
       ErrorCode::unsupported},
      {"slots_on_the_host",
       [](auto& t) { t.slot_mapping->device = {}; },
       "slot_mapping",
       {"must be on cuda:0 like k"}},
  };
  const AppendProblem problem{.heads = 2, .rotary_dims = 64, .scales = AppendScales::tensor};
  DeviceAppend device(make_tensors(problem));
  for (const auto& bad : cases) {
    AppendKvTensors tensors = device.views();
    bad.spoil(tensors);
    expect_throws(bad, [&] { append_kv(tensors); });
  }
  cuda_ok(cudaDeviceSynchronize());
  expect_same_bits(device.result(), make_tensors(problem));
}

}  // namespace
}  // namespace tilewright::test
