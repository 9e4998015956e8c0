#include "problems.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <sstream>

namespace tilewright::test {
namespace {

using reference::HostTensor;

std::vector<std::int64_t> strides_of(MemoryOrder order, std::int64_t batch, std::int64_t seq,
                                     std::int64_t heads, std::int64_t dim) {
  constexpr std::int64_t kPadding = 24;
  switch (order) {
    case MemoryOrder::heads_first:
      return {heads * seq * dim, dim, seq * dim, 1};
    case MemoryOrder::padded_rows: {
      const std::int64_t row = heads * (dim + 8) + kPadding;
      return {seq * row + 2 * kPadding, row, dim + 8, 1};
    }
    case MemoryOrder::dense:
    case MemoryOrder::broadcast_kv:
      return {seq * heads * dim, heads * dim, dim, 1};
  }
  return {batch, 0, 0, 0};
}

HostTensor make_tensor(const Problem& p, std::int64_t seq, std::int64_t heads, bool is_kv) {
  std::vector<std::int64_t> stride = strides_of(p.order, p.batch, seq, heads, p.head_dim);
  if (is_kv && p.order == MemoryOrder::broadcast_kv) {  // one head and batch, seen many times
    stride = {0, p.head_dim, 0, 1};
  }
  return HostTensor(DType::bf16, {p.batch, seq, heads, p.head_dim}, stride);
}

// Keys that grow along the sequence, so that the running maximum rises with every tile.
void fill_rising(HostTensor& tensor, std::uint64_t seed) {
  reference::fill_normal(tensor.view(), seed);
  const TensorView t = tensor.view();
  for (std::int64_t b = 0; b < t.shape[0]; ++b) {
    for (std::int64_t n = 0; n < t.shape[1]; ++n) {
      for (std::int64_t h = 0; h < t.shape[2]; ++h) {
        const std::int64_t offset = b * t.stride[0] + n * t.stride[1] + h * t.stride[2];
        reference::store(t, offset, 1.0 + 0.02 * static_cast<double>(n));
      }
    }
  }
}

void fill(HostTensor& tensor, const Problem& p, std::uint64_t which, bool is_value) {
  constexpr double kLarge = 8.0;
  const std::uint64_t seed = 3 * p.seed + which;
  switch (p.inputs) {
    case Inputs::normal:
      return reference::fill_normal(tensor.view(), seed);
    case Inputs::large:
      return reference::fill_normal(tensor.view(), seed, is_value ? 100.0 : kLarge);
    case Inputs::constant:
      return reference::fill_constant(tensor.view(), 0.75 + static_cast<double>(which));
    case Inputs::rising:
      return fill_rising(tensor, seed);
  }
}

std::string text_of(const Problem& p) {
  std::ostringstream text;
  text << p;
  return text.str();
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Problem& p) {
  constexpr std::array kOrders = {"dense", "heads_first", "padded_rows", "broadcast_kv"};
  constexpr std::array kInputs = {"normal", "large", "constant", "rising"};
  out << "batch " << p.batch << " q_len " << p.q_len << " kv_len " << p.kv_len << " heads "
      << p.heads << " kv_heads " << p.kv_heads << " head_dim " << p.head_dim << " causal "
      << p.causal << " order " << kOrders[static_cast<std::size_t>(p.order)] << " inputs "
      << kInputs[static_cast<std::size_t>(p.inputs)] << " seed " << p.seed;
  if (p.scale) {
    out << " scale " << *p.scale;
  }
  return out;
}

ProblemTensors::ProblemTensors(const Problem& p)
    : q(make_tensor(p, p.q_len, p.heads, false)),
      k(make_tensor(p, p.kv_len, p.kv_heads, true)),
      v(make_tensor(p, p.kv_len, p.kv_heads, true)),
      o(make_tensor(p, p.q_len, p.heads, false)),
      lse(DType::fp32, {p.batch, p.heads, p.q_len}) {
  fill(q, p, 0, false);
  fill(k, p, 1, false);
  fill(v, p, 2, true);
  std::memset(o.data(), 0xFF, o.bytes());
  std::memset(lse.data(), 0xFF, lse.bytes());
}

AttentionTensors ProblemTensors::views() {
  return {.q = q.view(), .k = k.view(), .v = v.view(), .o = o.view(), .lse = lse.view()};
}

const Expected& expected_of(const Problem& problem) {
  static std::map<std::string, Expected> cache;
  const auto [entry, is_new] = cache.try_emplace(text_of(problem));
  Expected& expected = entry->second;
  if (is_new) {
    ProblemTensors tensors(problem);
    const AttentionOptions options = options_of(problem, "auto");
    expected.exact = reference::attention(tensors.views(), options);
    const auto rounded = reference::attention(tensors.views(), options, reference::Rounding::bf16);
    for (std::size_t i = 0; i < rounded.o.size(); ++i) {
      expected.rounded_max_abs =
          std::max(expected.rounded_max_abs, std::abs(rounded.o[i] - expected.exact.o[i]));
    }
  }
  return expected;
}

std::vector<Problem> random_problems() {
  std::mt19937_64 rng(20260101);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(high - low + 1));
  };
  constexpr int kCount = 200;
  std::vector<Problem> problems;
  for (int i = 0; i < kCount; ++i) {
    Problem p;
    p.batch = pick(1, 3);
    p.q_len = pick(1, 700);
    p.kv_len = i % 4 == 0 ? p.q_len : pick(1, 700);
    p.kv_heads = pick(1, 3);
    p.heads = p.kv_heads * (i % 5 == 0 ? pick(2, 4) : 1);
    p.head_dim = i % 2 ? 128 : 64;
    p.causal = pick(0, 1) == 1;
    p.order = static_cast<MemoryOrder>(pick(0, 3));
    p.inputs = i % 3 == 0 ? static_cast<Inputs>(pick(0, 3)) : Inputs::normal;
    p.seed = static_cast<std::uint64_t>(i + 1);
    problems.push_back(p);
  }
  constexpr int kWide = 60;  // of head dim 256, for the kernels that take it
  for (int i = 0; i < kWide; ++i) {
    Problem p = problems[static_cast<std::size_t>(i)];
    p.head_dim = 256;
    problems.push_back(p);
  }
  for (const auto& [q_len, kv_len] :
       {std::pair{4096, 4096}, {4001, 1999}, {1000, 4095}, {1, 4096}}) {
    for (const bool causal : {false, true}) {
      problems.push_back({.q_len = q_len,
                          .kv_len = kv_len,
                          .head_dim = causal ? 64 : 128,
                          .causal = causal,
                          .seed = static_cast<std::uint64_t>(q_len)});
    }
  }
  return problems;
}

