// A CUDA device as a machine, by the runtime API and host code alone.
#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "cli/machine.hpp"
#include "cli/nvml.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::cli {
namespace {

void check(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) {
    throw Error(ErrorCode::cuda, std::string(what), cudaGetErrorString(status));
  }
}

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(Stream stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }

  void wait() const { check(cudaEventSynchronize(event_), "cudaEventSynchronize"); }

  double us_since(const Event& start) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
    return milliseconds * 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

std::string pci_address(int device) {
  std::array<char, 32> text{};
  check(cudaDeviceGetPCIBusId(text.data(), text.size(), device), "cudaDeviceGetPCIBusId");
  return text.data();
}

class CudaMachine final : public Machine {
 public:
  explicit CudaMachine(int index)
      : info_(device_info({DeviceKind::cuda, index})), nvml_(pci_address(index)) {
    check(cudaSetDevice(index), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    flush_bytes_ = 2 * std::max<std::size_t>(info_.l2_bytes, std::size_t{32} << 20);
    flush_buffer_ = allocate(flush_bytes_);
  }
  ~CudaMachine() override { cudaStreamDestroy(stream_); }

  Device device() const override { return info_.device; }
  std::string name() const override { return info_.name; }
  std::optional<std::string> driver() const override { return nvml_.driver(); }

  std::optional<std::string> cuda() const override {
    int version = 0;
    check(cudaRuntimeGetVersion(&version), "cudaRuntimeGetVersion");
    return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
  }

  Memory allocate(std::size_t bytes) override {
    void* data = nullptr;
    if (cudaMalloc(&data, bytes) == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // clears it
      std::size_t free_bytes = 0;
      std::size_t total_bytes = 0;
      check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo");
      throw Error(ErrorCode::unsupported, "memory",
                  fmt::format("asked {} for {} bytes, {} of its {} are free",
                              tilewright::name(device()), bytes, free_bytes, total_bytes));
    }
    check(cudaGetLastError(), "cudaMalloc");
    return {static_cast<std::byte*>(data), cudaFree};
  }

  void upload(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes, stream_);
    synchronize();
  }

  void download(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes, stream_);
    synchronize();
  }

  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
  }

  void run(const Launch& launch) override {
    launch(stream_);
    synchronize();
  }

  Samples time(const Launch& launch, int samples, bool flush_l2) override {
    Samples result;
    result.cold_l2 = flush_l2;
    while (samples > 0) {
      const int queued = std::min(samples, kMaxQueued);
      time_queued(launch, queued, result);
      samples -= queued;
    }
    return result;
  }

 private:
  // Few enough that the driver's launch queue never fills and blocks the host.
  static constexpr int kMaxQueued = 64;

  // Adds `count` samples to the result. The device first writes the flush buffer many times, which
  // takes longer than the host needs to queue all launches: so no launch waits for the host.
  void time_queued(const Launch& launch, int count, Samples& result) {
    std::vector<Event> starts(static_cast<std::size_t>(count));
    std::vector<Event> stops(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
      flush_l2();
    }
    if (!result.cold_l2) {
      launch(stream_);  // loads into the caches what the writes before have evicted
    }
    for (std::size_t i = 0; i < starts.size(); ++i) {
      if (result.cold_l2) {
        flush_l2();
      }
      starts[i].record(stream_);
      launch(stream_);
      stops[i].record(stream_);
    }
    starts[starts.size() / 2].wait();
    result.readings = nvml_.read();  // at half time, while the device works through the queue
    synchronize();
    for (std::size_t i = 0; i < starts.size(); ++i) {
      result.times_us.push_back(stops[i].us_since(starts[i]));
    }
  }

  void flush_l2() {
    check(cudaMemsetAsync(flush_buffer_.get(), 0, flush_bytes_, stream_), "cudaMemsetAsync");
  }

  void synchronize() { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  DeviceInfo info_;
  Nvml nvml_;
  Stream stream_ = nullptr;
  std::size_t flush_bytes_ = 0;
  Memory flush_buffer_;
};

}  // namespace

std::unique_ptr<Machine> open_cuda_machine(int index) {
  return std::make_unique<CudaMachine>(index);
}

bool has_cuda() { return true; }

}  // namespace tilewright::cli
