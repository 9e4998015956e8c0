// A device as the benchmark sees it: memory to allocate and fill, a clock, sensors.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tilewright/attention.hpp"

namespace tilewright::cli {

using Memory = std::shared_ptr<std::byte>;

// Queues one call of the function that is timed.
using Launch = std::function<void(Stream)>;

// Sensors' values while the timed launches ran; absent if there is no sensor.
struct Readings {
  std::optional<double> sm_clock_mhz;
  std::optional<double> power_w;
};

struct Samples {
  std::vector<double> times_us;  // one a launch
  bool cold_l2 = false;          // whether the L2 cache was flushed before every launch
  Readings readings;
};

class Machine {
 public:
  virtual ~Machine() = default;

  virtual Device device() const = 0;

  // What results files say of the machine: the name of the GPU or the processor; the versions of
  // driver and CUDA runtime, if there are any.
  virtual std::string name() const = 0;
  virtual std::optional<std::string> driver() const = 0;
  virtual std::optional<std::string> cuda() const = 0;

  // Allocates uninitialised memory, 256-byte aligned. Throws Error(unsupported, "memory"), which
  // says how many bytes were asked for and how many are free.
  virtual Memory allocate(std::size_t bytes) = 0;

  // Copy between host memory and this device's, and return when the copy is done.
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;

  // Queues a copy within the device's memory.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;

  // Launches once and waits until it is done.
  virtual void run(const Launch& launch) = 0;

  // Times every launch by itself, without the host's overhead.
  virtual Samples time(const Launch& launch, int samples, bool flush_l2) = 0;
};

std::unique_ptr<Machine> open_cpu_machine();

// Throws no_device if there is no such GPU or this build has no CUDA.
std::unique_ptr<Machine> open_cuda_machine(int index);

inline std::unique_ptr<Machine> open_machine(Device device) {
  return device.kind == DeviceKind::cpu ? open_cpu_machine() : open_cuda_machine(device.index);
}

// Throws Error(unsupported, "memory") if the host has fewer bytes than a case needs.
void check_host_memory(double needed_bytes);

// Whether this build has CUDA.
bool has_cuda();

}  // namespace tilewright::cli
