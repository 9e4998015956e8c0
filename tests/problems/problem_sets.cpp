#include "problems/problem_sets.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "problems/random.hpp"

namespace tilewright::test {
namespace {

constexpr std::array kHeadDims = {HeadDims{64, 64},   HeadDims{96, 96},   HeadDims{128, 128},
                                  HeadDims{192, 192}, HeadDims{256, 256}, HeadDims{192, 128}};

// A sequence's length: mostly short, one in six 0.
int random_length(Random& pick) {
  return pick.one_in(6) ? 0 : static_cast<int>(pick(1, pick.one_in(4) ? 300 : 90));
}

std::vector<int> random_lengths(Random& pick, std::int64_t count) {
  std::vector<int> lengths(static_cast<std::size_t>(count));
  std::ranges::generate(lengths, [&] { return random_length(pick); });
  return lengths;
}

// Rows for all the sequences, at least 1, and mostly some more.
std::int64_t rows_for(const std::vector<int>& lengths, std::int64_t more) {
  return std::max<std::int64_t>(std::accumulate(lengths.begin(), lengths.end(), more), 1);
}

void pick_lengths(Problem& p, Random& pick) {
  p.batch = pick(1, 3);
  p.q_len = pick(1, pick.one_in(3) ? 300 : 100);
  p.kv_len = pick.one_in(4) ? p.q_len : pick(1, pick.one_in(3) ? 300 : 150);
  const bool packs_queries = pick.one_in(3);
  const bool packs_keys = packs_queries ? !pick.one_in(5) : pick.one_in(8);
  if (packs_queries || packs_keys) {
    p.batch = pick(1, 6);
  }
  if (packs_queries) {
    p.q_lens = random_lengths(pick, p.batch);
    p.q_len = rows_for(p.q_lens, pick(0, 40));
  }
  if (packs_keys) {
    p.kv_lens = packs_queries && pick.one_in(3) ? p.q_lens : random_lengths(pick, p.batch);
    p.kv_len = rows_for(p.kv_lens, pick(0, 40));
  }
  if (pick.one_in(4)) {
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const auto i = static_cast<std::size_t>(b);
      p.used_kv.push_back(static_cast<int>(pick(0, packs_keys ? p.kv_lens[i] : p.kv_len)));
    }
  }
}

void pick_features(Problem& p, Random& pick) {
  constexpr std::array kReach = {0, 5, 40, 130};
  constexpr std::array kCaps = {2.0f, 20.0f};
  p.causal = pick.one_in(2);
  if (pick.one_in(3)) {
    p.window.left = pick(0, pick.one_of(kReach));
  }
  if (pick.one_in(4)) {
    p.window.right = pick(0, pick.one_of(kReach));
  }
  p.softcap = pick.one_in(4) ? pick.one_of(kCaps) : 0.0f;
  p.sinks = pick.one_in(4);
  p.unnormalized = pick.one_in(4);
  p.batch_invariant = pick.one_in(3);
}

// Each of the problems in each head dim and 16-bit dtype.
std::vector<Problem> with_head_dims_and_dtypes(const std::vector<Problem>& problems) {
  std::vector<Problem> all;
  for (const HeadDims dims : kHeadDims) {
    for (const DType dtype : {DType::bf16, DType::fp16}) {
      for (Problem p : problems) {
        p.head_dim = dims.qk;
        p.value_dim = dims.v;
        p.dtype = dtype;
        all.push_back(p);
      }
    }
  }
  return all;
}

Problem random_feature_problem(Random& pick) {
  constexpr std::array kOrders = {MemoryOrder::dense, MemoryOrder::heads_first,
                                  MemoryOrder::padded_rows, MemoryOrder::broadcast_kv};
  Problem p;
  const HeadDims dims = pick.one_of(kHeadDims);
  p.head_dim = dims.qk;
  p.value_dim = dims.v;
  p.dtype = pick.one_in(2) ? DType::fp16 : DType::bf16;
  pick_lengths(p, pick);
  pick_features(p, pick);
  p.kv_heads = pick(1, 2);
  p.heads = p.kv_heads * (pick.one_in(3) ? pick(2, 4) : 1);
  p.order = pick.one_of(kOrders);
  p.inputs = pick.one_in(5) ? Inputs::rising : Inputs::normal;
  p.seed = static_cast<std::uint64_t>(pick(1, 1 << 20));
  return p;
}

}  // namespace

std::vector<Problem> random_problems() {
  Random pick(20260101);
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
  for (const int head_dim : {64, 128, 256}) {
    for (const bool causal : {false, true}) {
      problems.push_back({.q_len = 1500,
                          .kv_len = 1500,
                          .head_dim = head_dim,
                          .causal = causal,
                          .inputs = Inputs::falling});
      for (const bool unnormalized : {false, true}) {
        problems.push_back({.q_len = 300,
                            .kv_len = 1500,
                            .head_dim = head_dim,
                            .causal = causal,
                            .unnormalized = unnormalized,
                            .inputs = Inputs::negative});
      }
    }
  }
  return problems;
}

