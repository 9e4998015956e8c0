#include "problems/nvfp4_problem.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "common/block_scale.hpp"
#include "problems/problem.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;
using reference::kBlock;

// A block's values, of one kind, so that its scale has something to do.
class BlockMaker {
 public:
  BlockMaker(Nvfp4Inputs inputs, std::uint64_t seed) : inputs_(inputs), random_(seed) {}

  std::array<float, kBlock> next() {
    std::array<float, kBlock> block{};
    if (inputs_ == Nvfp4Inputs::zeros) {
      return block;
    }
    if (inputs_ == Nvfp4Inputs::normal) {
      std::normal_distribution<float> normal;
      for (float& value : block) {
        value = normal(random_);
      }
      return block;
    }
    if (inputs_ == Nvfp4Inputs::graded) {
      fill_graded(block);
      return block;
    }
    fill_hard(block);
    if (inputs_ == Nvfp4Inputs::poison && pick(8) == 0) {
      constexpr float kInfinity = std::numeric_limits<float>::infinity();
      constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
      block[pick(kBlock)] = std::array{kInfinity, -kInfinity, kNaN, -kNaN}[pick(4)];
    }
    return block;
  }

 private:
  std::uint32_t pick(std::uint32_t count) { return static_cast<std::uint32_t>(random_() % count); }

  float with_sign(float value) { return pick(2) != 0 ? -value : value; }

  void fill_hard(std::array<float, kBlock>& block) {
    const std::uint32_t kind = pick(6);
    const auto exponent = static_cast<int>(pick(20)) - 12;
    for (float& value : block) {
      switch (kind) {
        case 0:  // codes' values, the ties between them, and their neighbours
          value = std::ldexp(0.25f * static_cast<float>(pick(26)), exponent);
          value = pick(4) == 0 ? std::nextafter(value, pick(2) != 0 ? 100.0f : 0.0f) : value;
          break;
        case 1:  // subnormal in FP32, zero in the other types
          value = std::bit_cast<float>(pick(1u << 23));
          break;
        case 2:
          value = pick(3) == 0 ? std::ldexp(1.0f, exponent - 20) : 0.0f;
          break;
        case 3:  // any finite bits
          value = std::bit_cast<float>(pick(0x7f800000u));
          break;
        case 4:
          value = std::ldexp(1.0f + static_cast<float>(pick(1u << 23)) * 0x1p-23f, exponent);
          break;
        default:
          value = std::ldexp(static_cast<float>(1 + pick(3)), 13);
          break;
      }
      value = with_sign(value);
    }
    if (kind == 0) {
      block[pick(kBlock)] = std::ldexp(6.0f, exponent);  // the scale is then a power of two
    }
  }

  // The largest is 6 scales; some of the others are codes' values, the ties between them, and their
  // neighbours.
  void fill_graded(std::array<float, kBlock>& block) {
    constexpr std::uint32_t kGreatest = 0x7e;
    const std::uint32_t code = pick(kGreatest + 1);
    const float scale = e4m3_to_float(code);
    const float next = e4m3_to_float(std::min(code + 1, kGreatest));
    const float largest = 6.0f * (pick(2) != 0 ? scale : (scale + next) / 2);
    for (float& value : block) {
      value = pick(2) != 0 ? 0.25f * static_cast<float>(pick(25)) * scale
                           : static_cast<float>(pick(1u << 24)) * 0x1p-24f * largest;
      value = pick(4) == 0 ? std::nextafter(value, 0.0f) : value;
      value = with_sign(std::min(value, largest));
    }
    block[pick(kBlock)] = with_sign(largest);
  }

  Nvfp4Inputs inputs_;
  std::mt19937_64 random_;
};

HostTensor matrix(DType dtype, std::int64_t rows, std::int64_t columns, std::int64_t gap) {
  HostTensor tensor(dtype, {rows, columns}, {columns + gap, 1});
  std::memset(tensor.data(), static_cast<int>(kUnwritten), tensor.bytes());
  return tensor;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Nvfp4Problem& p) {
  out << p.rows << "x" << p.columns << " " << name(p.dtype)
      << (p.layout == ScaleLayout::linear ? " linear" : " swizzled")
      << (p.kind == GlobalScale::encode ? " encode " : " decode ");
  if (p.global_scale) {
    out << *p.global_scale;
  } else {
    out << "computed";
  }
  return out << " inputs " << static_cast<int>(p.inputs) << (p.is_padded ? " padded" : "")
             << " seed " << p.seed;
}

