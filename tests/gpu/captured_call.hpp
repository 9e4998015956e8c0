// A graph of a call, replayed.
#pragma once

#include "device_problem.hpp"

namespace tilewright::test {

class CapturedCall {
 public:
  // Captures call.launch(stream).
  template <typename Call>
  explicit CapturedCall(const Call& call) {
    cuda_ok(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeGlobal));
    call.launch(stream_.get());
    cuda_ok(cudaStreamEndCapture(stream_.get(), &graph_));
    cuda_ok(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~CapturedCall() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  CapturedCall(const CapturedCall&) = delete;
  CapturedCall& operator=(const CapturedCall&) = delete;

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
