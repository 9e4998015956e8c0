// Cases that spoil a right call: what must be refused, in which words, without a byte written.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/error.hpp"

namespace tilewright::test {

template <typename Call>
struct BadCallOf {
  const char* description;
  std::function<void(Call&)> spoil;
  const char* argument;
  std::vector<const char*> parts;  // of the message
  ErrorCode code = ErrorCode::invalid_argument;
};

template <typename Call>
std::ostream& operator<<(std::ostream& out, const BadCallOf<Call>& bad) {
  return out << bad.description;
}

inline const auto kCaseName = [](const auto& parameter) { return parameter.param.description; };

// `run` throws what the case says.
template <typename Call>
void expect_throws(const BadCallOf<Call>& bad, const std::function<void()>& run) {
  SCOPED_TRACE(bad.description);
  try {
    run();
    FAIL() << "no exception";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), bad.code) << error.what();
    EXPECT_EQ(error.argument(), bad.argument) << error.what();
    EXPECT_THAT(error.what(), testing::StartsWith(std::string(bad.argument) + ": "));
    for (const char* const part : bad.parts) {
      EXPECT_THAT(error.what(), testing::HasSubstr(part));
    }
  }
}

// And nothing is written of a call on the host.
template <typename Call>
void expect_throws(const BadCallOf<Call>& bad, const Call& call, const std::function<void()>& run) {
  expect_throws(bad, run);
  EXPECT_TRUE(call.outputs_untouched()) << bad.description;
}

inline constexpr std::byte kPoison{0xA5};

inline void poison(reference::HostTensor& tensor) {
  std::fill_n(tensor.data(), tensor.bytes(), kPoison);
}

inline bool is_poisoned(const reference::HostTensor& tensor) {
  return std::all_of(tensor.data(), tensor.data() + tensor.bytes(),
                     [](std::byte each) { return each == kPoison; });
}

// Moves what a view or workspace points to.
void misplace(auto& view, int bytes) {
  view.data = static_cast<std::byte*>(const_cast<void*>(view.data)) + bytes;
}

}  // namespace tilewright::test
