// The CPU backend against the oracle.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

#include "reference/attention.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/attention.hpp"

namespace tilewright {
namespace {

using reference::HostTensor;

struct Problem {
  DType dtype = DType::fp32;
  std::int64_t batch = 1, q_len = 1, kv_len = 1, heads = 1, kv_heads = 1, dim = 64;
  bool causal = false;
  bool heads_first = false;  // (B, H, N, D) in memory
  std::int64_t padding = 0;  // extra elements behind every head's row
  double stddev = 1.0;
  Window window{};
  float softcap = 0.0f;
  bool sinks = false;
};

std::ostream& operator<<(std::ostream& out, const Problem& p) {
  return out << name(p.dtype) << " batch " << p.batch << " q_len " << p.q_len << " kv_len "
             << p.kv_len << " heads " << p.heads << " kv_heads " << p.kv_heads << " dim " << p.dim
             << " causal " << p.causal << " heads_first " << p.heads_first << " padding "
             << p.padding << " stddev " << p.stddev << " window " << p.window.left.value_or(-1)
             << " " << p.window.right.value_or(-1) << " softcap " << p.softcap << " sinks "
             << p.sinks;
}

HostTensor make_tensor(const Problem& p, std::int64_t length, std::int64_t heads) {
  const std::int64_t row = p.dim + p.padding;
  const std::vector<std::int64_t> stride =
      p.heads_first ? std::vector<std::int64_t>{heads * length * row, row, length * row, 1}
                    : std::vector<std::int64_t>{heads * length * row, heads * row, row, 1};
  return HostTensor(p.dtype, {p.batch, length, heads, p.dim}, stride);
}

struct Tensors {
  explicit Tensors(const Problem& p, std::uint64_t seed)
      : q(make_tensor(p, p.q_len, p.heads)),
        k(make_tensor(p, p.kv_len, p.kv_heads)),
        v(make_tensor(p, p.kv_len, p.kv_heads)),
        o(make_tensor(p, p.q_len, p.heads)),
        lse(DType::fp32, {p.batch, p.heads, p.q_len}),
        sinks(DType::fp32, {p.heads}),
        has_sinks(p.sinks) {
    reference::fill_normal(q.view(), seed, p.stddev);
    reference::fill_normal(k.view(), seed + 1, p.stddev);
    reference::fill_normal(v.view(), seed + 2);
    reference::fill_normal(sinks.view(), seed + 3, 2.0);
    std::memset(o.data(), 0xFF, o.bytes());
    std::memset(lse.data(), 0xFF, lse.bytes());
  }

  AttentionTensors views() {
    AttentionTensors all{
        .q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = lse.view()};
    if (has_sinks) {
      all.sinks = sinks.view();
    }
    return all;
  }

  HostTensor q, k, v, o, lse, sinks;
  bool has_sinks;
};

// Half an ulp of the output's format, and FP32 arithmetic's own error.
double tolerance(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return 1e-5;
    case DType::fp16:
      return 6e-4;
    case DType::bf16:
      return 3e-3;
    default:  // no dtype of q
      break;
  }
  return 0;
}

void check(const Problem& p, std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << p << " seed " << seed);
  Tensors tensors(p, seed);
  const AttentionOptions options{
      .causal = p.causal, .window = p.window, .softcap = p.softcap, .kernel = "cpu"};
  attention(tensors.views(), options);
  const auto expected = reference::attention(tensors.views(), options);
  const auto o = reference::compare(tensors.o.view(), expected.o);
  const auto lse = reference::compare(tensors.lse.view(), expected.lse);
  EXPECT_TRUE(o.same_specials && lse.same_specials);
  EXPECT_LE(o.rel_fro, tolerance(p.dtype) * std::max(1.0, p.stddev));
  EXPECT_LE(lse.max_abs, 1e-5 * p.stddev * p.stddev);
  EXPECT_TRUE(reference::gaps_hold(tensors.o, std::byte{0xFF}));

  const HostTensor first = tensors.o;
  attention(tensors.views(), options);
  EXPECT_TRUE(same_bytes(first, tensors.o)) << "two runs differ";
}

