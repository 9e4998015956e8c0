// NVFP4 on the GPU: the bytes of the float64 model, and of the CPU backend.
#include <cstring>
#include <random>

#include "bad_call.hpp"
#include "captured_graph.hpp"
#include "device_problem.hpp"
#include "hopper_test.hpp"
#include "problems/dequantize_problem.hpp"
#include "problems/nvfp4_problem.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

class Nvfp4Gpu : public HopperTest {};

// A problem on the device, its outputs poisoned, with a workspace of random bytes.
class DeviceQuantize {
 public:
  explicit DeviceQuantize(const Nvfp4Problem& problem)
      : DeviceQuantize(problem, make_tensors(problem)) {}

  DeviceQuantize(const Nvfp4Problem& problem, Nvfp4HostSet host)
      : problem_(problem),
        host_(std::move(host)),
        device_{.x = DeviceTensor(host_.x),
                .codes = DeviceTensor(host_.codes),
                .scales = DeviceTensor(host_.scales),
                .global_scale = DeviceTensor(host_.global_scale)},
        workspace_(quantize_nvfp4_workspace_bytes(device_.views(problem), options_of(problem))) {}

  void launch(Stream stream) {
    quantize_nvfp4(device_.views(problem_), options_of(problem_), workspace_.view(), stream);
  }

  void reset_outputs() {
    device_.codes.upload(host_.codes);
    device_.scales.upload(host_.scales);
    device_.global_scale.upload(host_.global_scale);
  }

  Nvfp4HostSet run() {
    launch(nullptr);
    cuda_ok(cudaDeviceSynchronize());
    return result();
  }

  Nvfp4HostSet result() {
    Nvfp4HostSet result = host_;
    device_.codes.download(result.codes);
    device_.scales.download(result.scales);
    device_.global_scale.download(result.global_scale);
    return result;
  }

  bool guards_untouched() const {
    return device_.codes.guards_untouched() && device_.scales.guards_untouched() &&
           device_.global_scale.guards_untouched();
  }

 private:
  Nvfp4Problem problem_;
  Nvfp4HostSet host_;
  Nvfp4Set<DeviceTensor> device_;
  DeviceWorkspace workspace_;
};

void expect_same_bits(const Nvfp4HostSet& a, const Nvfp4HostSet& b) {
  EXPECT_TRUE(same_bytes(a.global_scale, b.global_scale));
  EXPECT_TRUE(same_bytes(a.scales, b.scales));
  EXPECT_TRUE(same_bytes(a.codes, b.codes));
}

Nvfp4HostSet quantized_on_the_cpu(const Nvfp4Problem& problem, Nvfp4HostSet tensors) {
  quantize_nvfp4(tensors.views(problem), options_of(problem));
  return tensors;
}

TEST_F(Nvfp4Gpu, SmallProblems) {
  Ran ran;
  for (const Nvfp4Problem& problem : nvfp4_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    DeviceQuantize device(problem);
    const Nvfp4HostSet first = device.run();
    expect_right(problem, first);
    EXPECT_TRUE(device.guards_untouched());
    device.reset_outputs();
    expect_same_bits(first, device.run());
  }
}

TEST_F(Nvfp4Gpu, LargeProblemsEqualTheCpu) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const auto& [rows, columns] :
         {std::pair{4099, 2064}, std::pair{40, 300000}, std::pair{200000, 16}}) {
      for (const Nvfp4Inputs inputs :
           {Nvfp4Inputs::normal, Nvfp4Inputs::poison, Nvfp4Inputs::graded}) {
        const Nvfp4Problem problem{.rows = rows,
                                   .columns = columns,
                                   .dtype = dtype,
                                   .layout = ScaleLayout::swizzled,
                                   .inputs = inputs,
                                   .seed = std::random_device()()};
        SCOPED_TRACE(testing::Message() << problem);
        Nvfp4HostSet host = make_tensors(problem);
        const Nvfp4HostSet expected = quantized_on_the_cpu(problem, host);
        expect_same_bits(DeviceQuantize(problem, std::move(host)).run(), expected);
      }
    }
  }
}

// Pattern number `i` of all, in an order in which 16 neighbours span four powers of two.
std::uint16_t pattern_of(DType dtype, std::int64_t i) {
  const std::int64_t step = dtype == DType::fp16 ? 256 : 32;
  const std::int64_t block = i / 16;
  return static_cast<std::uint16_t>(i % 16 * step + block % step + block / step * (16 * step));
}

