// What flash_fp8 knows of its config at compile time, its tiles, and the SMEM of a block.
#pragma once

#include "cuda/attention/blocks/block_descales.cuh"
#include "cuda/attention/blocks/dense_sequences.cuh"
#include "cuda/attention/blocks/flash_config.cuh"
#include "cuda/attention/blocks/fp8_tiles.cuh"
#include "cuda/attention/blocks/output_slots.cuh"
#include "cuda/attention/flash_fp8/configs.hpp"
#include "cuda/attention/flash_fp8/value_units.cuh"
#include "cuda/common/warp_roles.cuh"
#include "ops/attention_fp8/params.hpp"

namespace tilewright::cuda {
namespace flash_fp8 {

using namespace cute;

// How O lies in its slot, in 16 bits.
template <typename T, int kHeadDim>
struct OutputTiles {
  static constexpr int kBoxColumns = 64;
  using LayoutO =
      decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Shape<_64, Int<kHeadDim>>{}));
  using TiledMmaPv = typename Fp8Layouts<kHeadDim, block_descales::kBc, 1>::TiledMmaPv;

  __device__ static auto tile(T* smem, LayoutO layout) {
    return make_tensor(make_smem_ptr(smem), layout);
  }
};

// Config kIndex of the table, with O of type T: what FlashStorage and its warps ask of a config.
// With kSumsRounded, l is the sum of the weights as they were rounded.
template <int kIndex, typename T, bool kSumsRounded>
struct ConfigOf {
  using Element = float_e4m3_t;
  static constexpr FlashConfig C = kFp8Configs[kIndex];
  static_assert(C.bc == block_descales::kBc && C.cluster == 1);
  static constexpr int kConsumers = C.consumers;
  static constexpr int kThreads = block_threads(kConsumers);
  static constexpr int kConsumerWarps = kConsumers * kWarpgroupThreads / 32;
  static constexpr RoleRegisters kRegisters =
      kConsumers == 3 && C.head_dim == 64 ? RoleRegisters{40, 152} : role_registers(kConsumers);
  // Parts of P V's columns, of which one is added to O while the next one is computed.
  static constexpr int kValueParts = C.head_dim == 256                      ? 4
                                     : C.head_dim == 128 && kConsumers == 3 ? 2
                                                                            : 1;
  static constexpr int kSumRows = kSumsRounded ? 8 : 0;  // of ones, in front of a stage of V^T
  // May the values of a key tile have two descales? To ask makes turns longer, which limit the
  // speed at D = 256. There the kernel for plain problems does not ask, and launch_fp8_config()
  // runs descales of 64 rows in the other one.
  template <bool kIsPlain>
  static constexpr bool may_split() {
    return !kIsPlain || C.head_dim < 256;
  }
  static constexpr int kStageValues = (kSumRows + C.head_dim) * C.bc;
  using Position = RingPosition<C.stages>;
  using PositionV = Position;
  using Tiles = Fp8Tiles<C.head_dim, C.bc, C.stages>;
  using Output = OutputSlots<T, OutputTiles<T, C.head_dim>, kConsumers, kConsumers>;
};

// What finish_output() asks of a config, of which O's type is the element.
template <typename Config, typename T>
struct OutputConfig {
  using Element = T;
  using Tiles = OutputTiles<T, Config::C.head_dim>;
  static constexpr FlashConfig C = Config::C;
};

// A consumer's rows see key tiles up to `end`, and [whole_first, whole_end) whole.
struct SeenKeyTiles {
  int end;
  int whole_first;
  int whole_end;
};

// What a consumer asks for once in a key tile stays here: it has no registers to keep it.
struct Tile : FlashTile {
  static constexpr int kMaxConsumers = 3;
  int sequence;     // whose descales count
  int value_start;  // its first column in V^T
  block_descales::HeadDescales descales;
  SeenKeyTiles seen[kMaxConsumers];
};

class Sequences : public flash::DenseSequences {
 public:
  __device__ explicit Sequences(const AttentionFp8Params& p) : DenseSequences(p), p_(p) {}

  template <typename Config>
  __device__ void write_keys(Tile& tile, const FlashSchedule& s, const Config& config, int sequence,
                             int row0, int q_len, int split) const {
    DenseSequences::write_keys(tile, s, config, sequence, row0, q_len, split);
    tile.sequence = sequence;
    tile.value_start = first_column(params().kv_lengths.cu_seqlens, sequence);
    tile.descales = block_descales::HeadDescales::of(p_, sequence, tile.kv_head);
#pragma unroll 1
    for (int consumer = 0; consumer < config.consumers; ++consumer) {
      const SeenTiles seen(params(), tile, row0 + consumer * kWarpgroupRows, kWarpgroupRows,
                           config.bc);
      tile.seen[consumer] = {seen.end, seen.lazy_first, seen.lazy_end};
    }
  }

 private:
  const AttentionFp8Params& p_;
};

template <typename Config>
struct SharedStorage : FlashStorage<Config, Tile> {
  block_descales::DescaleRing<TileDescales, Config::C.stages> descales;

  // The first row of V^T in a stage.
  __device__ float_e4m3_t* values(int stage) {
    return this->sV[stage] + Config::kSumRows * Config::C.bc;
  }
};

// Where a block's tile number `count` lies in the ring of tiles, and its Q. A consumer keeps the
// number alone.
__device__ inline auto tile_position(int count) {
  using Ring = TileRing<Tile>;
  return typename Ring::Position{count % Ring::kSlots,
                                 static_cast<std::uint32_t>(count / Ring::kSlots % 2)};
}
__device__ inline RingPosition<1> q_position(int count) {
  return {0, static_cast<std::uint32_t>(count % 2)};
}

struct TensorMaps {
  CUtensorMap q, keys[2], v, o;  // every other key, from the first and from the second on
};

}  // namespace flash_fp8
}  // namespace tilewright::cuda
