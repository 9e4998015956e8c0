// The configs in which the prefill kernel exists over E4M3 caches.
#pragma once

#include "cuda/attention/prefill/configs.hpp"

namespace tilewright::cuda {

// For the head dims of kPrefillConfigs, in its order.
inline constexpr PrefillConfig kPrefillE4m3Configs[kPrefillConfigCount] = {
    // D  Dv consumers Bc stages spare_v coded_k coded_v
    {64, 64, 2, 128, 4, 0, 3, 3},    //
    {96, 96, 2, 128, 2, 0, 3, 3},    //
    {128, 128, 2, 128, 2, 0, 1, 2},  //
    {192, 128, 2, 64, 2, 1, 3, 3},   //
    {256, 256, 1, 64, 2, 0, 1, 1},   //
};

}  // namespace tilewright::cuda
