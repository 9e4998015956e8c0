// Attention on the CPU, through the installed library. All keys are equal, so query i weighs the
// i + 1 keys that it sees equally; key j's value is j, so every output of query i is i / 2.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tilewright/attention.hpp"
#include "tilewright/version.hpp"

int main() {
  constexpr std::int64_t kBatch = 1, kSeqlen = 100, kHeads = 4, kHeadDim = 64;
  constexpr std::size_t kSize = kBatch * kSeqlen * kHeads * kHeadDim;
  const auto row = [](std::size_t i) { return static_cast<float>(i / (kHeads * kHeadDim)); };
  std::vector<float> q(kSize), k(kSize, 1.0f), v(kSize), o(kSize);
  for (std::size_t i = 0; i < kSize; ++i) {
    q[i] = std::sin(static_cast<float>(i));
    v[i] = row(i);
  }

  const auto view = [](auto& tensor) {
    return tilewright::contiguous<float, 4>(tensor.data(), tilewright::DType::fp32,
                                            {kBatch, kSeqlen, kHeads, kHeadDim});
  };
  try {
    tilewright::attention({.q = view(q), .k = view(k), .v = view(v), .o = view(o)},
                          {.causal = true});
  } catch (const tilewright::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }

  float worst = 0.0f;
  for (std::size_t i = 0; i < kSize; ++i) {
    worst = std::max(worst, std::abs(o[i] - row(i) / 2));
  }
  std::printf("Tilewright %s: largest error %.1e\n", tilewright::kVersion.data(),
              static_cast<double>(worst));
  return worst < 1e-3f ? 0 : 1;
}
