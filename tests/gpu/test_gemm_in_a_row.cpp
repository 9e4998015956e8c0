// Products that follow each other on a stream, where one may start while the one before ends: each
// sees what was made before it, and overwrites nothing that is still being read.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "device_problem.hpp"
#include "gemm_test.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr int kRounds = 20;
constexpr std::int64_t kSize = 1024;  // rows and columns of a weight

bool is_equal(const HostTensor& x, const HostTensor& y) {
  return std::equal(x.data(), x.data() + x.bytes(), y.data(), y.data() + y.bytes());
}

class GemmInARowGpu : public GemmNvfp4Test {
 protected:
  bool packs() const { return GetParam() != "nvfp4_simple"; }

  GemmCase case_of(std::int64_t m, DType a_dtype, std::uint64_t seed) const {
    return {
        .m = m, .n = kSize, .k = kSize, .a_dtype = a_dtype, .b_is_packed = packs(), .seed = seed};
  }

  GemmNvfp4Options options(bool b_is_constant) const {
    return {.b_is_constant = b_is_constant && packs(), .kernel = kernel_};
  }

  // Of the cases that the kernel takes.
  std::vector<GemmCase> cases() const {
    std::vector<GemmCase> taken;
    for (const DType a_dtype : {DType::bf16, DType::e2m1x2}) {
      for (const std::int64_t m : {7, 40, 300}) {
        const GemmCase c = case_of(m, a_dtype, 1);
        if (takes(c)) {
          taken.push_back(c);
        }
      }
    }
    return taken;
  }

 private:
  std::string kernel_ = GetParam();  // options point to it
};

// Two rounds by turns, each of which overwrites what the other made. Launched one by one they give
// what they must give in a row, as often as they are repeated.
class Rounds {
 public:
  using Round = std::function<void(int which, const TensorView& out, Stream stream)>;

  Rounds(const HostTensor& out, Round round) : blank_(out), round_(std::move(round)) {
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

  void expect_equal_in_a_row() {
    ASSERT_FALSE(is_equal(expected_[0], expected_[1]));
    reset();
    queue();
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
  DeviceStream stream_;
  std::vector<DeviceTensor> outputs_;
  std::vector<HostTensor> expected_;
};

TEST_P(GemmInARowGpu, AProductReadsWhatTheOneBeforeWrote) {
  for (const GemmCase& c : cases()) {
    SCOPED_TRACE(testing::Message() << GetParam() << ": " << c);
    GemmCase other = c;
    other.seed = 2;
    const GemmCase second = case_of(c.m, DType::bf16, 3);
    const GemmHostSet host = make_tensors(second);
    GemmSet<DeviceTensor> makers[] = {to_device(make_tensors(c)), to_device(make_tensors(other))};
    GemmSet<DeviceTensor> user = to_device(host);
    const DeviceTensor between(host.c);
    const std::size_t bytes =
        std::max(gemm_nvfp4_workspace_bytes(makers[0].views(c), options(true)),
                 gemm_nvfp4_workspace_bytes(user.views(second), options(true)));
    const DeviceBuffer workspace(bytes);  // of all launches
    Rounds rounds(host.c, [&](int which, const TensorView& out, Stream stream) {
      GemmNvfp4Tensors make = makers[which].views(c);
      make.c = between.view();
      gemm_nvfp4(make, options(true), {workspace.data(), bytes}, stream);
      GemmNvfp4Tensors use = user.views(second);
      use.a = between.view();
      use.c = out;
      gemm_nvfp4(use, options(true), {workspace.data(), bytes}, stream);
    });
    rounds.expect_equal_in_a_row();
    rounds.expect_equal_in_a_graph();
  }
}

TEST_P(GemmInARowGpu, AWeightThatWasJustPackedIsWaitedFor) {
  if (!packs()) {
    GTEST_SKIP() << GetParam() << " takes no packed weight";
  }
  for (const GemmCase& c : cases()) {
    SCOPED_TRACE(testing::Message() << GetParam() << ": " << c);
    GemmCase other = c;
    other.seed = 2;
    const GemmHostSet host = make_tensors(c);
    GemmSet<DeviceTensor> sets[] = {to_device(host), to_device(make_tensors(other))};
    const DeviceTensor packed(host.packed_b);
    const std::size_t bytes = gemm_nvfp4_workspace_bytes(sets[0].views(c), options(false));
    const DeviceBuffer workspace(bytes);
    Rounds rounds(host.c, [&](int which, const TensorView& out, Stream stream) {
      prepack_nvfp4_weight({.codes = sets[which].b.view(),
                            .scales = sets[which].sfb.view(),
                            .packed = packed.view()},
                           c.layout, stream);
      GemmNvfp4Tensors product = sets[which].views(c);
      product.b = packed.view();
      product.c = out;
      gemm_nvfp4(product, options(false), {workspace.data(), bytes}, stream);
    });
    rounds.expect_equal_in_a_row();
    rounds.expect_equal_in_a_graph();
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, GemmInARowGpu, testing::ValuesIn(nvfp4_kernels()), test_name);

}  // namespace
}  // namespace tilewright::test
