#include "problems/dequantize_problem.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "problems/problem.hpp"
#include "reference/nvfp4.hpp"

namespace tilewright::test {
namespace {

using reference::HostTensor;

constexpr int kRows = 128;
constexpr int kBlocks = 2;

int block_size(const DequantizeProblem& p) { return p.scale_dtype == DType::e8m0 ? 32 : 16; }

int scale_of(int row, int block) { return kBlocks * row + block; }

int code_of(int row, int k) { return (k + row) % 16; }

HostTensor matrix(DType dtype, std::int64_t columns, std::int64_t gap) {
  HostTensor tensor(dtype, {kRows, columns}, {columns + gap, 1});
  std::memset(tensor.data(), static_cast<int>(kUnwritten), tensor.bytes());
  return tensor;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const DequantizeProblem& p) {
  out << name(p.scale_dtype) << " to " << name(p.dtype)
      << (p.layout == ScaleLayout::linear ? " linear" : " swizzled")
      << (p.kind == GlobalScale::encode ? " encode" : " decode");
  if (p.global_scale) {
    out << " " << *p.global_scale;
  }
  return out << (p.is_padded ? " padded" : "");
}

DequantizeHostSet make_tensors(const DequantizeProblem& p) {
  const std::int64_t gap = p.is_padded ? 16 : 0;
  const std::int64_t columns = kBlocks * block_size(p);
  const bool is_linear = p.layout == ScaleLayout::linear;
  DequantizeHostSet set{
      .codes = matrix(DType::e2m1x2, columns / 2, gap),
      .scales = is_linear ? matrix(p.scale_dtype, kBlocks, gap) : matrix(p.scale_dtype, 4, 0),
      .global_scale = HostTensor(DType::fp32, {1}),
      .out = matrix(p.dtype, columns, gap),
  };
  reference::store(set.global_scale.view(), 0, p.global_scale.value_or(0.0f));
  for (int row = 0; row < kRows; ++row) {
    for (int block = 0; block < kBlocks; ++block) {
      reference::store(set.scales.view(),
                       is_linear ? row * set.scales.view().stride[0] + block
                                 : reference::swizzled_index(row, block, kBlocks),
                       scale_of(row, block));
    }
    for (int k = 0; k < columns; k += 2) {
      reference::store(set.codes.view(), row * set.codes.view().stride[0] + k / 2,
                       code_of(row, k) + 16 * code_of(row, k + 1));
    }
  }
  return set;
}

void expect_right(const DequantizeProblem& p, const DequantizeHostSet& result) {
  HostTensor expected = result.out;
  std::memset(expected.data(), static_cast<int>(kUnwritten), expected.bytes());
  const TensorView out = expected.view();
  for (int row = 0; row < kRows; ++row) {
    for (int k = 0; k < out.shape[1]; ++k) {
      const double value = reference::dequantize_nvfp4(code_of(row, k), p.scale_dtype,
                                                       scale_of(row, k / block_size(p)),
                                                       p.global_scale.value_or(1.0f), p.kind);
      reference::store(out, row * out.stride[0] + k, value);
    }
  }
  EXPECT_TRUE(same_bytes(expected, result.out));
}

std::vector<DequantizeProblem> dequantize_problems() {
  std::vector<DequantizeProblem> problems;
  for (const DType dtype : {DType::fp32, DType::fp16, DType::bf16}) {
    for (const ScaleLayout layout : {ScaleLayout::linear, ScaleLayout::swizzled}) {
      for (const bool is_padded : {false, true}) {
        DequantizeProblem problem{.dtype = dtype, .layout = layout, .is_padded = is_padded};
        problems.push_back(problem);
        problem.scale_dtype = DType::e8m0;
        problems.push_back(problem);
      }
    }
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const GlobalScale kind : {GlobalScale::encode, GlobalScale::decode}) {
      for (const float scale : {80956.234375f, 3.7e-5f, 0x1p-149f, 3e38f, 0.0f, -2.0f, kInfinity,
                                std::numeric_limits<float>::quiet_NaN()}) {
        problems.push_back({.dtype = dtype, .kind = kind, .global_scale = scale});
      }
    }
  }
  return problems;
}

}  // namespace tilewright::test
