// The configs in which the kernel nvfp4 exists, and which of them runs a problem.
//
// docs/worklog/nvfp4-gemm.md has the account of them.
#pragma once

#include <cstdint>

namespace tilewright::cuda {

// What a config is for. A problem runs in the first config of the table that fits it.
enum class Nvfp4Use : std::uint8_t {
  any,
  one_round,    // no more tiles than workers: each of all tokens; or nearly as many, all full
  many_tiles,   // the tiles occupy three quarters of the GPU at least, and padding is small
  full_rounds,  // as many_tiles; and few workers idle in the last round, or each has few columns
};

struct Nvfp4Config {
  // A block has row_consumers * column_consumers consumers. Row consumers have 64 rows of the
  // weight each; column consumers have the same rows, and 64 * steps columns of a chunk each. The
  // order of additions depends on the number of these: a batch-invariant call asks for one.
  int row_consumers;
  int column_consumers;
  int tokens;   // of a tile
  int steps;    // of 64 columns, of a consumer in a chunk; SMEM holds as many chunks as fit
  int cluster;  // blocks that need the same tokens: each loads its share, for all of them
  Nvfp4Use use;
  int max_m;
  int max_m_if_short;     // max_m if a worker has few columns:
  int short_columns = 0;  // fewer than these, in all of its tiles together

  constexpr int rows() const { return 64 * row_consumers; }  // of a tile
  constexpr bool is_large() const { return tokens == 256; }
  // FP32 output takes totals beside the sums, for which other configs have no registers.
  constexpr bool takes_fp32() const { return !is_large() && steps < 4; }
  // Whether tiles are cut to equally many tokens each, so that none lies beyond M. Loading tokens
  // from beyond M takes longer than loading others. But if tiles are cut, each step of 64 columns
  // takes a TMA load of its own, and smaller tiles have too many steps for that.
  constexpr bool cuts_tokens() const { return tokens >= 64 && !is_large(); }
  // Whether TMA stores C: each of a tile's consumers must have all sums of its rows.
  constexpr bool stores_tiles() const { return column_consumers == 1; }
  constexpr int columns() const { return 64 * steps * column_consumers; }  // of a chunk
  // How long it takes to add up the parts of a tile under stream-K, in chunks, as measured. Fewer
  // tokens take less time, and a chunk takes longer the more columns it has.
  constexpr int reduction_chunks() const {
    if (is_large()) {
      return 12;
    }
    return columns() >= 1024 ? 2 : tokens >= 128 ? 6 : 4;
  }
  // Of that, the time from a part's last chunk until its sums have reached the reducer.
  constexpr int lag() const { return columns() >= 1024 ? 2 : columns() >= 512 ? 3 : 4; }
};

inline constexpr int kAnyM = 1 << 30;
inline constexpr Nvfp4Config kNvfp4Configs[] = {
    // row, column consumers; tokens; steps; cluster; use; max_m; if short: max_m, columns
    {1, 4, 8, 4, 1, Nvfp4Use::any, 8, 0, 2560},
    {1, 4, 8, 2, 1, Nvfp4Use::any, 8, 8},
    {1, 4, 16, 4, 1, Nvfp4Use::any, 16, 16},
    {1, 2, 32, 2, 1, Nvfp4Use::any, 0, 32, 8192},
    {2, 2, 32, 2, 1, Nvfp4Use::any, 32, 32},
    {1, 1, 16, 2, 1, Nvfp4Use::any, 16, 16},  // batch_invariant
    {1, 2, 64, 2, 1, Nvfp4Use::one_round, 0, 128, 8192},
    {2, 1, 64, 2, 1, Nvfp4Use::any, 64, 128, 2048},
    {2, 1, 256, 1, 1, Nvfp4Use::full_rounds, kAnyM, kAnyM, 8192},
    {2, 1, 256, 1, 2, Nvfp4Use::many_tiles, kAnyM, kAnyM},
    {2, 1, 128, 2, 1, Nvfp4Use::any, 512, 512},
    {2, 1, 128, 2, 2, Nvfp4Use::any, kAnyM, kAnyM},
};
inline constexpr int kNvfp4ConfigCount = sizeof(kNvfp4Configs) / sizeof(kNvfp4Configs[0]);

}  // namespace tilewright::cuda
