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
};

// A problem runs in the first config of its head dims.
inline constexpr DecodeConfig kDecodeConfigs[] = {
    // D  Dv  Bc stages blocks
    {64, 64, 64, 12, 1},    //
    {64, 64, 64, 6, 2},     //
    {96, 96, 64, 8, 1},     //
    {128, 128, 64, 6, 1},   //
    {128, 128, 64, 3, 2},   //
    {128, 128, 128, 3, 1},  //
    {192, 128, 64, 4, 1},   //
    {256, 256, 64, 3, 1},   //
};
inline constexpr int kDecodeConfigCount = sizeof(kDecodeConfigs) / sizeof(kDecodeConfigs[0]);

// The rows of a row tile.
inline constexpr int kDecodeTileRows = 64;

// The most workers, which are a launch's blocks.
inline constexpr int kMaxDecodeWorkers = 288;

}  // namespace tilewright::cuda
