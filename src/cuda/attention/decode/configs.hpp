// The configs in which the decode kernel exists.
//
// docs/worklog/decode.md has the account of them.
#pragma once

namespace tilewright::cuda {

struct DecodeConfig {
  int head_dim;       // D, of Q and K
  int value_dim;      // Dv, of V and O
  int rows;           // of a row tile
  int stages;         // key tiles in SMEM, of 16-bit caches
  int e4m3_stages;    // of E4M3 caches
  int blocks_per_sm;  // resident at a time
  int most_cluster;   // blocks that may share an item and merge through each other's SMEM
  bool swaps;         // keys are the rows of the MMAs; or else queries are, 16 for each warp
};

inline constexpr DecodeConfig kDecodeConfigs[] = {
    // D  Dv  rows stages e4m3 blocks cluster swaps
    {64, 64, 16, 6, 11, 2, 8, false},   //
    {64, 64, 32, 6, 11, 2, 8, false},   //
    {64, 64, 64, 6, 11, 2, 1, false},   //
    {96, 96, 16, 4, 7, 2, 8, false},    //
    {96, 96, 32, 4, 7, 2, 8, false},    //
    {96, 96, 64, 4, 7, 2, 1, false},    //
    {128, 128, 16, 3, 5, 2, 8, false},  //
    {128, 128, 32, 3, 5, 2, 8, false},  //
    {128, 128, 64, 3, 5, 2, 1, false},  //
    {192, 128, 16, 5, 9, 1, 8, false},  //
    {192, 128, 32, 5, 9, 1, 8, false},  //
    {192, 128, 64, 5, 9, 1, 1, false},  //
    {256, 256, 16, 3, 5, 1, 8, false},  //
    {256, 256, 32, 3, 5, 1, 1, false},  //
    {256, 256, 64, 3, 5, 1, 1, false},  //
    {64, 64, 8, 12, 24, 1, 8, true},    //
    {64, 64, 16, 12, 24, 1, 8, true},   //
    {64, 64, 32, 12, 21, 1, 8, true},   //
    {64, 64, 64, 12, 24, 1, 1, true},   //
    {128, 128, 8, 6, 12, 1, 8, true},   //
    {128, 128, 16, 6, 12, 1, 8, true},  //
    {128, 128, 32, 6, 9, 1, 8, true},   //
    {128, 128, 64, 6, 12, 1, 1, true},  //
};
inline constexpr int kDecodeConfigCount = sizeof(kDecodeConfigs) / sizeof(kDecodeConfigs[0]);

// The consumer's warpgroups where keys are the rows of MMAs: many rows take the registers of a
// third. Key tiles go round among them, and so do the stages, so that a stage is always the same
// warpgroup's: their number divides the stages'.
constexpr int swapped_groups(const DecodeConfig& c) { return c.rows < 64 ? 3 : 2; }

// Whether the config takes E4M3 caches: of a wide head dim, there are registers for few rows only.
// Where keys are the rows, O must fit where a tile was.
constexpr bool takes_e4m3(const DecodeConfig& c) {
  return c.swaps ? c.rows <= 32 : c.head_dim <= 192 || c.rows == 16;
}

// Bc, the keys of a tile, and the fewest of them that TMA loads at once.
inline constexpr int kDecodeTileKeys = 64;
inline constexpr int kLeastBoxRows = 16;

// The most workers of a launch, and the most blocks of a worker.
inline constexpr int kMaxDecodeWorkers = 288;
inline constexpr int kMaxDecodeCluster = 8;

}  // namespace tilewright::cuda