std::vector<Problem> small_problems() {
  std::vector<Problem> problems;
  const std::vector<std::pair<int, int>> lengths = {{1, 1},    {1, 65},   {64, 64}, {65, 63},
                                                    {63, 129}, {130, 70}, {70, 400}};
  for (const int head_dim : {64, 128, 256}) {
    for (const auto& [q_len, kv_len] : lengths) {
      for (const bool causal : {false, true}) {
        problems.push_back({.q_len = q_len,
                            .kv_len = kv_len,
                            .heads = 2,
                            .head_dim = head_dim,
                            .causal = causal,
                            .order = MemoryOrder::padded_rows});
      }
    }
  }
  Problem p{.batch = 2, .q_len = 100, .kv_len = 150, .heads = 4, .kv_heads = 2, .causal = true};
  for (const int head_dim : {64, 128, 256}) {
    p.head_dim = head_dim;
    for (const MemoryOrder order : {MemoryOrder::heads_first, MemoryOrder::broadcast_kv}) {
      p.order = order;
      problems.push_back(p);
    }
    for (const Inputs inputs : {Inputs::large, Inputs::constant, Inputs::rising}) {
      p.inputs = inputs;
      problems.push_back(p);
    }
    p.inputs = Inputs::normal;
    for (const float scale : {0.0f, 1.0f}) {
      p.scale = scale;
      problems.push_back(p);
    }
    p.scale.reset();
  }
  return problems;
}

AttentionOptions options_of(const Problem& problem, std::string_view kernel) {
  return {.causal = problem.causal, .scale = problem.scale, .kernel = kernel};
}

}  // namespace tilewright::test
