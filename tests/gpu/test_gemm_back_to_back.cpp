// Back-to-back launches of GEMMs, of which each may start while the one before ends: each reads
// what was written before it, and overwrites nothing that is still being read.
#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "device_problem.hpp"
#include "gemm_test.hpp"
#include "ran.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr int kRounds = 20;

bool is_equal(const HostTensor& x, const HostTensor& y) {
  return std::equal(x.data(), x.data() + x.bytes(), y.data(), y.data() + y.bytes());
}

class GemmBackToBackGpu : public GemmNvfp4Test {
 protected:
  GemmCase case_of(std::int64_t m, std::int64_t n, std::int64_t k,
                   DType a_dtype = DType::bf16) const {
    return {.m = m, .n = n, .k = k, .a_dtype = a_dtype, .b_is_packed = takes_packed_weights()};
  }

  // (M, K) that the kernel takes, where tiles are few and under stream-K.
  std::vector<std::pair<std::int64_t, std::int64_t>> sizes() const {
    std::vector<std::pair<std::int64_t, std::int64_t>> taken;
    for (const auto& [m, k] : {std::pair{7, 16384}, {40, 4096}, {300, 4096}}) {
      if (takes(case_of(m, kRows, k))) {
        taken.emplace_back(m, k);
      }
    }
    return taken;
  }

  GemmNvfp4Options options(const GemmCase& c, bool b_is_constant) const {
    GemmNvfp4Options options = options_of(c, kernel_);
    options.b_is_constant = b_is_constant && c.b_is_packed;
    return options;
  }

  static constexpr std::int64_t kRows = 336;  // of the weight

 private:
  std::string kernel_ = GetParam();  // options point to it
};

// The bytes of a device tensor, or the first of them, as another tensor.
template <std::size_t Rank>
TensorView bytes_as(const DeviceTensor& tensor, DType dtype,
                    const std::array<std::int64_t, Rank>& shape) {
  return contiguous(static_cast<std::byte*>(tensor.view().data), dtype, shape, kDevice);
}

// Two alternating rounds, each of which overwrites what the other wrote. Back to back they must
// give the same as launched one by one, however often they are repeated.
class Rounds {
 public:
  using Round = std::function<void(int which, const TensorView& out, Stream stream)>;

  Rounds(const HostTensor& out, Round round)
      : blank_(out), round_(std::move(round)), head_start_(kHeadStart_bytes) {
    for (int which = 0; which < 2; ++which) {
      outputs_.emplace_back(blank_);
      round_(which, outputs_.back().view(), stream_.get());
      stream_.wait();
      expected_.push_back(result(outputs_.back()));
    }
    while (outputs_.size() < kRounds) {
      outputs_.emplace_back(blank_);
    }
  }

  void expect_equal_back_to_back() {
    ASSERT_FALSE(is_equal(expected_[0], expected_[1]));
    reset();
    cuda_ok(cudaMemsetAsync(head_start_.data(), 0, kHeadStart_bytes, stream_.get()));
    queue();  // queues everything before the device starts with the first
    expect_results();
  }

  void expect_equal_in_a_graph() {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    cuda_ok(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    queue();
    cuda_ok(cudaStreamEndCapture(stream_.get(), &graph));
    cuda_ok(cudaGraphInstantiate(&executable, graph, 0));
    for (int replay = 0; replay < 3; ++replay) {
      reset();
      cuda_ok(cudaGraphLaunch(executable, stream_.get()));
      expect_results();
    }
    cudaGraphExecDestroy(executable);
    cudaGraphDestroy(graph);
  }

 private:
  static constexpr std::size_t kHeadStart_bytes = std::size_t{2} << 30;

  void reset() {
    for (DeviceTensor& output : outputs_) {
      output.upload(blank_);
    }
  }

  void queue() const {
    for (int i = 0; i < kRounds; ++i) {
      round_(i % 2, outputs_[static_cast<std::size_t>(i)].view(), stream_.get());
    }
  }

  HostTensor result(const DeviceTensor& output) const {
    HostTensor host = blank_;
    output.download(host);
    return host;
  }

  void expect_results() const {
    stream_.wait();
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      EXPECT_TRUE(is_equal(result(outputs_[i]), expected_[i % 2])) << "round " << i;
    }
  }

  HostTensor blank_;
  Round round_;
  DeviceBuffer head_start_;
  DeviceStream stream_;
  std::vector<DeviceTensor> outputs_;
  std::vector<HostTensor> expected_;
};

