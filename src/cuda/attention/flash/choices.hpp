// The shapes in which the flash kernel exists, and which of them runs a problem.
//
// Measured by `tools/gpu choose`, which times every shape on every case of the sweep; the figures
// are in results/flash-choices.jsonl, the account of them in docs/worklog/flash.md.
#pragma once

#include <cstdint>

#include "tilewright/tensor.hpp"

namespace tilewright::cuda {

// What a shape is for. Of the rows that fit a problem, the last one runs it.
enum class FlashUse : std::uint8_t {
  any,
  few_tiles,  // too few tiles of 128 rows to occupy half the GPU
  shared_kv,  // neither mask nor packing, and an even number of row tiles: neighbours walk alike
};

struct FlashChoice {
  int head_dim;   // D, of Q and K
  int value_dim;  // Dv, of V and O
  bool takes_fp16;
  int consumers;  // warpgroups of 64 query rows
  int bc;         // keys of a tile
  int cluster;    // blocks that load K and V together, each its share, for all of them
  FlashUse use;

  constexpr int br() const { return 64 * consumers; }
  constexpr bool takes(DType dtype) const { return dtype == DType::bf16 || takes_fp16; }
};

inline constexpr FlashChoice kFlashChoices[] = {
    // D   Dv  FP16 consumers Bc cluster
    {64, 64, true, 3, 128, 1, FlashUse::any},           //
    {64, 64, true, 1, 128, 1, FlashUse::few_tiles},     //
    {96, 96, true, 2, 128, 1, FlashUse::any},           //
    {128, 128, true, 2, 128, 1, FlashUse::any},         //
    {128, 128, true, 2, 128, 2, FlashUse::shared_kv},   //
    {128, 128, false, 2, 176, 2, FlashUse::shared_kv},  // P's and S's registers are the limit
    {128, 128, true, 1, 128, 1, FlashUse::few_tiles},   //
    {192, 192, true, 2, 96, 1, FlashUse::any},          //
    {192, 128, true, 2, 128, 1, FlashUse::any},         //
    {256, 256, true, 2, 64, 1, FlashUse::any},          //
    {256, 256, false, 2, 80, 1, FlashUse::any},         // SMEM is the limit
};
inline constexpr int kFlashChoiceCount = sizeof(kFlashChoices) / sizeof(kFlashChoices[0]);

}  // namespace tilewright::cuda
