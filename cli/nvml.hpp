// Driver version, clock and power of a GPU, from NVIDIA's management library where it is installed.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cli/machine.hpp"

namespace tilewright::cli {

class Nvml {
 public:
  // The GPU at a PCI address ("0000:3b:00.0"). Without the library, or where it does not know the
  // GPU, every answer is absent.
  explicit Nvml(const std::string& pci_address);
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::optional<std::string> driver() const;
  Readings read() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;  // null where it could not be loaded
};

}  // namespace tilewright::cli
