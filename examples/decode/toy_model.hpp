// A model of one attention layer and no training: what it says has no sense, but depends on every
// token before it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace toy {

constexpr std::int64_t kHeads = 8, kKvHeads = 2, kHeadDim = 64;
constexpr int kVocabulary = 50;

enum class Table : std::uint32_t { query = 1, key, value, output };

// An entry of a token's row in a table: a multiple of 1/8 from -1 to 1, which BF16 holds exactly.
inline float entry(Table table, int token, std::int64_t column) {
  std::uint32_t x = static_cast<std::uint32_t>(table) * 0x9E3779B1u +
                    static_cast<std::uint32_t>(token) * 0x85EBCA77u +
                    static_cast<std::uint32_t>(column) * 0xC2B2AE3Du;
  x = (x ^ (x >> 15)) * 0x2C1B3C6Du;
  x ^= x >> 13;
  return static_cast<float>(static_cast<int>(x % 17) - 8) / 8;
}

// The token that follows, by attention's result (heads, head dim) for the last one.
inline int next_token(const std::vector<float>& attended) {
  const auto logit = [&](int token) {
    float sum = 0;
    for (std::size_t i = 0; i < attended.size(); ++i) {
      sum += attended[i] * entry(Table::output, token, static_cast<std::int64_t>(i));
    }
    return sum;
  };
  int best = 0;
  for (int token = 1; token < kVocabulary; ++token) {
    if (logit(token) > logit(best)) best = token;
  }
  return best;
}

// Attention of a sequence's last token over all its tokens, by a plain loop over them.
inline std::vector<float> attend_plainly(const std::vector<int>& tokens) {
  std::vector<float> attended;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    const std::int64_t row = head * kHeadDim, kv_row = head / (kHeads / kKvHeads) * kHeadDim;
    std::vector<double> weights;
    for (const int token : tokens) {
      double score = 0;
      for (std::int64_t d = 0; d < kHeadDim; ++d) {
        score += entry(Table::query, tokens.back(), row + d) * entry(Table::key, token, kv_row + d);
      }
      weights.push_back(std::exp(score / std::sqrt(static_cast<double>(kHeadDim))));
    }
    for (std::int64_t d = 0; d < kHeadDim; ++d) {
      double sum = 0, weight_sum = 0;
      for (std::size_t j = 0; j < tokens.size(); ++j) {
        sum += weights[j] * entry(Table::value, tokens[j], kv_row + d);
        weight_sum += weights[j];
      }
      attended.push_back(static_cast<float>(sum / weight_sum));
    }
  }
  return attended;
}

}  // namespace toy
