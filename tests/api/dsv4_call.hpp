// Right calls of dsv4_attention(), which cases then spoil.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <vector>

#include "bad_call.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/dsv4_attention.hpp"

namespace tilewright::test {

class Dsv4Call {
 public:
  Dsv4Call() = default;
  Dsv4Call(Dsv4Call&&) = default;  // a copy's tensors would be the original's

  TensorView input(DType dtype, const std::vector<std::int64_t>& shape) {
    return inputs_.emplace_back(dtype, shape).view();
  }

  // With strides; pages of 584-byte rows are padded to multiples of 576 bytes.
  TensorView input(DType dtype, const std::vector<std::int64_t>& shape,
                   const std::vector<std::int64_t>& stride) {
    return inputs_.emplace_back(dtype, shape, stride).view();
  }

  template <typename T = int>
  TensorView ints(const std::vector<T>& values, const std::vector<std::int64_t>& shape) {
    const TensorView view = input(sizeof(T) == 4 ? DType::int32 : DType::int64, shape);
    std::ranges::copy(values, static_cast<T*>(view.data));
    return view;
  }

  TensorView output(DType dtype, const std::vector<std::int64_t>& shape) {
    reference::HostTensor& tensor = outputs_.emplace_back(dtype, shape);
    poison(tensor);
    return tensor.view();
  }

  bool outputs_untouched() const { return std::ranges::all_of(outputs_, is_poisoned); }

  Dsv4AttentionTensors tensors;
  Dsv4AttentionOptions options;

 private:
  std::deque<reference::HostTensor> inputs_, outputs_;
};

// Two requests of two tokens. The window is a ring of 8 rows in pages of 4, of which the tokens see
// 6; of the compressed keys there is a list of 3.
inline Dsv4Call batched_call() {
  Dsv4Call c;
  c.tensors = {
      .q = c.input(DType::bf16, {2, 2, 4, 512}),
      .o = c.output(DType::bf16, {2, 2, 4, 512}),
      .window = Dsv4Scope{.rows = c.input(DType::u8, {5, 4, 584}, {2880, 584, 1}),
                          .range_end = c.ints({20, 21, 6, 7}, {2, 2}),
                          .range_begin = c.ints({14, 15, 0, 1}, {2, 2}),
                          .block_table = c.ints({4, 1, 0, 3}, {2, 2}),
                          .ring = 8},
      .compressed = Dsv4Scope{.rows = c.input(DType::bf16, {3, 2, 512}),
                              .indices = c.ints({5, -1, 0, 3, 3, 4, -1, 1, 9, 0, 2, 9}, {2, 2, 3}),
                              .list_lengths = c.ints({3, 2}, {2})},
      .fresh_rows = c.input(DType::bf16, {2, 2, 512}),
      .sinks = c.input(DType::fp32, {4}),
      .lse = c.output(DType::fp32, {2, 4, 2}),
      .rotary_cos = c.input(DType::fp32, {10, 32}),
      .rotary_sin = c.input(DType::fp32, {10, 32}),
      .positions = c.ints<std::int64_t>({3, 4, 9, 0}, {2, 2})};
  return c;
}

// Packed requests of 2 and 1 tokens and a row behind them. The window is a range of a page of each
// request, un-normalised.
inline Dsv4Call packed_dsv4_call() {
  Dsv4Call c;
  c.tensors = {.q = c.input(DType::fp32, {4, 3, 512}),
               .o = c.output(DType::fp32, {4, 3, 512}),
               .window = Dsv4Scope{.rows = c.input(DType::u8, {2, 6, 528}),
                                   .range_end = c.ints({4, 5, 6, 99}, {4})},
               .row_max = c.output(DType::fp32, {3, 4}),
               .row_sum = c.output(DType::fp32, {3, 4}),
               .cu_seqlens_q = c.ints({0, 2, 3}, {3})};
  return c;
}

// The output is of E4M3.
inline Dsv4Call quantized_call() {
  Dsv4Call c;
  c.tensors = {.q = c.input(DType::bf16, {1, 1, 2, 512}),
               .o = c.output(DType::e4m3, {1, 1, 2, 512}),
               .compressed = Dsv4Scope{.rows = c.input(DType::u8, {1, 7, 288}),
                                       .indices = c.ints({6, 0}, {1, 1, 2})},
               .o_scale = c.output(DType::fp32, {1, 1, 2, 4})};
  return c;
}

using BadDsv4Call = BadCallOf<Dsv4Call>;

// The spoilt call is refused, and so is the question for its workspace, where that can know.
inline void expect_refused(const BadDsv4Call& bad, Dsv4Call call, bool is_value = false) {
  bad.spoil(call);
  expect_throws(bad, call, [&] { dsv4_attention(call.tensors, call.options); });
  if (!is_value) {
    expect_throws(bad, call, [&] { dsv4_attention_workspace_bytes(call.tensors, call.options); });
  }
}

}  // namespace tilewright::test
