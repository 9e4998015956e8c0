#include "problems/dsv4_problem_sets.hpp"

#include <algorithm>
#include <array>

#include "common/ceil_div.hpp"
#include "problems/random.hpp"

namespace tilewright::test {
namespace {

constexpr std::array kPageSizes = {1, 2, 3, 16, 53, 64, 69, 256};
constexpr std::array kAllFeatures = {Dsv4Feature::range,        Dsv4Feature::list,
                                     Dsv4Feature::packed,       Dsv4Feature::fresh_rows,
                                     Dsv4Feature::sinks,        Dsv4Feature::unnormalized,
                                     Dsv4Feature::inverse_rope, Dsv4Feature::e4m3_output};

// ---- Random problems

int last_end(const Dsv4ScopeCase& scope, int most_tokens) {
  return std::ranges::max(scope.ends) + (most_tokens - 1) * scope.advance;
}

// The most positions that a token sees of a range.
int most_seen(const Dsv4ScopeCase& scope, int most_tokens) {
  const int last = last_end(scope, most_tokens);
  return scope.most > 0 ? std::min(scope.most, last) : last;
}

// A range's pages: in a table, or one of each request, with or without a ring.
void choose_pages(Dsv4ScopeCase& scope, int most_tokens, Random& pick) {
  const int seen = most_seen(scope, most_tokens);
  scope.has_table = !pick.one_in(3);
  scope.page_size =
      scope.has_table ? pick.one_of(kPageSizes) : std::max(1, last_end(scope, most_tokens));
  scope.pages = pick(0, 3);
  if (!pick.one_in(4)) {
    return;
  }
  const auto page_size = static_cast<int>(scope.page_size);
  scope.ring = std::max(1, seen + static_cast<int>(pick(0, 20)));
  if (!scope.has_table) {
    scope.page_size = scope.ring + pick(0, 5);
  } else if (scope.ring > page_size) {
    scope.ring = ceil_div(scope.ring, page_size) * page_size;
  }
}

Dsv4ScopeCase random_range(std::size_t batch, int most_tokens, int keys, Random& pick) {
  Dsv4ScopeCase scope{.keys = Dsv4Keys::range};
  for (std::size_t b = 0; b < batch; ++b) {
    scope.ends.push_back(static_cast<int>(pick.one_in(8) ? 0 : pick(1, keys)));
  }
  scope.advance = static_cast<int>(pick(0, 1));
  scope.most = pick.one_in(2) ? static_cast<int>(pick(1, 150)) : 0;
  choose_pages(scope, most_tokens, pick);
  if (pick.one_in(3)) {
    scope.most_keys = most_seen(scope, most_tokens) + static_cast<int>(pick(0, 20));
    scope.most_keys = std::max(scope.most_keys, 1);
  }
  return scope;
}

Dsv4ScopeCase random_list(std::size_t batch, int keys, Random& pick) {
  Dsv4ScopeCase scope{.keys = pick.one_in(12) ? Dsv4Keys::empty_list : Dsv4Keys::list};
  scope.entries = pick(1, keys);
  scope.page_size = pick.one_of(kPageSizes);
  scope.pages = ceil_div(pick(1, 2 * keys), scope.page_size);
  scope.has_lengths = pick.one_in(2);
  for (std::size_t b = 0; scope.has_lengths && b < batch; ++b) {
    scope.ends.push_back(static_cast<int>(pick.one_in(6) ? 0 : pick(1, scope.entries)));
  }
  return scope;
}

Dsv4ScopeCase random_scope(const Dsv4Choices& choices, const Dsv4Problem& p, int keys,
                           const std::vector<KvRowFormat>& formats, Random& pick) {
  const bool may_be_list = choices.allows(Dsv4Feature::list);
  const bool is_range = choices.allows(Dsv4Feature::range) && (!may_be_list || pick.one_in(2));
  Dsv4ScopeCase scope = is_range ? random_range(p.batch(), std::ranges::max(p.q_lens), keys, pick)
                                 : random_list(p.batch(), keys, pick);
  scope.format = pick.one_of(formats);
  return scope;
}

void choose_tokens(Dsv4Problem& p, bool may_be_packed, std::int64_t most_batch, Random& pick) {
  const auto batch = static_cast<std::size_t>(pick(1, most_batch));
  p.packed = may_be_packed && pick.one_in(3);
  const auto same = static_cast<int>(pick.one_in(2) ? pick(1, 2) : pick(1, 8));
  for (std::size_t b = 0; b < batch; ++b) {
    p.q_lens.push_back(p.packed ? static_cast<int>(pick(0, 8)) : same);
  }
}

void choose_features(Dsv4Problem& p, const Dsv4Choices& choices, Random& pick) {
  const auto has = [&](Dsv4Feature feature, int one_in) {
    return choices.allows(feature) && pick.one_in(one_in);
  };
  p.fresh_rows = has(Dsv4Feature::fresh_rows, 4);
  if (has(Dsv4Feature::sinks, 2)) {
    p.sinks = pick.one_in(4) ? Dsv4Sinks::special : Dsv4Sinks::normal;
    p.lse_counts_sink = !pick.one_in(3);
  }
  p.unnormalized = has(Dsv4Feature::unnormalized, 5);
  if (!p.unnormalized) {
    p.inverse_rope = has(Dsv4Feature::inverse_rope, 3);
    p.e4m3_output = has(Dsv4Feature::e4m3_output, 4);
  }
  p.padded = pick.one_in(3);
  p.odd_scales = pick.one_in(6);
  if (pick.one_in(5)) {
    p.scale = 0.01f;
  }
}

// The deviation of keys whose scores exceed the others' by so much that an online softmax cannot
// keep its reference. Problems with un-normalised results have none, nor odd scales of E2M1: their
// limit would depend on the units in which P of the few keys that count is rounded.
constexpr double kMuchLarger = 4.0;

bool has_e2m1(const Dsv4Problem& p) {
  constexpr KvRowFormat kE2m1 = KvRowFormat::e2m1;
  return p.window.format == kE2m1 || p.compressed.format == kE2m1;
}

Dsv4Problem random_problem(const Dsv4Choices& choices, Random& pick) {
  constexpr int kKeys = 300;
  constexpr int kManyKeys = 3000;
  Dsv4Problem p;
  p.dtype = pick.one_of(choices.dtypes);
  p.heads = pick.one_of(choices.heads);
  const bool has_many_keys = pick.one_in(25);
  choose_tokens(p, choices.allows(Dsv4Feature::packed), has_many_keys ? 1 : 5, pick);
  choose_features(p, choices, pick);
  const int keys = has_many_keys ? kManyKeys : kKeys;
  const bool has_window = !pick.one_in(6);
  if (has_window) {
    p.window = random_scope(choices, p, kKeys, choices.window_formats, pick);
  }
  if (!has_window || !pick.one_in(5)) {
    p.compressed = random_scope(choices, p, keys, choices.compressed_formats, pick);
  }
  p.odd_scales = p.odd_scales && !(p.unnormalized && has_e2m1(p));
  p.seed = static_cast<std::uint64_t>(pick(1, 1 << 20));
  if (!p.unnormalized && p.seed % 4 == 0) {
    p.compressed_deviation = kMuchLarger;
  }
  return p;
}

// ---- Edges

Dsv4ScopeCase range_of(KvRowFormat format, std::vector<int> ends, std::int64_t page_size) {
  return {.keys = Dsv4Keys::range,
          .format = format,
          .page_size = page_size,
          .ends = std::move(ends),
          .advance = 1,
          .has_table = true,
          .pages = 1};
}

Dsv4ScopeCase list_of(KvRowFormat format, std::int64_t entries, std::int64_t page_size) {
  return {.keys = Dsv4Keys::list,
          .format = format,
          .page_size = page_size,
          .pages = ceil_div(entries + entries / 2, page_size),
          .entries = entries};
}

// Two requests with two tokens each.
Dsv4Problem problem_of(Dsv4ScopeCase window, Dsv4ScopeCase compressed) {
  Dsv4Problem p{.heads = 16, .q_lens = {2, 2}};
  p.window = std::move(window);
  p.compressed = std::move(compressed);
  return p;
}

Dsv4Problem plain_problem() {
  return problem_of(range_of(KvRowFormat::e4m3_bf16, {128, 70}, 64),
                    list_of(KvRowFormat::e4m3_bf16, 100, 64));
}

// Every format in both kinds of each scope.
std::vector<Dsv4Problem> edges_of_formats() {
  std::vector<Dsv4Problem> problems;
  for (const auto format :
       {KvRowFormat::bf16, KvRowFormat::e4m3_bf16, KvRowFormat::e4m3, KvRowFormat::e2m1}) {
    const Dsv4ScopeCase range = range_of(format, {65, 130}, 64);
    const Dsv4ScopeCase list = list_of(format, 97, 64);
    problems.push_back(problem_of(range, list));
    problems.push_back(problem_of(list, range));
    problems.back().padded = true;
    problems.push_back(problem_of(range, {}));
    problems.push_back(problem_of({}, list));
    problems.back().odd_scales = true;
  }
  return problems;
}

// Keys so large that some of their scales, not all, take a kernel a second product.
std::vector<Dsv4Problem> edges_of_scales() {
  std::vector<Dsv4Problem> problems;
  for (const auto format : {KvRowFormat::e4m3_bf16, KvRowFormat::e4m3, KvRowFormat::e2m1}) {
    const double deviation = format == KvRowFormat::e2m1 ? 12.0 : 25000.0;
    for (const int heads : {16, 128}) {
      Dsv4Problem& p = problems.emplace_back(
          problem_of(range_of(format, {65, 130}, 64), list_of(format, 150, 64)));
      p.heads = heads;
      p.q_lens = {1, 1};
      p.key_deviation = deviation;
      p.scale = static_cast<float>(0.05 / deviation);
    }
  }
  return problems;
}

std::vector<Dsv4Problem> edges_of_lengths() {
  std::vector<Dsv4Problem> problems;
  for (const int page_size : kPageSizes) {
    problems.push_back(problem_of(range_of(KvRowFormat::e4m3_bf16, {0, 129}, page_size),
                                  list_of(KvRowFormat::bf16, 63, page_size)));
    problems.push_back(problem_of(list_of(KvRowFormat::e4m3_bf16, 33, page_size),
                                  range_of(KvRowFormat::e4m3, {1, 64}, page_size)));
    problems.back().padded = true;
  }
  for (const int entries : {1, 2, 15, 64, 65, 127, 511}) {
    problems.push_back(problem_of({}, list_of(KvRowFormat::e4m3_bf16, entries, 64)));
  }
  Dsv4ScopeCase nothing = list_of(KvRowFormat::e4m3_bf16, 130, 64);
  nothing.keys = Dsv4Keys::empty_list;
  Dsv4ScopeCase no_length = list_of(KvRowFormat::bf16, 70, 64);
  no_length.has_lengths = true;
  no_length.ends = {0, 69};
  Dsv4ScopeCase no_range = range_of(KvRowFormat::e4m3_bf16, {0, 0}, 64);
  no_range.advance = 0;
  problems.push_back(problem_of({}, nothing));
  problems.push_back(problem_of(nothing, no_length));
  problems.push_back(problem_of(no_range, nothing));
  problems.push_back(problem_of(no_range, {}));
  problems.push_back(problem_of(no_range, no_length));
  problems.back().sinks = Dsv4Sinks::special;
  Dsv4ScopeCase duplicates = list_of(KvRowFormat::e4m3_bf16, 200, 2);
  duplicates.pages = 2;
  problems.push_back(problem_of({}, duplicates));
  problems.push_back(problem_of({}, list_of(KvRowFormat::e4m3_bf16, 4000, 64)));
  problems.back().q_lens = {1};
  problems.push_back(problem_of({}, range_of(KvRowFormat::e2m1, {3001}, 2)));
  problems.back().q_lens = {3};
  return problems;
}

std::vector<Dsv4Problem> edges_of_rings() {
  std::vector<Dsv4Problem> problems;
  for (const int page_size : {16, 64, 128, 256}) {
    Dsv4ScopeCase window = range_of(KvRowFormat::e4m3_bf16, {1000, 5}, page_size);
    window.most = 128;
    window.ring = page_size == 256 ? 129 : 2 * 128;
    problems.push_back(problem_of(window, {}));
    window.has_table = false;
    window.page_size = 256;
    problems.push_back(problem_of(window, {}));
  }
  return problems;
}

// Short ranges in wide tables, with a bound and without, and tokens that see ranges far apart.
std::vector<Dsv4Problem> edges_of_bounds() {
  std::vector<Dsv4Problem> problems;
  Dsv4ScopeCase window = range_of(KvRowFormat::e4m3_bf16, {700, 5}, 64);
  window.most = 100;
  for (const int most_keys : {0, 100, 128}) {
    window.most_keys = most_keys;
    window.capacity = 5000;
    problems.push_back(problem_of(window, list_of(KvRowFormat::bf16, 70, 64)));
    problems.push_back(problem_of(window, window));
    problems.back().heads = 64;
  }
  for (const bool has_ring : {false, true}) {
    window = range_of(KvRowFormat::e4m3_bf16, {140, 5}, 64);
    window.most = window.most_keys = 128;
    window.advance = 1400;
    window.ring = has_ring ? 256 : 0;
    problems.push_back(problem_of(window, {}));
  }
  // Two tokens see 129 keys of the window, and with them one tile and one part more than one sees.
  window = range_of(KvRowFormat::e4m3_bf16, {700, 300}, 64);
  window.most = window.most_keys = 128;
  Dsv4ScopeCase compressed = range_of(KvRowFormat::e4m3_bf16, {1024, 1024}, 64);
  compressed.most_keys = 1024;
  compressed.advance = 0;
  problems.push_back(problem_of(window, compressed));
  problems.back().heads = 8;
  return problems;
}

// One of each feature.
std::vector<Dsv4Problem> edges_of_features() {
  std::vector<Dsv4Problem> problems;
  const auto with = [&](const auto& change) {
    problems.push_back(plain_problem());
    change(problems.back());
  };
  with([](Dsv4Problem& p) {
    p.packed = true;
    p.q_lens = {8, 0};
  });
  with([](Dsv4Problem& p) {
    p.packed = p.padded = p.fresh_rows = true;
    p.q_lens = {1, 7};
  });
  with([](Dsv4Problem& p) { p.fresh_rows = true; });
  with([](Dsv4Problem& p) {
    p.fresh_rows = true;
    p.window = p.compressed = {};
  });
  for (const Dsv4Sinks sinks : {Dsv4Sinks::normal, Dsv4Sinks::special}) {
    with([&](Dsv4Problem& p) { p.sinks = sinks; });
    with([&](Dsv4Problem& p) {
      p.sinks = sinks;
      p.lse_counts_sink = false;
    });
    with([&](Dsv4Problem& p) {
      p.sinks = sinks;
      p.unnormalized = true;
    });
    with([&](Dsv4Problem& p) {
      p.sinks = sinks;
      p.e4m3_output = p.inverse_rope = true;
    });
  }
  with([](Dsv4Problem& p) { p.unnormalized = true; });
  with([](Dsv4Problem& p) { p.inverse_rope = true; });
  with([](Dsv4Problem& p) { p.e4m3_output = p.padded = true; });
  with([](Dsv4Problem& p) { p.scale = 0.0f; });
  with([](Dsv4Problem& p) { p.compressed_deviation = kMuchLarger; });
  with([](Dsv4Problem& p) { p.compressed_deviation = 1 / kMuchLarger; });
  for (const int heads : {1, 5, 8, 32, 64, 100, 128}) {
    with([&](Dsv4Problem& p) { p.heads = heads; });
  }
  return problems;
}

// ---- FlashMLA's

Dsv4Problem flash_mla_problem(int batch, int tokens, int heads, const Dsv4ScopeCase& window,
                              const Dsv4ScopeCase& compressed) {
  Dsv4Problem p{.heads = heads,
                .q_lens = std::vector<int>(static_cast<std::size_t>(batch), tokens),
                .key_deviation = 0.1};
  p.window = window;
  p.compressed = compressed;
  p.sinks = Dsv4Sinks::special;
  p.lse_counts_sink = false;
  return p;
}

// A list of `entries` of the slots of `keys` keys.
Dsv4ScopeCase flash_mla_list(int keys, int entries, int page_size) {
  Dsv4ScopeCase scope = list_of(KvRowFormat::e4m3_bf16, entries, page_size);
  scope.pages = ceil_div(keys, page_size);
  return scope;
}

}  // namespace

bool Dsv4Choices::allows(Dsv4Feature feature) const {
  return std::ranges::count(features, feature) > 0;
}

bool Dsv4Choices::allows(const Dsv4Problem& problem) const {
  const Dsv4AttentionProblem constraints = constraints_of(problem);
  const auto takes = [](const Dsv4ScopeProblem& scope, const std::vector<KvRowFormat>& formats) {
    return scope.keys == Dsv4ScopeProblem::Keys::none ||
           std::ranges::count(formats, scope.format) > 0;
  };
  return std::ranges::count(heads, problem.heads) > 0 &&
         takes(constraints.window, window_formats) &&
         takes(constraints.compressed, compressed_formats) &&
         std::ranges::all_of(kAllFeatures, [&](Dsv4Feature feature) {
           return !constraints.asks_for(feature) || allows(feature);
         });
}

Dsv4Choices choices_of(const Kernel<Dsv4Attention>& kernel) {
  const auto& facts = kernel.facts;
  Dsv4Choices choices{
      .dtypes = kernel.info.dtypes,
      .heads = {facts.heads.begin(), facts.heads.end()},
      .window_formats = {facts.window_formats.begin(), facts.window_formats.end()},
      .compressed_formats = {facts.compressed_formats.begin(), facts.compressed_formats.end()},
      .features = {facts.features.begin(), facts.features.end()}};
  if (choices.heads.empty()) {
    choices.heads = {1, 5, 8, 16, 32, 64, 100, 128};
  }
  return choices;
}

std::vector<Dsv4Problem> random_dsv4_problems(const Dsv4Choices& choices, int count,
                                              std::uint64_t seed) {
  Random pick(seed);
  std::vector<Dsv4Problem> problems(static_cast<std::size_t>(count));
  std::ranges::generate(problems, [&] { return random_problem(choices, pick); });
  return problems;
}

std::vector<Dsv4Problem> small_dsv4_problems(const Dsv4Choices& choices) {
  std::vector<Dsv4Problem> problems;
  for (const auto& edges : {edges_of_formats(), edges_of_scales(), edges_of_lengths(),
                            edges_of_rings(), edges_of_bounds(), edges_of_features()}) {
    for (Dsv4Problem p : edges) {
      if (choices.allows(p)) {
        p.dtype = choices.dtypes[problems.size() % choices.dtypes.size()];
        p.seed = problems.size() + 1;
        problems.push_back(p);
      }
    }
  }
  return problems;
}

std::vector<Dsv4Problem> problems_to_cut(const Dsv4Choices& choices, int count) {
  std::vector<Dsv4Problem> problems = random_dsv4_problems(choices, count, 5);
  std::erase_if(problems, [](const Dsv4Problem& p) { return p.packed; });
  for (Dsv4Problem& p : problems) {
    p.q_lens.assign(p.batch(), 1);
    p.lse_counts_sink = true;
    p.unnormalized = p.inverse_rope = p.e4m3_output = p.padded = false;
  }
  return problems;
}

std::vector<Dsv4Problem> seed_problems() {
  Dsv4ScopeCase window = range_of(KvRowFormat::bf16, {2000, 128, 300, 4000}, 64);
  window.most = 128;
  Dsv4Problem p = problem_of(window, list_of(KvRowFormat::bf16, 512, 64));
  p.heads = 64;
  p.q_lens = {1, 1, 1, 1};
  p.sinks = Dsv4Sinks::normal;
  std::vector<Dsv4Problem> problems(2, p);
  problems.back().unnormalized = true;
  return problems;
}

std::vector<Dsv4Problem> flash_mla_problems(const Dsv4Choices& choices) {
  struct Case {
    int keys, entries;
    std::vector<int> page_sizes;
    int batch;
  };
  const std::vector<Case> cases = {{512, 64, {2, 64, 69}, 74},
                                   {1024, 576, {2, 61}, 4},
                                   {2046, 2048, {2, 64, 576}, 2},
                                   {650, 576, {53}, 4}};
  std::vector<Dsv4Problem> problems;
  for (const auto& [keys, entries, page_sizes, batch] : cases) {
    for (const int page_size : page_sizes) {
      for (const int tokens : {1, 3}) {
        const Dsv4ScopeCase main = flash_mla_list(keys, entries, page_size);
        Dsv4ScopeCase extra = flash_mla_list(512, 64 + 61 * tokens, 2 * tokens);
        extra.has_lengths = true;
        for (int b = 0; b < batch; ++b) {
          extra.ends.push_back(b % 4 == 0 ? 0 : (b * 37) % static_cast<int>(extra.entries));
        }
        problems.push_back(flash_mla_problem(batch, tokens, 64, main, {}));
        problems.push_back(flash_mla_problem(std::min(batch, 8), tokens, 128, main, extra));
        problems.back().compressed.ends.resize(problems.back().batch());
      }
    }
  }
  std::erase_if(problems, [&](const Dsv4Problem& p) { return !choices.allows(p); });
  return problems;
}

}  // namespace tilewright::test
