// Tickets tell a persistent block which tile it computes next. Its first tile takes no ticket: that
// tile's number is the block's index.
#pragma once

#include "cuda/common/ticket.cuh"

namespace tilewright::cuda {

// The number of a block's next tile. It may be beyond the last tile.
__device__ inline int draw_tile(const TicketCounter& tickets) {
  return tickets.take() + static_cast<int>(gridDim.x);
}

// A block stops at the first number that it draws beyond the last tile. Tickets and tiles are
// equally many, so that the block with the last ticket knows that no other will follow. A whole
// warp calls it.
__device__ inline void hand_in_ticket(const TicketCounter& tickets, int drawn, int tiles) {
  if (threadIdx.x % 32 == 0 && drawn == tiles - 1 + static_cast<int>(gridDim.x)) {
    tickets.clear();
  }
}

}  // namespace tilewright::cuda