std::vector<Problem> feature_problems() {
  constexpr int kCount = 2400;
  constexpr int kLong = 48;  // of so many keys that they are split
  Random pick(20261121);
  std::vector<Problem> problems(kCount);
  std::ranges::generate(problems, [&] { return random_feature_problem(pick); });
  for (int i = 0; i < kLong; ++i) {
    Problem p = problems[static_cast<std::size_t>(i)];
    p.batch = i % 3 == 0 ? pick(1, 3) : 1;
    p.q_len = i % 4 ? pick(1, 20) : pick(300, 900);
    p.kv_len = pick(2048, 4000);
    p.q_lens.clear();
    p.kv_lens.clear();
    p.used_kv.clear();
    if (i % 3 == 0) {
      std::ranges::generate_n(std::back_inserter(p.used_kv), p.batch,
                              [&] { return static_cast<int>(pick(0, p.kv_len)); });
      p.used_kv.back() = i % 2 ? p.used_kv.back() : 0;
    }
    problems.push_back(p);
  }
  return problems;
}

std::vector<Problem> many_tile_problems() {
  Problem causal{.batch = 5, .q_len = 260, .kv_len = 260, .heads = 30, .kv_heads = 6};
  causal.causal = true;
  Problem some_empty = causal;
  some_empty.causal = false;
  some_empty.kv_len = 140;
  some_empty.used_kv = {0, 64, 0, 140, 1};
  Problem packed{.batch = 40, .heads = 6, .kv_heads = 3, .causal = true};
  for (int b = 0; b < packed.batch; ++b) {
    packed.q_lens.push_back(37 * b % 150);
    packed.kv_lens.push_back(59 * b % 200);
  }
  packed.q_len = rows_for(packed.q_lens, 0);
  packed.kv_len = rows_for(packed.kv_lens, 0);

  std::vector<Problem> problems;
  for (const HeadDims dims : kHeadDims) {
    for (Problem p : {causal, some_empty, packed}) {
      p.head_dim = dims.qk;
      p.value_dim = dims.v;
      problems.push_back(p);
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

std::vector<Problem> special_problems() {
  using enum Special::In;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kLargest = 3e38f;
  const Problem plain{.q_len = 70, .kv_len = 200, .heads = 2};
  Problem causal = plain;
  causal.causal = true;
  Problem in_parts = plain;  // so many keys that they are split
  in_parts.q_len = 3;
  in_parts.kv_len = 2100;

  std::vector<Problem> problems;
  for (const Problem& shape : {plain, causal, in_parts}) {
    for (const std::vector<Special>& specials : std::initializer_list<std::vector<Special>>{
             {{q, 2, 3, kNaN}}, {{k, 150, 151, kNaN}}, {{q, 0, 1, kNaN}, {k, 60, 61, kNaN}}}) {
      problems.push_back(shape);
      problems.back().specials = specials;
    }
    for (const std::int64_t unseen :
         {shape.kv_len / 2 + 28, shape.kv_len}) {  // scores of -infinity
      problems.push_back(shape);
      problems.back().inputs = Inputs::constant;
      problems.back().specials = {{k, 0, unseen, -kInf}};
    }
    for (const float sink : {kNaN, kInf, -kInf, kLargest, -kLargest}) {
      problems.push_back(shape);
      problems.back().sinks = true;
      problems.back().specials = {{sinks, 1, 2, sink}};
    }
  }
  const std::size_t normalized = problems.size();
  for (std::size_t i = 0; i < normalized; ++i) {
    problems.push_back(problems[i]);
    problems.back().unnormalized = true;
  }
  Problem empty = causal;  // rows that see no key, but a sink
  empty.q_len = 200;
  empty.kv_len = 70;
  for (const float sink : {kNaN, kInf, -kInf, kLargest, -kLargest}) {
    problems.push_back(empty);
    problems.back().sinks = true;
    problems.back().specials = {{sinks, 0, 1, sink}};
  }
  return with_head_dims_and_dtypes(problems);
}

std::vector<Problem> small_feature_problems() {
  Problem window{.q_len = 70, .kv_len = 200, .heads = 2, .window = {.left = 20, .right = 10}};
  window.softcap = 5.0f;
  window.sinks = true;
  Problem packed{.batch = 4, .q_len = 110, .kv_len = 160, .heads = 4, .kv_heads = 2};
  packed.causal = true;
  packed.q_lens = {0, 65, 1, 40};
  packed.kv_lens = {3, 65, 0, 80};
  packed.used_kv = {3, 60, 0, 7};
  Problem unnormalized{.q_len = 65, .kv_len = 65, .heads = 2, .causal = true};
  unnormalized.unnormalized = true;
  Problem all = packed;
  all.window.left = 9;
  all.softcap = 20.0f;
  all.sinks = all.unnormalized = all.batch_invariant = true;
  Problem few_queries{.q_len = 3, .kv_len = 700, .heads = 4, .kv_heads = 1, .causal = true};
  return with_head_dims_and_dtypes({window, packed, unnormalized, all, few_queries});
}

}  // namespace tilewright::test
