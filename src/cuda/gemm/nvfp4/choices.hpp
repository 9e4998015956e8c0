// The shapes in which the kernel nvfp4 exists.
#pragma once

namespace tilewright::cuda {

struct Nvfp4Choice {
  int consumers;  // warpgroups
  int blocks;     // of 64 rows of the weight, for each consumer
  int tokens;     // of a tile
  int stages;     // of 128 columns, in SMEM
  int cluster;    // blocks that load the same tokens together, each its share, for all of them

  constexpr int rows() const { return 64 * consumers * blocks; }  // of a tile
};

inline constexpr Nvfp4Choice kNvfp4Choices[] = {
    // consumers blocks tokens stages cluster
    {4, 1, 8, 9, 1},    //
    {4, 1, 16, 8, 1},   //
    {2, 1, 16, 14, 1},  //
    {2, 1, 8, 14, 2},   //
    {4, 1, 32, 6, 1},   //
    {2, 1, 32, 9, 2},   //
    {2, 1, 64, 6, 2},   //
    {2, 1, 128, 4, 2},  //
    {2, 2, 128, 4, 2},  //
    {4, 1, 64, 5, 2},   //
};
inline constexpr int kNvfp4ChoiceCount = sizeof(kNvfp4Choices) / sizeof(kNvfp4Choices[0]);

}  // namespace tilewright::cuda
