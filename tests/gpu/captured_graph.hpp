// A call that is captured in a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "device_problem.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::test {

class CapturedGraph {
 public:
  // `queue` makes the call.
  explicit CapturedGraph(const std::function<void(Stream)>& queue) {
    cuda_ok(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeGlobal));
    queue(stream_.get());
    cuda_ok(cudaStreamEndCapture(stream_.get(), &graph_));
    cuda_ok(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~CapturedGraph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  void replay() const {
    cuda_ok(cudaGraphLaunch(executable_, stream_.get()));
    stream_.wait();
  }

 private:
  DeviceStream stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tilewright::test
