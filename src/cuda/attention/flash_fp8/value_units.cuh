// The descales of a key tile, and the units of O that follow from those of its values.
#pragma once

#include <cfloat>

#include "cuda/attention/blocks/block_descales.cuh"
#include "cuda/common/copy_async.cuh"

namespace tilewright::cuda {
namespace flash_fp8 {

using block_descales::kBlocks;

// O is in units of the descale of those values that were added last. So P V of a block is added as
// it is, and P has no factor but its own: no weight falls out of E4M3's range because of a descale.
// Units are at least 2^-64 of the largest descale so far, so that O stays in FP32's range, and at
// least FLT_MIN. Values with a smaller descale count as if it were the unit.
struct alignas(16) TileDescales {
  float k[kBlocks];
  float unit_ratio[kBlocks];  // the unit before a block's, divided by the block's
  float unit;                 // of O when all blocks have been added

  __device__ bool blocks_differ() const { return unit_ratio[1] != 1.0f; }
};

// The descales of one key tile of a head after another, from the last to the first. One thread
// walks, which has few registers: what it fetches goes to the tile's place at once.
class DescaleWalk {
 public:
  // Asks for the descales of a tile.
  __device__ static void fetch(const AttentionFp8Params& p,
                               const block_descales::HeadDescales& head, int kv_len, int tile,
                               TileDescales& descales) {
    block_descales::fetch_descales(p, head, kv_len, tile, descales.k, descales.unit_ratio);
  }

  // Waits for them, and writes what they come to.
  __device__ void finish(TileDescales& descales) {
    wait_for_copies();
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const float v = descales.unit_ratio[i];
      largest_ = fmaxf(largest_, v);
      const float unit = fmaxf(fmaxf(v, largest_ * 0x1p-64f), FLT_MIN);
      descales.unit_ratio[i] = unit_ == unit || unit_ == 0.0f ? 1.0f : __fdividef(unit_, unit);
      unit_ = unit;
    }
    descales.unit = largest_ == 0.0f ? 0.0f : unit_;
  }

 private:
  float largest_ = 0.0f;
  float unit_ = 0.0f;  // none yet
};

}  // namespace flash_fp8
}  // namespace tilewright::cuda
