// Streams, events and graphs of the stand-in for the CUDA runtime. Work runs when it is queued.
#include <chrono>
#include <unordered_map>

#include "emulator/runtime.hpp"

// The runtime's handles point to these.
struct CUevent_st {
  std::chrono::steady_clock::time_point time;
};
struct CUgraph_st {
  std::vector<std::unique_ptr<struct CUgraphNode_st>> nodes;
};
struct CUgraphNode_st {
  tilewright::emulator::GraphNode node;
};
struct CUgraphExec_st {
  std::vector<tilewright::emulator::GraphNode> nodes;
};
struct CUstream_st {
  CUgraph_st* capture = nullptr;
};

namespace tilewright::emulator {
namespace {

bool is_handle(cudaStream_t stream) {
  return stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread;
}

}  // namespace

cudaError_t enqueue(cudaStream_t stream, cudaGraphNodeType type,
                    std::function<cudaError_t()> work) {
  const std::scoped_lock lock(runtime_mutex());
  if (is_handle(stream) && stream->capture != nullptr) {
    auto node = std::make_unique<CUgraphNode_st>();
    node->node = {type, std::move(work)};
    stream->capture->nodes.push_back(std::move(node));
    return cudaSuccess;
  }
  return work();
}

}  // namespace tilewright::emulator

using namespace tilewright::emulator;

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (!is_handle(stream) || stream->capture != nullptr) {
    return fail(cudaErrorStreamCaptureUnsupported);
  }
  stream->capture = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = is_handle(stream) ? std::exchange(stream->capture, nullptr) : nullptr;
  return *graph == nullptr ? fail(cudaErrorIllegalState) : cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = is_handle(stream) && stream->capture != nullptr ? cudaStreamCaptureStatusActive
                                                            : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st;
  for (const auto& node : graph->nodes) {
    (*exec)->nodes.push_back(node->node);
  }
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t) {
  const std::scoped_lock lock(runtime_mutex());
  for (const GraphNode& node : exec->nodes) {
    if (const cudaError_t error = node.work(); error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  for (std::size_t i = 0; nodes != nullptr && i < std::min(*count, graph->nodes.size()); ++i) {
    nodes[i] = graph->nodes[i].get();
  }
  *count = graph->nodes.size();
  return cudaSuccess;
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  *type = node->node.type;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return enqueue(stream, cudaGraphNodeTypeEventRecord, [event] {
    event->time = std::chrono::steady_clock::now();
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}

}  // extern "C"
