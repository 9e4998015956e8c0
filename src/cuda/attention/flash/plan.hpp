// How the flash kernel runs a problem: decided on the host, from shapes alone.
#pragma once

#include <cstddef>
#include <optional>

#include "cuda/attention/flash/configs.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::cuda {

struct FlashPlan {
  int config;       // of kFlashConfigs
  int splits;       // parts into which the keys are cut, each for blocks of its own
  int split_len;    // keys of a part; a multiple of Bc where there are several
  int section;      // heads whose tiles are mixed, in the order of the tiles
  bool is_dynamic;  // tiles differ in length: a block takes the next when it is free
};

// Can the blocks of this config's clusters walk over the same keys?
bool can_share_keys(const FlashConfig& config, const AttentionProblem& problem);

// The config for `problem`; nothing where its head dims and dtype have none.
std::optional<int> best_flash_config(const AttentionProblem& problem, int sms);

// The plan for `problem` on a GPU of `sms` SMs: in that config, or in the best one.
FlashPlan plan_flash(const AttentionProblem& problem, int sms,
                     std::optional<int> config = std::nullopt);

// Where the workspace's parts lie, in bytes from its start.
struct FlashWorkspace {
  std::size_t ticket;   // 8 bytes
  std::size_t row_max;  // (splits * B, H, Nq) FP32
  std::size_t row_sum;  // likewise
  std::size_t o;        // (splits * B, Nq, H, Dv) FP32
  std::size_t bytes;
};
FlashWorkspace flash_workspace(const AttentionProblem& problem, const FlashPlan& plan);

// What a Plan of this kernel has.
struct FlashDetails {
  FlashPlan plan;
  FlashWorkspace at;
};

}  // namespace tilewright::cuda
