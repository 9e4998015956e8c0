// Every CUDA kernel of attention on FP8 against the float64 oracle.
#include <functional>
#include <string>
#include <vector>

#include "device_set.hpp"
#include "hopper_test.hpp"
#include "problems/expectation.hpp"
#include "problems/fp8_expectation.hpp"
#include "problems/problem_sets.hpp"
#include "ran.hpp"
#include "tilewright/attention_fp8_kernels.hpp"

namespace tilewright::test {
namespace {

class AttentionFp8Gpu : public HopperTest {};

// A problem on the device, its outputs poisoned, and a workspace for it.
class DeviceFp8 : public DeviceSet<Fp8Set> {
 public:
  explicit DeviceFp8(const Fp8Problem& problem) : DeviceFp8(make_tensors(problem)) {}

  void launch(const AttentionFp8Options& options, Stream stream = nullptr) {
    launch(views(), options, stream);
  }

  void launch_without_lse(const AttentionFp8Options& options) {
    AttentionFp8Tensors tensors = views();
    tensors.lse.reset();
    launch(tensors, options, nullptr);
  }

 private:
  void launch(const AttentionFp8Tensors& tensors, const AttentionFp8Options& options,
              Stream stream) {
    if (!workspace_) {
      workspace_.emplace(attention_fp8_workspace_bytes(views(), options));
    }
    attention_fp8(tensors, options, workspace_->view(), stream);
  }

  explicit DeviceFp8(const Fp8HostSet& host)
      : DeviceSet(host,
                  {to_device(host), device_copy(host.v_transposed), device_copy(host.q_descale),
                   device_copy(host.k_descale), device_copy(host.v_descale)}) {}

  std::optional<DeviceWorkspace> workspace_;
};

// Runs twice: right, bit-equal, and nothing written outside the outputs. And twice without the LSE,
// for which there are kernels of their own.
void check_problem(const Fp8Problem& problem, const std::string& kernel) {
  SCOPED_TRACE(testing::Message() << kernel << ": " << problem);
  DeviceFp8 device(problem);
  AttentionFp8Options options = options_of(problem, kernel);
  options.check_values = problem.attention.seed % 2 == 0;
  device.launch(options);
  Fp8HostSet first = device.results();
  expect_right(problem, first, Weights::e4m3);
  EXPECT_TRUE(device.guards_untouched());

  device.reset_outputs();
  device.launch(options);
  Fp8HostSet second = device.results();
  expect_same_bits(first, second);

  if (!problem.attention.unnormalized) {
    device.reset_outputs();
    device.launch_without_lse(options);
    Fp8HostSet without_lse = device.results();
    expect_output_right(problem, without_lse);
    device.reset_outputs();
    device.launch_without_lse(options);
    Fp8HostSet again = device.results();
    expect_same_bits(without_lse, again);
  }
}

using Check = std::function<void(const Fp8Problem&, const std::string&)>;

// Of each kernel those problems that it takes.
void check_all(const std::vector<Fp8Problem>& problems, const Check& check = check_problem) {
  Ran all("kernels");
  const DeviceInfo& device = device_info({DeviceKind::cuda, 0});
  for (const Kernel<AttentionFp8>& kernel : kernels<AttentionFp8>()) {
    if (kernel.info.device != DeviceKind::cuda) {
      continue;
    }
    ++all;
    Ran ran(kernel.info.name);
    for (const Fp8Problem& problem : problems) {
      if (!can_run(kernel, constraints_of(problem), device)) {
        ++ran;
        check(problem, kernel.info.name);
      }
    }
  }
}

// The problems in every form of descales, and with values in rows and transposed.
std::vector<Fp8Problem> in_all_forms(const std::vector<Problem>& problems) {
  std::vector<Fp8Problem> all;
  for (const Problem& problem : problems) {
    for (const bool v_transposed : {false, true}) {
      for (const DescaleForm form : {DescaleForm::none, DescaleForm::tensor, DescaleForm::heads}) {
        all.push_back({.attention = problem, .descales = form, .v_transposed = v_transposed});
      }
      for (const int rows : {64, 128}) {
        all.push_back({.attention = problem,
                       .descales = DescaleForm::blocks,
                       .descale_rows = rows,
                       .v_transposed = v_transposed});
      }
    }
  }
  return all;
}

TEST_F(AttentionFp8Gpu, EveryForm) {
  std::vector<Problem> problems;
  for (const int head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      problems.push_back({.batch = 2,
                          .q_len = 200,
                          .kv_len = 330,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = head_dim,
                          .causal = causal});
    }
  }
  check_all(in_all_forms(problems));
}

TEST_F(AttentionFp8Gpu, SmallProblems) { check_all(fp8_problems(small_problems())); }

TEST_F(AttentionFp8Gpu, RandomProblems) { check_all(fp8_problems(random_problems())); }

class AttentionFp8FeaturesGpu : public HopperTest {
 protected:
  void SetUp() override {
    HopperTest::SetUp();
    if (!IsSkipped() && find_kernel<AttentionFp8>("flash_fp8") == nullptr) {
      GTEST_SKIP() << "no kernel takes features";
    }
  }

