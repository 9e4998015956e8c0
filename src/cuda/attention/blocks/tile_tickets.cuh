// Tickets tell a persistent block which tile it computes next. Its first tile takes no ticket: that
// tile's number is the block's index. But where blocks may start late, tiles of those that have not
// started are for others: then each tile takes a ticket.
#pragma once

#include "cuda/common/ticket.cuh"

namespace tilewright::cuda {

// The number of a block's next tile, where the first `untaken` tiles take no ticket. It may be
// beyond the last tile.
__device__ inline int draw_tile(const TicketCounter& tickets, int untaken) {
  return tickets.take() + untaken;
}

// A block stops at the first number that it draws beyond the last tile. Each block draws one such
// number, so that the block with the largest one knows that no other will follow. A whole warp
// calls it.
__device__ inline void hand_in_ticket(const TicketCounter& tickets, int drawn, int tiles) {
  if (threadIdx.x % 32 == 0 && drawn == tiles - 1 + static_cast<int>(gridDim.x)) {
    tickets.clear();
  }
}

}  // namespace tilewright::cuda
