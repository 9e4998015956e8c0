#include "problems/kvcache_problem_sets.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "common/ceil_div.hpp"
#include "problems/random.hpp"

namespace tilewright::test {
namespace {

constexpr std::array kHeadDims = {HeadDims{64, 64}, HeadDims{96, 96}, HeadDims{128, 128},
                                  HeadDims{192, 128}, HeadDims{256, 256}};
constexpr std::array kPageSizes = {1, 2, 4, 8, 16, 64, 256};
constexpr std::array kPersOfQueries = {DescalePer::none, DescalePer::tensor, DescalePer::sequence};
constexpr int kMaxTreeTokens = 64;

bool allows(const KvCacheChoices& choices, KvCacheFeature feature) {
  return std::ranges::count(choices.features, feature) > 0;
}

// The capacity that a problem's sequences need, and some keys more.
void set_capacity(KvCacheProblem& p, std::int64_t more) {
  std::int64_t most = 1;
  for (std::size_t b = 0; b < p.batch(); ++b) {
    most = std::max(most, std::int64_t{p.keys(b)});
  }
  p.capacity = most + more;
  if (p.page_size > 0) {
    p.capacity = ceil_div(p.capacity, p.page_size) * p.page_size;
  }
}

// How many new tokens and keys sequences have at most.
struct Lengths {
  int tokens;
  int keys;
};

// The work is about that of a few tokens over some hundred keys, or of a token over thousands.
Lengths random_lengths(Random& pick) {
  constexpr std::array kLengths = {Lengths{1, 400},  Lengths{1, 400},  Lengths{4, 300},
                                   Lengths{16, 300}, Lengths{70, 150}, Lengths{150, 40}};
  return pick.one_in(25) ? Lengths{2, 3000} : pick.one_of(kLengths);
}

void choose_lengths(KvCacheProblem& p, bool may_be_packed, Random& pick) {
  const auto [tokens, keys] = random_lengths(pick);
  const auto batch = static_cast<std::size_t>(keys > 1000 ? pick(1, 3) : pick(1, 6));
  p.packed = may_be_packed && pick.one_in(3);
  const auto same = static_cast<int>(pick(1, tokens));
  for (std::size_t b = 0; b < batch; ++b) {
    p.q_lens.push_back(p.packed ? static_cast<int>(pick.one_in(6) ? 0 : pick(1, tokens)) : same);
    p.cached.push_back(pick.one_in(8) ? 0 : static_cast<int>(pick(1, keys)));
  }
}

void choose_places(KvCacheProblem& p, Random& pick) {
  constexpr std::array kOrders = {CacheOrder::rows_first, CacheOrder::heads_first,
                                  CacheOrder::interleaved, CacheOrder::padded};
  p.order = pick.one_of(kOrders);
  p.spare = static_cast<int>(pick(0, 3));
  if (!pick.one_in(3)) {
    p.page_size = pick.one_of(kPageSizes);
    p.shares_pages = pick.one_in(4);
  } else {
    p.cache_batch_idx = pick.one_in(2);
  }
  const bool may_be_long = p.page_size > 0 && pick.one_in(6);  // for what chooses by capacity
  set_capacity(p, may_be_long ? pick(1000, 9000) : pick.one_in(2) ? 0 : pick(1, 100));
}

void choose_masks(KvCacheProblem& p, const KvCacheChoices& choices, Random& pick) {
  if (allows(choices, KvCacheFeature::tree_mask) && pick.one_in(5) &&
      std::ranges::max(p.q_lens) <= kMaxTreeTokens) {
    p.tree = true;
  } else {
    p.causal = !pick.one_in(3);
    if (allows(choices, KvCacheFeature::window) && pick.one_in(4)) {
      p.window.left = pick(0, 100);
      if (pick.one_in(2)) {
        p.window.right = pick(0, 20);
      }
    }
  }
  if (allows(choices, KvCacheFeature::left_padding) && pick.one_in(5)) {
    for (std::size_t b = 0; b < p.batch(); ++b) {
      p.leftpad.push_back(static_cast<int>(pick(0, pick.one_in(6) ? p.keys(b) : p.keys(b) / 2)));
    }
  }
}

// Neighbouring sequences in groups, which share as many keys as they can, or fewer.
void choose_prefixes(KvCacheProblem& p, Random& pick) {
  p.prefix_groups = {0};
  int most = std::numeric_limits<int>::max();
  for (std::size_t b = 0; b < p.batch(); ++b) {
    const int before_tokens = p.keys(b) - p.q_lens[b];
    const int seen = p.tree ? before_tokens : p.causal ? before_tokens + 1 : p.cached[b];
    most = std::min(most, std::clamp(seen, 0, p.cached[b]));
    if (b + 1 == p.batch() || pick.one_in(3)) {
      p.prefix_groups.push_back(static_cast<int>(b + 1));
      p.prefix_seqlens.push_back(pick.one_in(3) ? static_cast<int>(pick(0, most)) : most);
      most = std::numeric_limits<int>::max();
    }
  }
}

void choose_dtypes(KvCacheProblem& p, const KvCacheChoices& choices, Random& pick) {
  constexpr std::array kPers = {DescalePer::none, DescalePer::tensor, DescalePer::sequence,
                                DescalePer::row};
  p.dtype = p.cache_dtype = pick.one_of(choices.dtypes);
  if (allows(choices, KvCacheFeature::e4m3_cache) && pick.one_in(4)) {
    p.cache_dtype = DType::e4m3;
  }
  if (p.cache_dtype == DType::e4m3) {
    p.descale = pick.one_of(kPers);
    if (p.descale == DescalePer::row && !allows(choices, KvCacheFeature::row_descales)) {
      p.descale = DescalePer::sequence;
    }
  }
  if (p.dtype == DType::e4m3) {
    p.q_descale = pick.one_of(kPersOfQueries);
  }
}

KvCacheProblem random_problem(const KvCacheChoices& choices, Random& pick) {
  constexpr std::array kGroups = {1, 1, 2, 4, 5, 8};
  constexpr int kFewTokens = 5;  // with more of them large groups of heads are rare, to save work
  const auto has = [&](KvCacheFeature feature, int one_in) {
    return allows(choices, feature) && pick.one_in(one_in);
  };
  KvCacheProblem p;
  choose_dtypes(p, choices, pick);
  const HeadDims dims = pick.one_of(choices.head_dims);
  p.head_dim = dims.qk;
  p.value_dim = dims.v;
  choose_lengths(p, allows(choices, KvCacheFeature::packed), pick);
  p.kv_heads = pick(1, 2);
  const bool may_have_groups = std::ranges::max(p.q_lens) <= kFewTokens || pick.one_in(6);
  p.heads = p.kv_heads * (may_have_groups ? pick.one_of(kGroups) : pick(1, 2));
  if (has(KvCacheFeature::new_rows, 3)) {
    p.added = static_cast<int>(pick.one_in(4) ? pick(1, 20) : std::max(1, p.q_lens.front()));
  }
  choose_places(p, pick);
  choose_masks(p, choices, pick);
  const bool may_share = p.leftpad.empty() && !p.window.left && !p.shares_pages;
  if (may_share && has(KvCacheFeature::shared_prefix, 3)) {
    choose_prefixes(p, pick);
  }
  p.softcap = has(KvCacheFeature::softcap, 5) ? 5.0f : 0.0f;
  p.sinks = has(KvCacheFeature::sinks, 5);
  p.unnormalized = has(KvCacheFeature::unnormalized, 5);
  p.batch_invariant = pick.one_in(4);
  if (p.packed && pick.one_in(2)) {
    p.max_seqlen_q = static_cast<int>(pick(1, std::ranges::max(p.q_lens) + 10));
  }
  if (pick.one_in(4)) {
    p.max_seqlen_k = static_cast<int>(pick(1, p.capacity + 10));
  }
  p.seed = static_cast<std::uint64_t>(pick(1, 1 << 20));
  return p;
}

// ---- Edges

KvCacheProblem problem_of(std::vector<int> q_lens, std::vector<int> cached,
                          std::int64_t page_size) {
  KvCacheProblem p{.heads = 4, .kv_heads = 2, .causal = true};
  p.q_lens = std::move(q_lens);
  p.cached = std::move(cached);
  p.page_size = page_size;
  p.spare = 1;
  return p;
}

// Edges of lengths and pages, which any kernel takes.
std::vector<KvCacheProblem> edges_of_lengths() {
  std::vector<KvCacheProblem> problems;
  for (const std::int64_t page_size : {0, 1, 16, 64, 256}) {
    problems.push_back(problem_of({1, 1, 1, 1}, {0, 1, 256, 255}, page_size));
    problems.push_back(problem_of({1, 1, 1}, {257, 64, 63}, page_size));
    problems.push_back(problem_of({5, 5, 5}, {0, 3, 130}, page_size));
  }
  for (const std::int64_t page_size : {0, 16, 256}) {
    problems.push_back(problem_of({1}, {5000}, page_size));
    problems.push_back(problem_of({3, 3}, {4096, 2}, page_size));
  }
  for (const std::int64_t page_size : {0, 16, 48, 128}) {  // chunks, of several tiles of rows
    problems.push_back(problem_of({200, 200}, {300, 201}, page_size));
  }
  problems.push_back(problem_of({1, 100, 3, 65, 64, 0}, {90, 170, 3, 300, 65, 7}, 16));
  problems.back().packed = true;
  std::vector<int> many;
  for (int b = 0; b < 150; ++b) {
    many.push_back(b * 37 % 200);
  }
  problems.push_back(problem_of(std::vector<int>(many.size(), 1), many, 16));
  return problems;
}

// One of each feature.
std::vector<KvCacheProblem> edges_of_features() {
  const KvCacheProblem plain = problem_of({7, 7, 7}, {0, 100, 300}, 16);
  std::vector<KvCacheProblem> problems;
  const auto with = [&](const auto& change) {
    problems.push_back(plain);
    change(problems.back());
  };
  with([](KvCacheProblem& p) { p.window.left = 33; });
  with([](KvCacheProblem& p) { p.window = {.left = 0, .right = 0}; });
  with([](KvCacheProblem& p) { p.softcap = 3.0f; });
  with([](KvCacheProblem& p) { p.sinks = true; });
  with([](KvCacheProblem& p) {
    p.packed = true;
    p.q_lens = {0, 65, 1};
  });
  with([](KvCacheProblem& p) { p.unnormalized = true; });
  with([](KvCacheProblem& p) { p.leftpad = {0, 100, 17}; });
  with([](KvCacheProblem& p) { p.added = 7; });
  with([](KvCacheProblem& p) {
    p.added = 70;
    p.shares_pages = true;
  });
  with([](KvCacheProblem& p) {
    p.packed = true;
    p.q_lens = {20, 0, 3};
    p.added = 1;
  });
  with([](KvCacheProblem& p) {
    p.tree = true;
    p.causal = false;
  });
  with([](KvCacheProblem& p) {
    p.tree = p.packed = true;
    p.causal = false;
    p.q_lens = {64, 1, 33};
    p.added = 1;
  });
  with([](KvCacheProblem& p) {
    p.tree = p.packed = true;
    p.causal = false;
    p.q_lens = {1, 64, 33};
    p.leftpad = {0, 50, 299};
  });
  for (const DescalePer per :
       {DescalePer::none, DescalePer::tensor, DescalePer::sequence, DescalePer::row}) {
    with([&](KvCacheProblem& p) {
      p.cache_dtype = DType::e4m3;
      p.descale = per;
    });
  }
  with([](KvCacheProblem& p) {
    p.cache_dtype = DType::e4m3;
    p.descale = DescalePer::row;
    p.added = 20;
    p.order = CacheOrder::interleaved;
  });
  return problems;
}

// Prefixes with edges of their own, and with what else tells how keys are seen or read.
std::vector<KvCacheProblem> edges_of_prefixes() {
  std::vector<KvCacheProblem> problems;
  const auto add = [&](const KvCacheProblem& problem, std::vector<int> groups,
                       std::vector<int> seqlens, const auto& change) {
    problems.push_back(problem);
    problems.back().prefix_groups = std::move(groups);
    problems.back().prefix_seqlens = std::move(seqlens);
    change(problems.back());
  };
  for (const std::int64_t page_size : {0, 16, 64}) {
    // All that the first tokens see.
    add(problem_of({7, 7, 7}, {7, 300, 300}, page_size), {0, 1, 3}, {1, 294}, [](auto&) {});
    add(problem_of({7, 7, 7}, {400, 200, 201}, page_size), {0, 0, 3, 3}, {0, 200, 9},
        [](KvCacheProblem& p) {
          p.added = 7;
          p.sinks = p.unnormalized = true;
        });
  }
  // Many rows of a group, and prefixes long enough to be split.
  for (const std::int64_t page_size : {0, 1, 16, 128}) {
    add(problem_of({20, 20, 20}, {3000, 2600, 2500}, page_size), {0, 2, 3}, {2560, 2099},
        [&](KvCacheProblem& p) {
          p.packed = page_size == 16;
          p.order = page_size == 128 ? CacheOrder::interleaved : CacheOrder::rows_first;
        });
  }
  add(problem_of({0, 65, 1, 1, 3}, {150, 213, 200, 1000, 999}, 16), {0, 3, 5}, {149, 0},
      [](KvCacheProblem& p) { p.packed = true; });
  add(problem_of({7, 7, 7}, {130, 130, 130}, 16), {0, 3}, {130}, [](KvCacheProblem& p) {
    p.causal = false;  // all keys
    p.order = CacheOrder::heads_first;
  });
  add(problem_of({7, 7, 7}, {107, 150, 300}, 16), {0, 2, 3}, {100, 293}, [](KvCacheProblem& p) {
    p.tree = true;
    p.causal = false;
    p.order = CacheOrder::padded;
  });
  for (const DescalePer per : {DescalePer::tensor, DescalePer::sequence, DescalePer::row}) {
    add(problem_of({7, 7, 7}, {100, 100, 300}, 16), {0, 3}, {90}, [&](KvCacheProblem& p) {
      p.cache_dtype = DType::e4m3;
      p.descale = per;
    });
  }
  // Many rows over a cache in E4M3, and splits.
  add(problem_of({20, 20, 20}, {3000, 2600, 2500}, 16), {0, 2, 3}, {2560, 2099},
      [](KvCacheProblem& p) {
        p.cache_dtype = DType::e4m3;
        p.descale = DescalePer::sequence;
      });
  return problems;
}

}  // namespace

KvCacheChoices choices_of(const Kernel<AttentionWithKvCache>& kernel) {
  KvCacheChoices choices{
      .dtypes = kernel.info.dtypes,
      .head_dims = {kernel.facts.head_dims.begin(), kernel.facts.head_dims.end()},
      .features = {kernel.facts.features.begin(), kernel.facts.features.end()}};
  if (choices.head_dims.empty()) {
    choices.head_dims.assign(kHeadDims.begin(), kHeadDims.end());
  }
  return choices;
}

std::vector<KvCacheProblem> random_kvcache_problems(const KvCacheChoices& choices, int count,
                                                    std::uint64_t seed) {
  Random pick(seed);
  std::vector<KvCacheProblem> problems(static_cast<std::size_t>(count));
  std::ranges::generate(problems, [&] { return random_problem(choices, pick); });
  return problems;
}

std::vector<KvCacheProblem> small_kvcache_problems(const KvCacheChoices& choices) {
  std::vector<KvCacheProblem> problems;
  const auto add = [&](KvCacheProblem p) {
    const AttentionWithKvCacheProblem constraints = constraints_of(p);
    for (const KvCacheFeature feature :
         {KvCacheFeature::window, KvCacheFeature::softcap, KvCacheFeature::sinks,
          KvCacheFeature::packed, KvCacheFeature::unnormalized, KvCacheFeature::left_padding,
          KvCacheFeature::shared_prefix, KvCacheFeature::new_rows, KvCacheFeature::tree_mask,
          KvCacheFeature::e4m3_cache, KvCacheFeature::row_descales}) {
      if (constraints.asks_for(feature) && !allows(choices, feature)) {
        return;
      }
    }
    set_capacity(p, 0);
    // Each problem is of another head dim and dtype.
    const HeadDims dims = choices.head_dims[problems.size() % choices.head_dims.size()];
    const bool is_e4m3 = p.cache_dtype == DType::e4m3;
    p.head_dim = dims.qk;
    p.value_dim = dims.v;
    p.dtype = choices.dtypes[problems.size() % choices.dtypes.size()];
    p.cache_dtype = is_e4m3 ? DType::e4m3 : p.dtype;
    if (p.dtype == DType::e4m3) {
      p.q_descale = kPersOfQueries[problems.size() / choices.dtypes.size() % kPersOfQueries.size()];
    }
    problems.push_back(p);
  };
  std::ranges::for_each(edges_of_lengths(), add);
  std::ranges::for_each(edges_of_features(), add);
  std::ranges::for_each(edges_of_prefixes(), add);
  return problems;
}

}  // namespace tilewright::test
