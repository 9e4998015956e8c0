// The configs in which the prefill kernel exists.
#pragma once

namespace tilewright::cuda {

struct PrefillConfig {
  int head_dim;   // D, of Q and K
  int value_dim;  // Dv, of V and O
  int consumers;  // warpgroups of 64 query rows
  int bc;         // keys of a tile: a power of two, so that pages share a large divisor with it
  int stages;     // K tiles in SMEM
  int spare_v;    // how many more V tiles, or fewer
  int coded_k;    // E4M3 tiles of K that wait to be widened
  int coded_v;

  static constexpr int cluster = 1;

  constexpr int br() const { return 64 * consumers; }
  constexpr int v_stages() const { return stages + spare_v; }
  constexpr int coded_bytes() const { return bc * (coded_k * head_dim + coded_v * value_dim); }
};

inline constexpr PrefillConfig kPrefillConfigs[] = {
    // D  Dv consumers Bc stages spare_v coded_k coded_v
    {64, 64, 2, 128, 4, 0, 0, 0},    //
    {96, 96, 2, 128, 2, 1, 0, 0},    //
    {128, 128, 2, 128, 2, 1, 0, 0},  //
    {192, 128, 2, 128, 2, 0, 0, 0},  //
    {256, 256, 2, 64, 2, 0, 0, 0},   //
};
inline constexpr int kPrefillConfigCount = sizeof(kPrefillConfigs) / sizeof(kPrefillConfigs[0]);

// The config where a warpgroup of its own copies rows, so that a consumer has fewer registers.
constexpr PrefillConfig copying_rows(PrefillConfig config) {
  config.consumers = config.head_dim > 192 ? 1 : config.consumers;
  return config;
}

// A sequence with at most so many new tokens, by row of kPrefillConfigs, is faster in the decode
// kernel, whose tiles have rows of several heads (docs/worklog/prefill.md). Caches of 16 bits and
// E4M3 have the same numbers, so that their results have the same bits.
inline constexpr int kMostDecodeTokens[kPrefillConfigCount] = {32, 16, 32, 16, 16};

}  // namespace tilewright::cuda
