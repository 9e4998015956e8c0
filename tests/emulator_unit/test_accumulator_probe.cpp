// The probe finds of the emulated tensor cores what they are: sums in FP32, one product after the
// other, rounded to nearest.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "cli/machine.hpp"
#include "cli/wgmma_chain.hpp"

namespace tilewright::cli {
namespace {

constexpr int kFp32Bits = 24;

TEST(AccumulatorProbe, FindsTheEmulatorsFp32) {
  const std::unique_ptr<Machine> machine = open_cuda_machine(0);
  for (const WgmmaChain& chain : {WgmmaChain{DType::e4m3, 8, 1}, WgmmaChain{DType::e4m3, 16, 3},
                                  WgmmaChain{DType::bf16, 8, 1}, WgmmaChain{DType::bf16, 32, 2}}) {
    SCOPED_TRACE(std::string(name(chain.dtype)) + ", N " + std::to_string(chain.n) + ", K " +
                 std::to_string(chain.k()));
    const AccumulatorFindings found =
        probe_accumulator(chain.products(), chain.instructions,
                          [&](const auto& sums) { return add_up_on(*machine, chain, sums); });
    EXPECT_EQ(found.bits, kFp32Bits);
    EXPECT_EQ(found.bits_beside_c, kFp32Bits);
    EXPECT_EQ(found.bits_of_c, kFp32Bits);
    EXPECT_EQ(found.bits_of_sum, kFp32Bits);
    EXPECT_EQ(found.rounding, Rounding::nearest_even);
    EXPECT_EQ(found.rounds_each_product, true);
    // A small product behind two large ones, which have made 0 by then, is not rounded at all.
    EXPECT_EQ(found.most_bits, chain.instructions <= 2 ? kMostBits : kFp32Bits);
  }
}

// Every N reads its B: the last column too has the sum of all products.
TEST(AccumulatorProbe, RunsEveryN) {
  const std::unique_ptr<Machine> machine = open_cuda_machine(0);
  for (const DType dtype : {DType::e4m3, DType::bf16}) {
    for (const int n : kWgmmaColumns) {
      const WgmmaChain chain{dtype, n, kMostInstructions};
      Summands sum;
      sum.start = 3.0f;
      double exact = sum.start;
      for (int i = 0; i < chain.k(); ++i) {
        sum.x.push_back(static_cast<float>(i % 7) - 3.0f);
        sum.y.push_back(static_cast<float>(i % 5) + 1.0f);
        exact += static_cast<double>(sum.x.back()) * sum.y.back();
      }
      EXPECT_EQ(add_up_on(*machine, chain, {sum})[0], exact) << name(dtype) << ", N " << n;
    }
  }
}

}  // namespace
}  // namespace tilewright::cli
