// What every operation takes besides its tensors and options: the stream to queue the work on, and
// scratch memory.
#pragma once

#include <cstddef>

struct CUstream_st;

namespace tilewright {

// A CUDA stream; null is the default stream. CPU kernels ignore it.
using Stream = CUstream_st*;

// Scratch memory on the tensors' device, 256-byte aligned; null if 0 bytes are needed. Its contents
// on entry do not matter. No two calls that may run at the same time may share it.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

}  // namespace tilewright
