// The CPU backend in processes and threads that differ from a test's: numbers flushed to zero,
// forked, short of memory, with small stacks.
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cfenv>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <new>

#include "problems/expectation.hpp"
#include "problems/gemm_problem.hpp"
#include "problems/nvfp4_problem.hpp"
#include "problems/problem.hpp"
#include "problems/weight_problem.hpp"
#include "ran.hpp"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace tilewright::test {
namespace {

// While it lives this thread flushes subnormal numbers to zero, reads them as zero, and rounds up.
class UnusualFloatingPoint {
 public:
  UnusualFloatingPoint() {
    std::fegetenv(&before_);
    std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
    constexpr unsigned kFlushToZero = 0x8000;
    constexpr unsigned kSubnormalsAreZero = 0x0040;
    _mm_setcsr(_mm_getcsr() | kFlushToZero | kSubnormalsAreZero);
#endif
  }
  ~UnusualFloatingPoint() { std::fesetenv(&before_); }
  UnusualFloatingPoint(const UnusualFloatingPoint&) = delete;
  UnusualFloatingPoint& operator=(const UnusualFloatingPoint&) = delete;

 private:
  std::fenv_t before_{};
};

void in_unusual_floating_point(const std::function<void()>& call) {
  const UnusualFloatingPoint environment;
  call();
}

TEST(CpuEnvironment, QuantisingDoesNotDependOnTheFloatingPointEnvironment) {
  Ran ran;
  for (const Nvfp4Problem& problem : nvfp4_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    Nvfp4HostSet tensors = make_tensors(problem);
    in_unusual_floating_point([&] { quantize_nvfp4(tensors.views(problem), options_of(problem)); });
    expect_right(problem, tensors);
  }
}

// Of all codes under all scales.
TEST(CpuEnvironment, DequantisingDoesNotDependOnTheFloatingPointEnvironment) {
  constexpr std::int64_t kScales = 256;
  reference::HostTensor codes(DType::e2m1x2, {kScales, 8});
  reference::HostTensor scales(DType::e4m3, {kScales, 1});
  for (std::int64_t scale = 0; scale < kScales; ++scale) {
    scales.data()[scale] = static_cast<std::byte>(scale);
    for (std::int64_t i = 0; i < 8; ++i) {
      codes.data()[8 * scale + i] = static_cast<std::byte>(2 * i | (2 * i + 1) << 4);
    }
  }
  const auto dequantized = [&] {
    reference::HostTensor out(DType::fp32, {kScales, 16});
    dequantize_nvfp4({.codes = codes.view(), .scales = scales.view(), .out = out.view()});
    return out;
  };
  const reference::HostTensor expected = dequantized();
  in_unusual_floating_point([&] { EXPECT_TRUE(same_bytes(dequantized(), expected)); });
}

TEST(CpuEnvironment, PackingDoesNotDependOnTheFloatingPointEnvironment) {
  Ran ran;
  for (const WeightProblem& problem : weight_problems()) {
    ++ran;
    SCOPED_TRACE(testing::Message() << problem);
    WeightHostSet tensors = make_tensors(problem);
    WeightHostSet unpacked = without_weight(tensors);
    in_unusual_floating_point([&] {
      prepack_nvfp4_weight(tensors.prepack_views(), problem.layout);
      unpacked.packed = tensors.packed;
      unpack_nvfp4_weight(unpacked.unpack_views(), problem.layout);
    });
    expect_packed(problem, tensors);
    expect_unpacked(problem, tensors, unpacked);
  }
}

TEST(CpuEnvironment, GemmsAndAttentionDoNotDependOnTheFloatingPointEnvironment) {
  const GemmCase gemm{.m = 100, .n = 70, .k = 528, .c_dtype = DType::fp32};
  GemmHostSet matrices = make_tensors(gemm);
  gemm_nvfp4(matrices.views(gemm), options_of(gemm));
  const Problem problem{.q_len = 100, .kv_len = 150, .heads = 4, .dtype = DType::fp32};
  HostTensors tensors = make_tensors(problem);
  attention(tensors.views(), options_of(problem, "cpu"));

  GemmHostSet other_matrices = make_tensors(gemm);
  HostTensors other_tensors = make_tensors(problem);
  in_unusual_floating_point([&] {
    gemm_nvfp4(other_matrices.views(gemm), options_of(gemm));
    attention(other_tensors.views(), options_of(problem, "cpu"));
    EXPECT_EQ(std::fegetround(), FE_UPWARD) << "the caller's environment has changed";
  });
  EXPECT_TRUE(same_bytes(matrices.c, other_matrices.c));
  expect_same_bits(tensors, other_tensors);
}

// ---- Each in a process of its own, which a signal ends where it would not end by itself

constexpr unsigned kPatience_s = 60;

[[noreturn]] void exit_after(const std::function<bool()>& succeeds) {
  alarm(kPatience_s);
  std::_Exit(succeeds() ? EXIT_SUCCESS : EXIT_FAILURE);
}

const Problem kAttention{.q_len = 500, .kv_len = 500, .heads = 8, .dtype = DType::fp32};

// The tensors are the parent's: to make them takes OpenMP's threads, too.
TEST(CpuEnvironmentDeathTest, AForkedProcessWorks) {
  GTEST_FLAG_SET(death_test_style, "fast");  // forks, and does not start anew
  HostTensors expected = make_tensors(kAttention);
  HostTensors tensors = expected;
  attention(expected.views(), options_of(kAttention, "cpu"));
  const auto is_the_same = [&] {
    attention(tensors.views(), options_of(kAttention, "cpu"));
    return same_bytes(tensors.o, expected.o);
  };
  EXPECT_EXIT(exit_after(is_the_same), testing::ExitedWithCode(EXIT_SUCCESS), "");
  EXPECT_TRUE(is_the_same()) << "in the parent";
}

void limit_memory(std::size_t more_bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + more_bytes;
  const rlimit limits{.rlim_cur = limit, .rlim_max = limit};
  setrlimit(RLIMIT_AS, &limits);
}

TEST(CpuEnvironmentDeathTest, WithoutMemoryNothingIsWritten) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer ends a process that is out of memory";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // starts anew, with no memory left from before
  const Problem problem{.q_len = 1, .kv_len = 1, .head_dim = 16384, .dtype = DType::fp32};
  HostTensors tensors = make_tensors(problem);
  const auto throws_and_writes_nothing = [&] {
    const reference::HostTensor unwritten = tensors.o;
    limit_memory(4 << 20);  // less than the scratch memory of a thread
    try {
      attention(tensors.views(), options_of(problem, "cpu"));
    } catch (const std::bad_alloc&) {
      return same_bytes(tensors.o, unwritten);
    }
    return false;
  };
  EXPECT_EXIT(exit_after(throws_and_writes_nothing), testing::ExitedWithCode(EXIT_SUCCESS), "");
}

// A thread's stack holds no tiles.
TEST(CpuEnvironmentDeathTest, ASmallStackIsEnough) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "AddressSanitizer makes frames larger";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run_all = [](void*) -> void* {
    const GemmCase gemm{.m = 100, .n = 70, .k = 528, .b_is_packed = true};
    GemmHostSet matrices = make_tensors(gemm);
    gemm_nvfp4(matrices.views(gemm), options_of(gemm));
    HostTensors tensors = make_tensors(kAttention);
    attention(tensors.views(), options_of(kAttention, "cpu"));
    return nullptr;
  };
  const auto works_on_a_small_stack = [&] {
    constexpr std::size_t kStack_bytes = 96 << 10;
    pthread_attr_t attributes;
    pthread_t thread{};
    return pthread_attr_init(&attributes) == 0 &&
           pthread_attr_setstacksize(&attributes, kStack_bytes) == 0 &&
           pthread_create(&thread, &attributes, run_all, nullptr) == 0 &&
           pthread_join(thread, nullptr) == 0;
  };
  EXPECT_EXIT(exit_after(works_on_a_small_stack), testing::ExitedWithCode(EXIT_SUCCESS), "");
}

}  // namespace
}  // namespace tilewright::test
