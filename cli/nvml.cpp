#include "cli/nvml.hpp"

#include <array>
#include <stdexcept>

#include "cli/dynamic_library.hpp"

namespace tilewright::cli {

// The part of nvml.h that is used here. Every function returns 0 on success.
struct Nvml::Library {
  static constexpr int kClockSm = 1;

  Library() : file("libnvidia-ml.so.1") {
    file.load(init, "nvmlInit_v2");
    file.load(shutdown, "nvmlShutdown");
    file.load(get_handle, "nvmlDeviceGetHandleByPciBusId_v2");
    file.load(get_clock, "nvmlDeviceGetClockInfo");
    file.load(get_power, "nvmlDeviceGetPowerUsage");
    file.load(get_driver, "nvmlSystemGetDriverVersion");
    if (init() != 0) {
      throw std::runtime_error("nvmlInit_v2 failed");
    }
  }
  ~Library() { shutdown(); }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  DynamicLibrary file;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*get_handle)(const char* pci_address, void** device) = nullptr;
  int (*get_clock)(void* device, int clock, unsigned* mhz) = nullptr;
  int (*get_power)(void* device, unsigned* milliwatts) = nullptr;
  int (*get_driver)(char* text, unsigned bytes) = nullptr;
  void* device = nullptr;
};

Nvml::Nvml(const std::string& pci_address) {
  try {
    library_ = std::make_unique<Library>();
    if (library_->get_handle(pci_address.c_str(), &library_->device) != 0) {
      library_.reset();
    }
  } catch (const std::runtime_error&) {
    library_.reset();
  }
}

Nvml::~Nvml() = default;

std::optional<std::string> Nvml::driver() const {
  std::array<char, 96> text{};
  if (!library_ || library_->get_driver(text.data(), text.size()) != 0) {
    return std::nullopt;
  }
  return text.data();
}

Readings Nvml::read() const {
  Readings readings;
  unsigned value = 0;
  if (library_ && library_->get_clock(library_->device, Library::kClockSm, &value) == 0) {
    readings.sm_clock_mhz = value;
  }
  if (library_ && library_->get_power(library_->device, &value) == 0) {
    readings.power_w = value * 1e-3;
  }
  return readings;
}

}  // namespace tilewright::cli
