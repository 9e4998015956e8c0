// How the kernel nvfp4 runs a problem: decided on the host, from the problem alone.
#pragma once

#include <cstddef>
#include <optional>

#include "cuda/gemm/nvfp4/configs.hpp"
#include "cuda/gemm/nvfp4/schedule.hpp"
#include "tilewright/gemm_nvfp4_kernels.hpp"

namespace tilewright::cuda {

struct Nvfp4Plan {
  int config;  // of kNvfp4Configs
  TileOrder order;
  int tiles;
  int stream_k_tiles;  // of all tiles
  int chunks;          // of a tile
  int workers;

  // Who computes what. It takes longer than the rest of the plan, and only a launch needs it.
  GemmSchedule schedule() const {
    return {tiles, stream_k_tiles, chunks, workers, kNvfp4Configs[config].lag()};
  }
};

// The plan for `problem` on a GPU of `sms` SMs, in `config` or, without one, in the best config.
Nvfp4Plan plan_nvfp4(const GemmNvfp4Problem& problem, int sms,
                     std::optional<int> config = std::nullopt);

// What lies where in the workspace, in bytes from its start.
struct Nvfp4Workspace {
  std::size_t sums;         // of parts of tiles, FP32
  std::size_t flags;        // 8 bytes a block
  std::size_t ticket;       // 8 bytes
  std::size_t activations;  // (L, M, K) bf16, where a is NVFP4
  std::size_t weight;       // the packed weight, where b is codes
  std::size_t bytes;
};
Nvfp4Workspace nvfp4_workspace(const GemmNvfp4Problem& problem, const Nvfp4Plan& plan);

// What a Plan of this kernel has.
struct Nvfp4Details {
  Nvfp4Plan plan;
  Nvfp4Workspace at;
};

}  // namespace tilewright::cuda
