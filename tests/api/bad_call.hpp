// Correct calls, and cases that spoil them: what must be refused, in which words.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "reference/host_tensor.hpp"
#include "tilewright/attention.hpp"

namespace tilewright::test {

// A correct call, which a case then spoils.
class Call {
 public:
  Call() = default;
  Call(Call&&) = default;  // a copy's tensors would be the original's

  TensorView input(DType dtype, const std::vector<std::int64_t>& shape) {
    return inputs_.emplace_back(dtype, shape).view();
  }

  TensorView lengths(const std::vector<int>& values) {
    const TensorView view = input(DType::int32, {static_cast<std::int64_t>(values.size())});
    std::ranges::copy(values, static_cast<int*>(view.data));
    return view;
  }

  TensorView output(DType dtype, const std::vector<std::int64_t>& shape) {
    reference::HostTensor& tensor = outputs_.emplace_back(dtype, shape);
    std::memset(tensor.data(), kPoison, tensor.bytes());
    return tensor.view();
  }

  bool outputs_untouched() const {
    return std::ranges::all_of(outputs_, [](const reference::HostTensor& tensor) {
      return std::all_of(tensor.data(), tensor.data() + tensor.bytes(),
                         [](std::byte b) { return b == std::byte{kPoison}; });
    });
  }

  void move_to(Device device) {
    tensors.q.device = tensors.k.device = tensors.v.device = tensors.o.device = device;
    const auto move = [&](auto&... views) {
      ((views ? void(views->device = device) : void()), ...);
    };
    move(tensors.lse, tensors.sinks, tensors.row_max, tensors.row_sum);
    move(tensors.cu_seqlens_q, tensors.cu_seqlens_k, tensors.seqused_k);
  }

  AttentionTensors tensors;
  AttentionOptions options;

 private:
  static constexpr unsigned char kPoison = 0xA5;

  std::deque<reference::HostTensor> inputs_, outputs_;
};

struct BadCall {
  const char* description;
  std::function<void(Call&)> spoil;
  const char* argument;
  std::vector<const char*> parts;  // of the message
  ErrorCode code = ErrorCode::invalid_argument;
};

inline std::ostream& operator<<(std::ostream& out, const BadCall& bad) {
  return out << bad.description;
}

inline const auto kCaseName = [](const auto& parameter) { return parameter.param.description; };

// attention() throws what the case says, and writes nothing.
inline void expect_throws(const BadCall& bad, const Call& call, const std::function<void()>& run) {
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
  EXPECT_TRUE(call.outputs_untouched());
}

// The spoilt call is refused, and so is the question for its workspace.
inline void expect_refused(const BadCall& bad, Call call) {
  bad.spoil(call);
  expect_throws(bad, call, [&] { attention(call.tensors, call.options); });
  expect_throws(bad, call, [&] { attention_workspace_bytes(call.tensors, call.options); });
}

}  // namespace tilewright::test
