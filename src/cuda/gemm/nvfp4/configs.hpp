// The configs in which the kernel nvfp4 exists, and which of them runs a problem.
//
// docs/worklog/nvfp4-gemm.md has the account of them.
#pragma once

#include <cstdint>

namespace tilewright::cuda {

// What a config is for. Of those that fit a problem the first one runs it.
enum class Nvfp4Use : std::uint8_t {
  any,
  one_round,    // there is at most a tile for each worker
  many_tiles,   // there are enough tiles to occupy three quarters of the GPU, and few are padded
  full_rounds,  // likewise, and few workers are idle in the last round or each has few columns
};

struct Nvfp4Config {
  // Warpgroups that compute: so many times 64 rows of the weight, and for each of these so many
  // times the columns of `steps`. What these add up depends on how many they are, so that
  // batch_invariant asks for one.
  int row_consumers;
  int column_consumers;
  int tokens;   // of a tile
  int steps;    // of 64 columns, for a consumer, in a chunk; SMEM has as many chunks as fit
  int cluster;  // blocks that load the same tokens together, each its share, for all of them
  Nvfp4Use use;
  int max_m;
  int max_m_if_short;     // where a worker has few columns:
  int short_columns = 0;  // fewer than so many, of tiles together

  constexpr int rows() const { return 64 * row_consumers; }  // of a tile
  constexpr bool is_large() const { return tokens == 256; }
  // That takes totals beside the sums, for which these have no registers left.
  constexpr bool takes_fp32() const { return !is_large() && steps < 4; }
  // Whether tiles have no more tokens than they must, all the same number. To copy some from beyond
  // M takes longer than any others; but then each step of 64 columns is a copy by itself, and
  // smaller tiles have too many of these.
  constexpr bool cuts_tokens() const { return tokens >= 64 && !is_large(); }
  // Whether the copy engine takes tiles to C, as consumers have them to themselves.
  constexpr bool stores_tiles() const { return column_consumers == 1; }
  constexpr int columns() const { return 64 * steps * column_consumers; }  // of a chunk
  // What adding up the parts of a tile takes, in chunks, as measured: it is less where there are
  // fewer tokens, and chunks take longer the more columns they have.
  constexpr int sharing_chunks() const {
    if (is_large()) {
      return 12;
    }
    return columns() >= 1024 ? 2 : tokens >= 128 ? 6 : 4;
  }
  // Of that, what passes between the last chunk of one part and the sums' arrival at the owner's.
  constexpr int lag() const { return columns() >= 1024 ? 2 : columns() >= 512 ? 3 : 4; }
};

inline constexpr int kAnyM = 1 << 30;
inline constexpr Nvfp4Config kNvfp4Configs[] = {
    // consumers for rows, for columns; tokens; steps; cluster; use; max_m; if short: max_m, columns
    {1, 4, 8, 4, 1, Nvfp4Use::any, 8, 0, 2560},
    {1, 4, 8, 2, 1, Nvfp4Use::any, 8, 8},
    {1, 4, 16, 4, 1, Nvfp4Use::any, 16, 16},
    {1, 2, 32, 2, 1, Nvfp4Use::any, 0, 32, 8192},
    {2, 2, 32, 2, 1, Nvfp4Use::any, 32, 32},
    {1, 1, 16, 2, 1, Nvfp4Use::any, 16, 16},  // batch_invariant
    {1, 2, 64, 2, 1, Nvfp4Use::one_round, 0, 64, 8192},
    {2, 1, 64, 2, 1, Nvfp4Use::any, 64, 128, 2048},
    {2, 1, 256, 1, 1, Nvfp4Use::full_rounds, kAnyM, kAnyM, 8192},
    {2, 1, 256, 1, 2, Nvfp4Use::many_tiles, kAnyM, kAnyM},
    {2, 1, 128, 2, 1, Nvfp4Use::any, 512, 512},
    {2, 1, 128, 2, 2, Nvfp4Use::any, kAnyM, kAnyM},
};
inline constexpr int kNvfp4ConfigCount = sizeof(kNvfp4Configs) / sizeof(kNvfp4Configs[0]);

}  // namespace tilewright::cuda
