// Attention on the CPU, through the installed library. All values of V are 1, so every output, a
// weighted mean of V's rows, must be 1 as well.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tilewright/attention.hpp"
#include "tilewright/version.hpp"

int main() {
  constexpr std::array<std::int64_t, 4> kShape = {2, 100, 4, 64};  // batch, seqlen, heads, head dim
  constexpr std::size_t kSize = 2 * 100 * 4 * 64;
  std::vector<float> q(kSize), k(kSize), v(kSize, 1.0f), o(kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    q[i] = std::sin(0.1f * static_cast<float>(i));
    k[i] = std::cos(0.3f * static_cast<float>(i));
  }

  const auto fp32 = tilewright::DType::fp32;
  const tilewright::AttentionTensors tensors = {
      .q = tilewright::contiguous(q.data(), fp32, kShape),
      .k = tilewright::contiguous(k.data(), fp32, kShape),
      .v = tilewright::contiguous(v.data(), fp32, kShape),
      .o = tilewright::contiguous(o.data(), fp32, kShape),
  };
  try {
    tilewright::attention(tensors, {.causal = true, .kernel = "cpu"});
  } catch (const tilewright::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }

  float worst = 0.0f;
  for (const float value : o) {
    worst = std::max(worst, std::abs(value - 1.0f));
  }
  std::printf("Tilewright %s: largest error %.1e\n", tilewright::kVersion.data(),
              static_cast<double>(worst));
  return worst < 1e-5f ? 0 : 1;
}
