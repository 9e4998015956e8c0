// The configs in which the decode kernel exists.
//
// docs/worklog/decode.md has the account of them.
#pragma once

namespace tilewright::cuda {

struct DecodeConfig {
  int head_dim;       // D, of Q and K
  int value_dim;      // Dv, of V and O
  int row_warps;      // a row tile has 16 rows for each
  int stages;         // key tiles in SMEM, of 16-bit caches; of E4M3 ones 2 stages - 1
  int blocks_per_sm;  // resident at a time
  int most_cluster;   // blocks that may share an item and merge through each other's SMEM
};

inline constexpr DecodeConfig kDecodeConfigs[] = {
    // D  Dv  row_warps stages blocks cluster
    {64, 64, 1, 6, 2, 8},    //
    {64, 64, 2, 6, 2, 8},    //
    {64, 64, 4, 6, 2, 1},    //
    {96, 96, 1, 4, 2, 8},    //
    {96, 96, 2, 4, 2, 8},    //
    {96, 96, 4, 4, 2, 1},    //
    {128, 128, 1, 3, 2, 8},  //
    {128, 128, 2, 3, 2, 8},  //
    {128, 128, 4, 3, 2, 1},  //
    {192, 128, 1, 5, 1, 8},  //
    {192, 128, 2, 5, 1, 8},  //
    {192, 128, 4, 5, 1, 1},  //
    {256, 256, 1, 3, 1, 8},  //
    {256, 256, 2, 3, 1, 1},  //
    {256, 256, 4, 3, 1, 1},  //
};
inline constexpr int kDecodeConfigCount = sizeof(kDecodeConfigs) / sizeof(kDecodeConfigs[0]);

// Whether the config takes E4M3 caches: there are registers for a wide head dim's with few rows.
constexpr bool takes_e4m3(const DecodeConfig& c) { return c.head_dim <= 192 || c.row_warps == 1; }

// Bc, the keys of a tile, and the warps that compute.
inline constexpr int kDecodeTileKeys = 64;
inline constexpr int kDecodeWarps = 4;

// The most workers of a launch, and the most blocks of a worker.
inline constexpr int kMaxDecodeWorkers = 288;
inline constexpr int kMaxDecodeCluster = 8;

}  // namespace tilewright::cuda