  static void check_all(const std::vector<Fp8Problem>& problems, const Check& check) {
    Ran ran;
    const Kernel<AttentionFp8>& kernel = *find_kernel<AttentionFp8>("flash_fp8");
    for (const Fp8Problem& problem : problems) {
      if (!can_run(kernel, constraints_of(problem), device_info({DeviceKind::cuda, 0}))) {
        ++ran;
        check(problem, kernel.info.name);
      }
    }
  }
};

TEST_F(AttentionFp8FeaturesGpu, SmallProblems) {
  check_all(fp8_problems(small_feature_problems()), check_problem);
}

// On a GPU, flash_fp8 chooses its larger tiles for larger problems than these.
TEST_F(AttentionFp8FeaturesGpu, EveryVariant) {
  const DeviceInfo& device = device_info({DeviceKind::cuda, 0});
  Ran variants("variants");
  for (const Kernel<AttentionFp8>& variant : find_kernel<AttentionFp8>("flash_fp8")->variants) {
    ++variants;
    Ran ran(variant.info.name, 2);
    for (const bool causal : {false, true}) {
      const Problem problem{.batch = 2,
                            .q_len = 400,
                            .kv_len = 530,
                            .heads = 2,
                            .kv_heads = 1,
                            .head_dim = variant.facts.head_dims.front().qk,
                            .causal = causal};
      for (const Fp8Problem& each : in_all_forms({problem})) {
        if (!can_run(variant, constraints_of(each), device)) {
          ++ran;
          check_problem(each, variant.info.name);
        }
      }
    }
  }
}

// Values of every other block count for nothing beside those of the others, but their keys count.
TEST_F(AttentionFp8FeaturesGpu, UnevenValues) {
  std::vector<Fp8Problem> problems;
  for (const int head_dim : {64, 128, 256}) {
    for (const int rows : {64, 128}) {
      problems.push_back({.attention = {.q_len = 200,
                                        .kv_len = 700,
                                        .heads = 2,
                                        .head_dim = head_dim,
                                        .causal = rows == 128},
                          .descales = DescaleForm::blocks,
                          .descale_rows = rows,
                          .v_transposed = true,
                          .uneven_values = true});
    }
  }
  check_all(problems, check_problem);
}

TEST_F(AttentionFp8FeaturesGpu, FeatureProblems) {
  check_all(fp8_problems(feature_problems()), check_problem);
}

TEST_F(AttentionFp8FeaturesGpu, ManyTiles) {
  check_all(fp8_problems(many_tile_problems()), check_problem);
}

TEST_F(AttentionFp8FeaturesGpu, NaNsAndInfiniteSinks) {
  check_all(fp8_problems(special_problems()), check_problem);
}

void check_captured(const Fp8Problem& problem, const std::string& kernel) {
  SCOPED_TRACE(testing::Message() << kernel << ": " << problem);
  DeviceFp8 device(problem);
  const AttentionFp8Options options = options_of(problem, kernel);
  device.launch(options);  // makes the workspace
  replay([&](Stream stream) { device.launch(options, stream); }, [&] { device.reset_outputs(); },
         [&] { expect_right(problem, device.results(), Weights::e4m3); });
}

TEST_F(AttentionFp8Gpu, RunsInACapturedGraph) {
  check_all(in_all_forms({{.q_len = 200, .kv_len = 333, .heads = 2, .head_dim = 128}}),
            check_captured);
}

}  // namespace
}  // namespace tilewright::test