// 2^32 floats would take long on the CPU: every bit pattern of the upper half, with any lower one.
TEST_F(Nvfp4Gpu, EveryBitPatternEqualsTheCpu) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const GlobalScale kind : {GlobalScale::encode, GlobalScale::decode}) {
      for (const float scale : {1.0f, 0.37f, 1e-20f, 1e20f}) {
        const Nvfp4Problem problem{
            .rows = 64, .columns = 16384, .dtype = dtype, .kind = kind, .global_scale = scale};
        SCOPED_TRACE(testing::Message() << problem);
        Nvfp4HostSet host = make_tensors(problem);
        std::mt19937 random(std::random_device{}());
        for (std::int64_t i = 0; i < problem.rows * problem.columns; ++i) {
          const std::uint16_t pattern = pattern_of(dtype, i + i / 65536);
          if (dtype == DType::fp32) {
            reinterpret_cast<std::uint32_t*>(host.x.data())[i] =
                std::uint32_t{pattern} << 16 | (random() & 0xffffu);
          } else {
            reinterpret_cast<std::uint16_t*>(host.x.data())[i] = pattern;
          }
        }
        const Nvfp4HostSet expected = quantized_on_the_cpu(problem, host);
        expect_same_bits(DeviceQuantize(problem, std::move(host)).run(), expected);
      }
    }
  }
}

TEST_F(Nvfp4Gpu, RepeatsAreEqualBesideABusyStream) {
  constexpr int kRepeats = 300;
  const Nvfp4Problem load{.rows = 4096, .columns = 4096};
  const Nvfp4Problem problem{.rows = 700, .columns = 2048, .layout = ScaleLayout::swizzled};
  DeviceQuantize busy(load);
  DeviceQuantize device(problem);
  const DeviceStream busy_stream;
  const DeviceStream stream;
  const Nvfp4HostSet first = device.run();
  expect_right(problem, first);
  for (int i = 0; i < kRepeats && !HasFailure(); ++i) {
    device.reset_outputs();
    if (busy_stream.is_idle()) {
      busy.launch(busy_stream.get());
    }
    device.launch(stream.get());
    stream.wait();
    expect_same_bits(first, device.result());
  }
  busy_stream.wait();
}

TEST_F(Nvfp4Gpu, RunsInACapturedGraph) {
  const Nvfp4Problem problem{.rows = 300, .columns = 1024, .layout = ScaleLayout::swizzled};
  DeviceQuantize device(problem);
  const CapturedGraph graph([&](Stream stream) { device.launch(stream); });
  for (int replay = 0; replay < 2; ++replay) {
    device.reset_outputs();
    graph.replay();
    expect_right(problem, device.result());
  }
}

TEST_F(Nvfp4Gpu, OffsetsBeyond32Bits) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 31) + 64;  // elements of x between the rows
  const Nvfp4Problem problem{.rows = 2, .columns = 64, .global_scale = 1.0f};
  Nvfp4HostSet host = make_tensors(problem);
  const std::size_t row_bytes = host.x.bytes() / 2;
  const DeviceBuffer x(2 * kFar + row_bytes);
  for (int row = 0; row < 2; ++row) {
    copy_bytes(x.data() + row * 2 * kFar, host.x.data() + row * row_bytes, row_bytes);
  }
  const DeviceTensor codes(host.codes);
  const DeviceTensor scales(host.scales);
  const DeviceTensor global_scale(host.global_scale);
  TensorView far = host.x.view();
  far.data = x.data();
  far.device = {DeviceKind::cuda, 0};
  far.stride[0] = kFar;
  quantize_nvfp4({.x = far,
                  .codes = codes.view(),
                  .scales = scales.view(),
                  .global_scale = global_scale.view()},
                 options_of(problem));
  cuda_ok(cudaDeviceSynchronize());
  codes.download(host.codes);
  scales.download(host.scales);
  expect_right(problem, host);
}

