// How the kernel nvfp4 runs a problem: in which shape, cut into which tiles, with how much
// workspace.
#pragma once

#include <cstddef>

#include "cuda/gemm/nvfp4/choices.hpp"
#include "cuda/gemm/nvfp4/schedule.hpp"

namespace tilewright::cuda {

struct Nvfp4Plan {
  int choice;  // a row of kNvfp4Choices
  TileOrder order;
  GemmSchedule schedule;
  std::size_t flags;  // where in the workspace they begin, behind the sums
  std::size_t workspace_bytes;
};

// For a GPU with so many SMs. `choice` -1: the table's.
Nvfp4Plan plan_nvfp4(int m, int n, int k, int l, bool batch_invariant, int sms, int choice = -1);

}  // namespace tilewright::cuda
