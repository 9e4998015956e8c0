// The problems of DeepSeek-V4's attention that kernels are held against.
#pragma once

#include <cstdint>
#include <vector>

#include "problems/dsv4_problem.hpp"

namespace tilewright::test {

// What a kernel takes: problems are made of it.
struct Dsv4Choices {
  std::vector<DType> dtypes;
  std::vector<int> heads;
  std::vector<KvRowFormat> window_formats;
  std::vector<KvRowFormat> compressed_formats;
  std::vector<Dsv4Feature> features;

  bool allows(Dsv4Feature feature) const;
  bool allows(const Dsv4Problem& problem) const;
};

// All that the kernel's facts allow.
Dsv4Choices choices_of(const Kernel<Dsv4Attention>& kernel);

// `count` problems: up to 8 tokens of a request, up to some hundred keys, now and then thousands;
// all formats, kinds of scopes and features in random combinations.
std::vector<Dsv4Problem> random_dsv4_problems(const Dsv4Choices& choices, int count,
                                              std::uint64_t seed = 1);

// Edges, few enough for the sanitizers: every format in both kinds of each scope, odd lengths,
// lists of nothing, no keys, pages of 1 to 256 rows, rings, special sinks, one of each feature.
std::vector<Dsv4Problem> small_dsv4_problems(const Dsv4Choices& choices);

// Random problems as in_parts() takes them; at most `count`.
std::vector<Dsv4Problem> problems_to_cut(const Dsv4Choices& choices, int count);

// 64 heads, a window of 128 keys and 512 chosen ones, all inputs normal; normalised and not.
std::vector<Dsv4Problem> seed_problems();

// The cases of FlashMLA's decode tests, with fewer requests where they are long.
std::vector<Dsv4Problem> flash_mla_problems(const Dsv4Choices& choices);

}  // namespace tilewright::test
