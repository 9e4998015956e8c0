// A shared library that is loaded while the program runs, and need not be there.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace tilewright::cli {

class DynamicLibrary {
 public:
  // Loads a path, or a name for which the dynamic linker searches. Throws with its reason.
  explicit DynamicLibrary(const std::string& path)
      : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL), close) {
    if (!handle_) {
      throw std::runtime_error(dlerror());
    }
  }

  // Sets a function pointer to the symbol with this name.
  template <typename Function>
  void load(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(dlsym(handle_.get(), symbol));
    if (function == nullptr) {
      throw std::runtime_error(dlerror());
    }
  }

 private:
  static void close(void* handle) {
    if (handle != nullptr) {
      dlclose(handle);
    }
  }

  std::shared_ptr<void> handle_;
};

}  // namespace tilewright::cli
