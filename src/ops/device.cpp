// Properties of the devices of this machine.
#include <omp.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <mutex>

#include "cuda/cuda_backend.hpp"
#include "tilewright/registry.hpp"

namespace tilewright {
namespace {

std::string cpu_model_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) {
      return line.substr(line.find(':') + 2);
    }
  }
  return "CPU";
}

DeviceInfo cpu_info() {
  DeviceInfo info;
  info.name = cpu_model_name();
  info.multiprocessors = omp_get_max_threads();
  info.memory_bytes = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                      static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return info;
}

}  // namespace

std::string_view cpu_only_notice() { return cuda::cpu_only_notice(); }

int cuda_device_count() { return cuda::device_count(); }

const DeviceInfo& device_info(Device device) {
  if (device.kind == DeviceKind::cpu) {
    static const DeviceInfo info = cpu_info();
    return info;
  }
  static std::mutex mutex;
  static std::map<int, DeviceInfo> cache;
  const std::lock_guard lock(mutex);
  const auto found = cache.find(device.index);
  return found != cache.end()
             ? found->second
             : cache.emplace(device.index, cuda::device_info(device.index)).first->second;
}

void synchronize(Device device, Stream stream) {
  if (device.kind == DeviceKind::cuda) {
    cuda::synchronize(device.index, stream);
  }
}

}  // namespace tilewright