TEST(CpuAttention, AgreesWithTheOracleOnRandomProblems) {
  constexpr std::array kDims = {1, 3, 16, 40, 64, 80, 96, 128, 256};
  constexpr std::array kTypes = {DType::fp32, DType::fp16, DType::bf16};
  constexpr int kProblems = 300;
  std::mt19937_64 rng(11);
  const auto pick = [&](int low, int high) {
    return low + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (int i = 0; i < kProblems; ++i) {
    Problem p;
    p.dtype = kTypes[static_cast<std::size_t>(i % 3)];
    p.batch = pick(1, 2);
    p.kv_heads = pick(1, 2);
    p.heads = p.kv_heads * pick(1, 3);
    p.q_len = pick(1, 300);
    p.kv_len = pick(1, 300);
    p.dim = kDims[static_cast<std::size_t>(pick(0, 8))];
    p.causal = pick(0, 1) == 1;
    p.heads_first = pick(0, 1) == 1;
    p.padding = pick(0, 1) * 5;
    p.stddev = i % 5 == 0 ? 6.0 : 1.0;
    check(p, static_cast<std::uint64_t>(3 * i));
  }
}

TEST(CpuAttention, WindowsCapsAndSinksAgreeWithTheOracle) {
  constexpr int kProblems = 200;
  std::mt19937_64 rng(12);
  const auto pick = [&](int low, int high) {
    return low + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(high - low + 1));
  };
  for (int i = 0; i < kProblems; ++i) {
    Problem p{.heads = 4, .kv_heads = pick(1, 2), .dim = 32};
    p.q_len = pick(1, 400);
    p.kv_len = pick(1, 400);
    p.causal = pick(0, 1) == 1;
    if (pick(0, 2) != 0) {
      p.window.left = i % 4 == 0 ? pick(0, 500) : pick(0, 40);
    }
    if (pick(0, 2) != 0) {
      p.window.right = pick(0, 40);
    }
    p.softcap = i % 3 == 0 ? 2.5f : 0.0f;
    p.sinks = i % 2 == 0;
    check(p, static_cast<std::uint64_t>(5 * i));
  }
}

TEST(CpuAttention, AWindowWithoutAnEndIsNone) {
  Tensors tensors({.q_len = 50, .kv_len = 80}, 7);
  attention(tensors.views(), {.causal = true});
  const HostTensor plain = tensors.o;
  constexpr std::int64_t kHuge = std::int64_t{1} << 40;
  attention(tensors.views(), {.causal = true, .window = {.left = kHuge, .right = kHuge}});
  EXPECT_TRUE(same_bytes(plain, tensors.o));
}

TEST(CpuAttention, TilesOfEitherSizeAndTheirEdges) {
  for (const std::int64_t length : {47, 48, 49, 127, 128, 129, 191, 192, 193, 500}) {
    check({.q_len = length, .kv_len = length, .heads = 8, .causal = true}, 5);
    check({.q_len = 193, .kv_len = length, .heads = 1, .causal = true}, 6);
  }
}

TEST(CpuAttention, NegativeAndZeroInputStrides) {
  Tensors tensors({.q_len = 60, .kv_len = 70, .heads = 2, .kv_heads = 2, .dim = 32}, 9);
  AttentionTensors views = tensors.views();
  // Keys and values from last to first, and one head seen twice.
  views.k.data = static_cast<const float*>(views.k.data) + 69 * views.k.stride[1];
  views.k.stride[1] = -views.k.stride[1];
  views.k.stride[2] = 0;
  views.v.data = static_cast<const float*>(views.v.data) + 69 * views.v.stride[1];
  views.v.stride[1] = -views.v.stride[1];
  attention(views, {.causal = true});
  const auto expected = reference::attention(views, {.causal = true});
  EXPECT_LE(reference::compare(tensors.o.view(), expected.o).rel_fro, 1e-5);
}

TEST(CpuAttention, ANaNInAnInputIsSeen) {
  Tensors tensors({.q_len = 5, .kv_len = 40, .dim = 16}, 2);
  reference::store(tensors.k.view(), 7 * 16, std::nan(""));
  attention(tensors.views());
  EXPECT_TRUE(std::isnan(reference::load(tensors.o.view(), 0)));
}

// Key j is seen by the last query always; earlier tiles of queries must not feel it.
TEST(CpuAttention, KeysBeyondTheDiagonalTileDoNotLeak) {
  const Problem p{
      .q_len = 512, .kv_len = 512, .heads = 8, .kv_heads = 8, .dim = 16, .causal = true};
  Tensors tensors(p, 4);
  const TensorView v = tensors.v.view();
  for (std::int64_t j = 400; j < 512; ++j) {
    for (std::int64_t d = 0; d < 8 * 16; ++d) {
      reference::store(v, j * v.stride[1] + d, std::nan(""));
    }
  }
  attention(tensors.views(), {.causal = true});
  for (std::int64_t i = 0; i < 192; ++i) {
    EXPECT_FALSE(std::isnan(reference::load(tensors.o.view(), i * 8 * 16))) << i;
  }
  EXPECT_TRUE(std::isnan(reference::load(tensors.o.view(), 511 * 8 * 16)));
}

}  // namespace
}  // namespace tilewright
