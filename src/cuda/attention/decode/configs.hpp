// The configs in which the decode kernel exists.
//
// docs/worklog/decode.md has the account of them.
#pragma once

namespace tilewright::cuda {

struct DecodeConfig {
  int head_dim;       // D, of Q and K
  int value_dim;      // Dv, of V and O
  int rows;           // of a row tile
  int stages;         // key tiles in SMEM, of 16-bit caches; of E4M3 ones 2 stages - 1
  int blocks_per_sm;  // resident at a time
  int most_cluster;   // blocks that may share an item and merge through each other's SMEM
  bool swaps;         // keys are the rows of the MMAs; or else queries are, 16 for each warp
};

inline constexpr DecodeConfig kDecodeConfigs[] = {
    // D  Dv  rows stages blocks cluster swaps
    {64, 64, 16, 6, 2, 8, false},    //
    {64, 64, 32, 6, 2, 8, false},    //
    {64, 64, 64, 6, 2, 1, false},    //
    {96, 96, 16, 4, 2, 8, false},    //
    {96, 96, 32, 4, 2, 8, false},    //
    {96, 96, 64, 4, 2, 1, false},    //
    {128, 128, 16, 3, 2, 8, false},  //
    {128, 128, 32, 3, 2, 8, false},  //
    {128, 128, 64, 3, 2, 1, false},  //
    {192, 128, 16, 5, 1, 8, false},  //
    {192, 128, 32, 5, 1, 8, false},  //
    {192, 128, 64, 5, 1, 1, false},  //
    {256, 256, 16, 3, 1, 8, false},  //
    {256, 256, 32, 3, 1, 1, false},  //
    {256, 256, 64, 3, 1, 1, false},  //
    {64, 64, 8, 12, 1, 8, true},     //
    {64, 64, 16, 12, 1, 8, true},    //
    {64, 64, 32, 11, 1, 8, true},    //
    {64, 64, 64, 11, 1, 1, true},    //
    {128, 128, 8, 6, 1, 8, true},    //
    {128, 128, 16, 6, 1, 8, true},   //
    {128, 128, 32, 5, 1, 8, true},   //
    {128, 128, 64, 5, 1, 1, true},   //
};
inline constexpr int kDecodeConfigCount = sizeof(kDecodeConfigs) / sizeof(kDecodeConfigs[0]);

// Whether the config takes E4M3 caches: there are registers for a wide head dim's with few rows.
constexpr bool takes_e4m3(const DecodeConfig& c) {
  return !c.swaps && (c.head_dim <= 192 || c.rows == 16);
}

// Bc, the keys of a tile.
inline constexpr int kDecodeTileKeys = 64;

// The most workers of a launch, and the most blocks of a worker.
inline constexpr int kMaxDecodeWorkers = 288;
inline constexpr int kMaxDecodeCluster = 8;

}  // namespace tilewright::cuda