Nvfp4HostSet make_tensors(const Nvfp4Problem& p) {
  const std::int64_t gap = p.is_padded ? 32 : 0;
  const bool is_linear = p.layout == ScaleLayout::linear;
  const auto padded = swizzled_scale_shape(p.rows, p.columns / kBlock);
  Nvfp4HostSet set{
      .x = matrix(p.dtype, p.rows, p.columns, gap),
      .codes = matrix(DType::e2m1x2, p.rows, p.columns / 2, gap),
      .scales = is_linear ? matrix(DType::e4m3, p.rows, p.columns / kBlock, gap)
                          : matrix(DType::e4m3, padded[0], padded[1], 0),
      .global_scale = HostTensor(DType::fp32, {1}),
  };
  BlockMaker maker(p.inputs, p.seed);
  const TensorView x = set.x.view();
  for (std::int64_t row = 0; row < p.rows; ++row) {
    for (std::int64_t first = 0; first < p.columns; first += kBlock) {
      const std::array<float, kBlock> block = maker.next();
      for (int i = 0; i < kBlock; ++i) {
        reference::store(x, row * x.stride[0] + first + i, block[i]);
      }
    }
  }
  std::memset(set.global_scale.data(), static_cast<int>(kUnwritten), set.global_scale.bytes());
  if (p.global_scale) {
    reference::store(set.global_scale.view(), 0, *p.global_scale);
  }
  return set;
}

void expect_right(const Nvfp4Problem& p, const Nvfp4HostSet& result) {
  const auto expected = reference::quantize_nvfp4(result.x.view(), p.global_scale, p.kind);
  const float global_scale = reinterpret_cast<const float&>(*result.global_scale.data());
  ASSERT_EQ(std::bit_cast<std::uint32_t>(global_scale),
            std::bit_cast<std::uint32_t>(expected.global_scale))
      << global_scale << " " << expected.global_scale;

  const std::int64_t blocks = p.columns / kBlock;
  HostTensor codes = result.codes;
  HostTensor scales = result.scales;
  std::memset(codes.data(), static_cast<int>(kUnwritten), codes.bytes());
  const bool is_linear = p.layout == ScaleLayout::linear;
  std::memset(scales.data(), is_linear ? static_cast<int>(kUnwritten) : 0, scales.bytes());
  for (std::int64_t row = 0; row < p.rows; ++row) {
    std::memcpy(codes.data() + row * codes.view().stride[0],
                expected.codes.data() + row * p.columns / 2,
                static_cast<std::size_t>(p.columns / 2));
    for (std::int64_t block = 0; block < blocks; ++block) {
      const std::int64_t offset = is_linear ? row * scales.view().stride[0] + block
                                            : reference::swizzled_index(row, block, blocks);
      scales.data()[offset] =
          static_cast<std::byte>(expected.scales[static_cast<std::size_t>(row * blocks + block)]);
    }
  }
  EXPECT_TRUE(same_bytes(scales, result.scales));
  EXPECT_TRUE(same_bytes(codes, result.codes));
}

std::vector<Nvfp4Problem> nvfp4_problems() {
  std::vector<Nvfp4Problem> problems;
  std::uint64_t seed = 0;
  const auto add = [&](Nvfp4Problem problem) {
    problem.seed = ++seed;
    problems.push_back(problem);
  };
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::swizzled}) {
      for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{
               {1, 16}, {3, 48}, {128, 64}, {129, 80}, {257, 1040}, {2, 16384}, {600, 32}}) {
        Nvfp4Problem problem{.rows = rows, .columns = columns, .dtype = dtype, .layout = layout};
        problem.is_padded = rows == 129 || rows == 3;
        problem.inputs = Nvfp4Inputs::normal;
        add(problem);
        problem.inputs = Nvfp4Inputs::poison;
        add(problem);
        problem.kind = GlobalScale::decode;
        add(problem);
        problem.inputs = Nvfp4Inputs::graded;
        add(problem);
        problem.global_scale = 1.0f;
        add(problem);
        problem.inputs = Nvfp4Inputs::hard;
        add(problem);
        problem.kind = GlobalScale::encode;
        add(problem);
        problem.inputs = Nvfp4Inputs::graded;
        add(problem);
      }
      add({.rows = 5,
           .columns = 64,
           .dtype = dtype,
           .layout = layout,
           .inputs = Nvfp4Inputs::zeros});
    }
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kMax = std::numeric_limits<float>::max();
  for (const GlobalScale kind : {GlobalScale::encode, GlobalScale::decode}) {
    for (const float scale : {448.0f, 1e30f, kMax, 1e-30f, 0x1p-149f, 0.0f, -1.0f, kInfinity,
                              std::numeric_limits<float>::quiet_NaN()}) {
      add({.rows = 40,
           .columns = 256,
           .dtype = DType::fp32,
           .kind = kind,
           .global_scale = scale,
           .inputs = Nvfp4Inputs::poison});
    }
  }
  return problems;
}

}  // namespace tilewright::test
