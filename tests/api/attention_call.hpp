// Right calls of attention(), which cases then spoil.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "bad_call.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/attention.hpp"

namespace tilewright::test {

// A right call, which a case then spoils.
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
    poison(tensor);
    return tensor.view();
  }

  bool outputs_untouched() const { return std::ranges::all_of(outputs_, is_poisoned); }

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
  std::deque<reference::HostTensor> inputs_, outputs_;
};

using BadCall = BadCallOf<Call>;

// The spoilt call is refused, and so is the question for its workspace.
inline void expect_refused(const BadCall& bad, Call call) {
  bad.spoil(call);
  expect_throws(bad, call, [&] { attention(call.tensors, call.options); });
  expect_throws(bad, call, [&] { attention_workspace_bytes(call.tensors, call.options); });
}

}  // namespace tilewright::test
