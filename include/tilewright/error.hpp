// The exception that the library throws. Besides it there is only std::bad_alloc, if the host's
// memory runs out; then, too, nothing has been written.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace tilewright {

enum class ErrorCode : std::uint8_t {
  invalid_argument,     // the call contradicts itself or its documented contract
  unsupported,          // a valid problem that the kernel or device at hand cannot run
  workspace_too_small,  // fewer bytes were given than the operation's ..._workspace_bytes() returns
  no_device,            // no such device, or this build has no CUDA
  cuda,                 // the CUDA runtime or driver reported an error
};

constexpr std::string_view name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::workspace_too_small:
      return "workspace_too_small";
    case ErrorCode::no_device:
      return "no_device";
    case ErrorCode::cuda:
      return "cuda";
  }
  return "unknown";
}

// Thrown before anything is launched or written (ErrorCode::cuda aside, which reports a failed
// launch). what() reads "argument: what it was and what it must be".
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string argument, const std::string& message)
      : std::runtime_error(argument + ": " + message),
        code_(code),
        argument_(std::move(argument)) {}

  ErrorCode code() const noexcept { return code_; }

  // The argument at fault as the public function names it: "k", "scale", "workspace", ...
  const std::string& argument() const noexcept { return argument_; }

 private:
  ErrorCode code_;
  std::string argument_;
};

}  // namespace tilewright
