// The configs in which the decode kernel exists.
//
// docs/worklog/decode.md has the account of them.
#pragma once

namespace tilewright::cuda {

struct DecodeConfig {
  int head_dim;   // D, of Q and K
  int value_dim;  // Dv, of V and O
  int bc;         // keys of a tile
  int stages;     // key tiles in SMEM
  int blocks_per_sm;
  // Whether a worker is a cluster of blocks, for problems with few items: the blocks compute
  // neighbouring runs of key tiles, and merge their results through each other's SMEM.
  bool in_clusters;
};

inline constexpr DecodeConfig kDecodeConfigs[] = {
    // D  Dv  Bc stages blocks
    {64, 64, 64, 6, 2, false},    //
    {64, 64, 64, 10, 1, true},    //
    {96, 96, 64, 3, 2, false},    //
    {96, 96, 64, 6, 1, true},     //
    {128, 128, 64, 3, 2, false},  //
    {128, 128, 64, 5, 1, true},   //
    {192, 128, 64, 4, 1, false},  //
    {192, 128, 64, 4, 1, true},   //
    {256, 256, 64, 3, 1, false},  //
    {256, 256, 64, 2, 1, true},   //
};
inline constexpr int kDecodeConfigCount = sizeof(kDecodeConfigs) / sizeof(kDecodeConfigs[0]);

// The rows of a row tile.
inline constexpr int kDecodeTileRows = 64;

// The most workers of a launch, and the most blocks of a worker.
inline constexpr int kMaxDecodeWorkers = 288;
inline constexpr int kMaxDecodeCluster = 8;

}  // namespace tilewright::cuda