// Rounds of two GEMMs with one workspace. `link` gives the second what the first wrote.
void expect_chain(
    const GemmCase& first, const GemmNvfp4Options& first_options, const GemmCase& second,
    const GemmNvfp4Options& second_options,
    const std::function<void(const DeviceTensor& between, GemmNvfp4Tensors& use)>& link) {
  GemmCase other = first;
  ++other.seed;
  const GemmHostSet maker = make_tensors(first);
  GemmSet<DeviceTensor> makers[] = {to_device(maker), to_device(make_tensors(other))};
  const DeviceTensor between(maker.c);
  const GemmHostSet host = make_tensors(second);
  GemmSet<DeviceTensor> user = to_device(host);
  const std::size_t bytes =
      std::max(gemm_nvfp4_workspace_bytes(makers[0].views(first), first_options),
               gemm_nvfp4_workspace_bytes(user.views(second), second_options));
  const DeviceWorkspace workspace(bytes);
  Rounds rounds(host.c, [&](int which, const TensorView& out, Stream stream) {
    GemmNvfp4Tensors make = makers[which].views(first);
    make.c = between.view();
    gemm_nvfp4(make, first_options, workspace.view(), stream);
    GemmNvfp4Tensors use = user.views(second);
    link(between, use);
    use.c = out;
    gemm_nvfp4(use, second_options, workspace.view(), stream);
  });
  rounds.expect_equal_back_to_back();
  rounds.expect_equal_in_a_graph();
}

TEST_P(GemmBackToBackGpu, AGemmReadsWhatTheOneBeforeWrote) {
  bool has_stream_k = false;
  Ran ran;
  for (const auto& [m, k] : sizes()) {
    ++ran;
    const GemmCase first = case_of(m, k, 256);
    GemmCase second = case_of(m, kRows, k);
    second.bias = true;
    SCOPED_TRACE(testing::Message() << GetParam() << ": " << second);
    has_stream_k |= stream_k_tiles(second) > 0;
    expect_chain(first, options(first, true), second, options(second, true),
                 [](const DeviceTensor& between, GemmNvfp4Tensors& use) {
                   use.a = between.view();
                   use.bias = bytes_as(between, DType::bf16, std::array{kRows});
                 });
  }
  EXPECT_TRUE(has_stream_k || !takes_packed_weights());
}

// For kernels that take NVFP4 activations.
class ActivationsBackToBackGpu : public GemmBackToBackGpu {};

TEST_P(ActivationsBackToBackGpu, CodesThatWereJustWrittenAreWaitedFor) {
  Ran ran;
  for (const auto& [m, k] : sizes()) {
    const GemmCase first = case_of(m, k / 4, 256);  // as many bytes
    const GemmCase second = case_of(m, kRows, k, DType::e2m1x2);
    if (takes(second)) {
      ++ran;
      SCOPED_TRACE(testing::Message() << GetParam() << ": " << second);
      expect_chain(first, options(first, true), second, options(second, true),
                   [m, k](const DeviceTensor& between, GemmNvfp4Tensors& use) {
                     use.a = bytes_as(between, DType::e2m1x2, std::array{m, k / 2});
                   });
    }
  }
}

TEST_P(GemmBackToBackGpu, AWeightThatWasJustWrittenIsWaitedFor) {
  constexpr std::int64_t kColumns = 512;
  Ran ran;
  for (const auto& [m, k] : sizes()) {
    ++ran;
    const GemmCase second = case_of(m, 64, kColumns);
    const bool is_packed = second.b_is_packed;
    const std::array shape = is_packed ? packed_nvfp4_weight_shape(second.n, kColumns)
                                       : std::array{second.n, kColumns / 2};
    const std::int64_t n = (shape[0] * shape[1] / 2 / m / 16 + 1) * 16;  // no fewer bytes
    const GemmCase first = case_of(m, n, k);
    SCOPED_TRACE(testing::Message() << GetParam() << ": " << second);
    expect_chain(first, options(first, true), second, options(second, false),
                 [&](const DeviceTensor& between, GemmNvfp4Tensors& use) {
                   use.b = bytes_as(between, is_packed ? DType::u8 : DType::e2m1x2, shape);
                 });
  }
}

TEST_P(ActivationsBackToBackGpu, ThatWereDequantizedAreNotOverwrittenBeforeTheirEnd) {
  Ran ran;
  for (const auto& [m, k] : sizes()) {
    const GemmCase c = case_of(m, kRows, k, DType::e2m1x2);
    if (!takes(c)) {
      continue;
    }
    ++ran;
    SCOPED_TRACE(testing::Message() << GetParam() << ": " << c);
    GemmCase other = c;
    ++other.seed;
    const GemmHostSet host = make_tensors(c);
    GemmSet<DeviceTensor> sets[] = {to_device(host), to_device(make_tensors(other))};
    const std::size_t bytes = gemm_nvfp4_workspace_bytes(sets[0].views(c), options(c, true));
    const DeviceWorkspace workspace(bytes);
    Rounds rounds(host.c, [&](int which, const TensorView& out, Stream stream) {
      GemmNvfp4Tensors tensors = sets[which].views(c);
      tensors.c = out;
      gemm_nvfp4(tensors, options(c, true), workspace.view(), stream);
    });
    rounds.expect_equal_back_to_back();
    rounds.expect_equal_in_a_graph();
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmBackToBackGpu, testing::ValuesIn(nvfp4_kernels()), test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, ActivationsBackToBackGpu,
                         testing::ValuesIn(nvfp4_kernels(DType::e2m1x2)), test_name);

}  // namespace
}  // namespace tilewright::test
