// The configs in which the flash kernel exists, and which of them runs a problem.
//
// docs/worklog/flash.md has the account of them.
#pragma once

#include <cstdint>

#include "tilewright/tensor.hpp"

namespace tilewright::cuda {

// What a config is for. A problem runs in the last config of the table that fits it. results/ has
// the time that each config takes for a problem (tools/gpu configs).
enum class FlashUse : std::uint8_t {
  any,
  // For problems that, in tiles of 128 rows, have at most half as many tiles as there are SMs or,
  // under a mask that makes tiles uneven, at most as many; but not if larger tiles whose keys are
  // split fill the SMs. Packed and batch-invariant problems do not run in them.
  few_tiles,
  // Tiles of 192 rows, for all packed problems. Others run in them unless smaller tiles would leave
  // fewer SMs idle in the last round, or the keys are few and a mask hides some: a large tile
  // computes more scores that the mask then discards.
  larger,
  // As `larger`, in a kernel that has no features beyond a causal mask. It does not split keys.
  larger_plain,
};

struct FlashConfig {
  int head_dim;   // D, of Q and K
  int value_dim;  // Dv, of V and O
  bool takes_fp16;
  int consumers;  // warpgroups of 64 query rows
  int bc;         // keys of a tile
  int stages;     // key tiles in SMEM
  // Blocks that load K and V together, each its share. All of them must see the same keys: there is
  // neither mask nor packing, and the row tiles fill whole clusters.
  int cluster;
  FlashUse use;
  int min_len;  // of keys

  constexpr int br() const { return 64 * consumers; }
  constexpr int v_stages() const { return stages; }
  constexpr bool takes(DType dtype) const { return dtype == DType::bf16 || takes_fp16; }
};

inline constexpr FlashConfig kFlashConfigs[] = {
    // D  Dv  FP16 consumers Bc stages cluster
    {64, 64, true, 2, 128, 4, 1, FlashUse::any, 0},          //
    {64, 64, true, 3, 128, 4, 1, FlashUse::larger, 0},       //
    {64, 64, true, 1, 128, 4, 1, FlashUse::few_tiles, 0},    //
    {96, 96, true, 2, 128, 2, 1, FlashUse::any, 0},          //
    {96, 96, true, 3, 96, 4, 1, FlashUse::larger, 1025},     //
    {128, 128, true, 2, 128, 2, 1, FlashUse::any, 0},        //
    {128, 128, true, 2, 128, 2, 2, FlashUse::any, 8192},     //
    {128, 128, false, 2, 176, 2, 2, FlashUse::any, 8192},    // wgmma_shapes.cuh has BF16's alone
    {128, 128, true, 1, 128, 2, 1, FlashUse::few_tiles, 0},  //
    {192, 192, true, 2, 96, 2, 1, FlashUse::any, 0},         //
    {192, 128, true, 2, 128, 2, 1, FlashUse::any, 0},        //
    {256, 256, true, 2, 64, 2, 1, FlashUse::any, 0},         //
};
inline constexpr int kFlashConfigCount = sizeof(kFlashConfigs) / sizeof(kFlashConfigs[0]);

}  // namespace tilewright::cuda
