// The shapes in which the kernel nvfp4 exists, and which of them runs a problem.
//
// docs/worklog/nvfp4-gemm.md has the account of them.
#pragma once

#include <cstdint>

namespace tilewright::cuda {

// What a shape is for. Of the rows that fit a problem, the first one runs it.
enum class Nvfp4Use : std::uint8_t {
  any,
  whole_tiles,  // tiles are not to be shared (batch_invariant): small ones occupy more of the GPU
  many_tiles,   // there are enough tiles to occupy three quarters of the GPU
};

struct Nvfp4Choice {
  int consumers;  // warpgroups
  int blocks;     // of 64 rows of the weight, for each consumer
  int tokens;     // of a tile
  int stages;     // of 128 columns, in SMEM
  int cluster;    // blocks that load the same tokens together, each its share, for all of them
  Nvfp4Use use;
  int max_m;
  int max_m_if_short;  // where a worker has few chunks

  constexpr int rows() const { return 64 * consumers * blocks; }  // of a tile
};

inline constexpr int kAnyM = 1 << 30;
inline constexpr Nvfp4Choice kNvfp4Choices[] = {
    // consumers blocks tokens stages cluster
    {1, 1, 16, 20, 1, Nvfp4Use::whole_tiles, 16, 16},       //
    {4, 1, 8, 9, 1, Nvfp4Use::any, 8, 8},                   //
    {4, 1, 16, 8, 1, Nvfp4Use::any, 16, 16},                //
    {4, 1, 32, 6, 1, Nvfp4Use::any, 32, 32},                //
    {2, 1, 64, 6, 2, Nvfp4Use::any, 64, 128},               //
    {2, 2, 128, 4, 2, Nvfp4Use::many_tiles, kAnyM, kAnyM},  //
    {2, 1, 128, 4, 2, Nvfp4Use::any, kAnyM, kAnyM},         //
};
inline constexpr int kNvfp4ChoiceCount = sizeof(kNvfp4Choices) / sizeof(kNvfp4Choices[0]);

}  // namespace tilewright::cuda
