// How the flash kernel runs a problem: decided on the host, from the problem and the number of SMs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "cuda/attention/flash/configs.hpp"
#include "tilewright/attention_kernels.hpp"

namespace tilewright::cuda {

struct FlashPlan {
  int config;       // of kFlashConfigs
  int splits;       // pieces of the keys, each computed by blocks of its own
  int split_len;    // keys of a split; a multiple of Bc if there are several
  int section;      // heads of a section: FlashSchedule has the order of tiles
  bool is_dynamic;  // tiles differ in length, and blocks draw them by ticket
};

// Do all blocks of this config's clusters see the same keys in `problem`?
bool can_share_keys(const FlashConfig& config, const AttentionProblem& problem);

// The config of a table for `problem`; nothing if none has its head dims and dtype.
std::optional<int> best_config(std::span<const FlashConfig> configs,
                               const AttentionProblem& problem, int sms);

// The plan for `problem` on a GPU of `sms` SMs, in `config` or, without one, in the best config.
FlashPlan plan_flash(const AttentionProblem& problem, int sms,
                     std::optional<int> config = std::nullopt);

// The same but for the config's number, in any config of flash's kind. `dims` are those of a key
// and its value together, in 16 bits.
FlashPlan plan_in_config(const AttentionProblem& problem, int sms, const FlashConfig& config,
                         std::int64_t dims);

// What lies where in the workspace, in bytes from its start.
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
