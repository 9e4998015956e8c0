// The configs in which the kernel flash_fp8 exists. Of those that fit a problem, the last one runs
// it (FlashUse).
#pragma once

#include "cuda/attention/flash/configs.hpp"

namespace tilewright::cuda {

inline constexpr FlashConfig kFp8Configs[] = {
    // D  Dv  FP16 consumers Bc stages cluster
    {64, 64, true, 2, 128, 4, 1, FlashUse::any, 0},             //
    {64, 64, true, 3, 128, 4, 1, FlashUse::larger, 0},          //
    {128, 128, true, 2, 128, 4, 1, FlashUse::any, 0},           //
    {128, 128, true, 3, 128, 4, 1, FlashUse::larger_plain, 0},  //
    {256, 256, true, 2, 128, 2, 1, FlashUse::any, 0},           //
};
inline constexpr int kFp8ConfigCount = sizeof(kFp8Configs) / sizeof(kFp8Configs[0]);

}  // namespace tilewright::cuda
