// The host's processor as a machine.
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>

#include "cli/machine.hpp"
#include "tilewright/registry.hpp"

namespace tilewright::cli {
namespace {

constexpr std::size_t kAlignment_bytes = 256;

class CpuMachine final : public Machine {
 public:
  Device device() const override { return {}; }

  std::string name() const override {
    const DeviceInfo& info = device_info(device());
    return fmt::format("{}, {} threads", info.name, info.multiprocessors);
  }

  std::optional<std::string> driver() const override { return std::nullopt; }
  std::optional<std::string> cuda() const override { return std::nullopt; }

  Memory allocate(std::size_t bytes) override {
    const std::size_t rounded = (bytes / kAlignment_bytes + 1) * kAlignment_bytes;
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(kAlignment_bytes, rounded));
    if (data == nullptr) {
      const auto free_bytes = sysconf(_SC_AVPHYS_PAGES) * sysconf(_SC_PAGESIZE);
      throw Error(ErrorCode::unsupported, "memory",
                  fmt::format("asked the host for {} bytes, {} are free", bytes, free_bytes));
    }
    return {data, std::free};
  }

  void upload(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }

  void download(void* to, const void* from, std::size_t bytes) override {
    std::memcpy(to, from, bytes);
  }

  void copy(void* to, const void* from, std::size_t bytes, Stream) override {
    std::memcpy(to, from, bytes);
  }

  void run(const Launch& launch) override { launch(nullptr); }

  // Caches stay as they are, as there is no rule by which to flush them.
  Samples time(const Launch& launch, int samples, bool) override {
    using Clock = std::chrono::steady_clock;
    Samples result;
    for (int i = 0; i < samples; ++i) {
      const Clock::time_point start = Clock::now();
      launch(nullptr);
      const std::chrono::duration<double, std::micro> elapsed_us = Clock::now() - start;
      result.times_us.push_back(elapsed_us.count());
    }
    return result;
  }
};

}  // namespace

std::unique_ptr<Machine> open_cpu_machine() { return std::make_unique<CpuMachine>(); }

void check_host_memory(double needed_bytes) {
  const DeviceInfo& host = device_info({});
  if (needed_bytes > static_cast<double>(host.memory_bytes)) {
    throw Error(ErrorCode::unsupported, "memory",
                fmt::format("the case needs {:.0f} bytes of host memory, {} has {}", needed_bytes,
                            host.name, host.memory_bytes));
  }
}

}  // namespace tilewright::cli