TEST_F(Nvfp4Gpu, SmallProblemsOfDequantizing) {
  Ran ran;
  for (const DequantizeProblem& problem : dequantize_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    DequantizeHostSet host = make_tensors(problem);
    DequantizeSet<DeviceTensor> device{.codes = DeviceTensor(host.codes),
                                       .scales = DeviceTensor(host.scales),
                                       .global_scale = DeviceTensor(host.global_scale),
                                       .out = DeviceTensor(host.out)};
    dequantize_nvfp4(device.views(problem), options_of(problem));
    cuda_ok(cudaDeviceSynchronize());
    device.out.download(host.out);
    expect_right(problem, host);
    EXPECT_TRUE(device.out.guards_untouched());
  }
}

TEST_F(Nvfp4Gpu, SmallProblemsOfSwizzling) {
  for (const std::int64_t rows : {1, 127, 129, 1000}) {
    for (const std::int64_t blocks : {1, 4, 37, 256}) {
      HostTensor linear(DType::e4m3, {rows, blocks}, {blocks + 5, 1});
      std::mt19937 random(static_cast<unsigned>(rows * blocks));
      std::generate(linear.data(), linear.data() + linear.bytes(),
                    [&] { return static_cast<std::byte>(random()); });
      const auto shape = swizzled_scale_shape(rows, blocks);
      HostTensor expected(DType::e4m3, {shape[0], shape[1]});
      HostTensor swizzled = expected;
      std::memset(swizzled.data(), static_cast<int>(kUnwritten), swizzled.bytes());
      swizzle_scales(linear.view(), expected.view());

      const DeviceTensor device_linear(linear);
      const DeviceTensor device_swizzled(swizzled);
      swizzle_scales(device_linear.view(), device_swizzled.view());
      cuda_ok(cudaDeviceSynchronize());
      device_swizzled.download(swizzled);
      EXPECT_TRUE(same_bytes(swizzled, expected)) << rows << " " << blocks;

      unswizzle_scales(device_swizzled.view(), device_linear.view());
      cuda_ok(cudaDeviceSynchronize());
      HostTensor back = linear;
      device_linear.download(back);
      EXPECT_TRUE(same_bytes(back, linear)) << rows << " " << blocks;
      EXPECT_TRUE(device_linear.guards_untouched() && device_swizzled.guards_untouched());
    }
  }
}

TEST_F(Nvfp4Gpu, WrongArgumentsAreRefusedAndNothingIsWritten) {
  struct Call {
    QuantizeNvfp4Tensors tensors;
    Workspace workspace;
  };
  const std::vector<BadCallOf<Call>> cases = {
      {"misaligned_x", [](Call& c) { misplace(c.tensors.x, 8); }, "x", {"8 bytes past a 16-byte"}},
      {"x_stride", [](Call& c) { c.tensors.x.stride[0] = 68; }, "x", {"multiple of 8 elements"}},
      {"misaligned_codes",
       [](Call& c) { misplace(c.tensors.codes, 4); },
       "codes",
       {"4 bytes past a 8-byte"}},
      {"codes_stride",
       [](Call& c) { c.tensors.codes.stride[0] = 36; },
       "codes",
       {"multiple of 8 elements"}},
      {"small_workspace",
       [](Call& c) { c.workspace.bytes = 4095; },
       "workspace",
       {"needs 4096"},
       ErrorCode::workspace_too_small},
      {"no_workspace",
       [](Call& c) { c.workspace.data = nullptr; },
       "workspace",
       {"needs 4096"},
       ErrorCode::workspace_too_small},
  };
  const Nvfp4Problem problem{.rows = 20, .columns = 64};
  const Nvfp4HostSet before = make_tensors(problem);
  Nvfp4Set<DeviceTensor> device{.x = DeviceTensor(before.x),
                                .codes = DeviceTensor(before.codes),
                                .scales = DeviceTensor(before.scales),
                                .global_scale = DeviceTensor(before.global_scale)};
  const DeviceBuffer memory(4096);
  for (const BadCallOf<Call>& bad : cases) {
    Call call{device.views(problem), {memory.data(), 4096}};
    bad.spoil(call);
    expect_throws(bad, [&] { quantize_nvfp4(call.tensors, options_of(problem), call.workspace); });
  }
  cuda_ok(cudaDeviceSynchronize());
  Nvfp4HostSet after = before;
  device.codes.download(after.codes);
  device.scales.download(after.scales);
  device.global_scale.download(after.global_scale);
  expect_same_bits(before, after);
}

}  // namespace
}  // namespace tilewright::test
