// Right calls of attention_with_kvcache(), which cases then spoil.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "bad_call.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/attention_with_kvcache.hpp"

namespace tilewright::test {

// A right call, which a case then spoils. Its caches count as outputs.
class KvCacheCall {
 public:
  KvCacheCall() = default;
  KvCacheCall(KvCacheCall&&) = default;  // a copy's tensors would be the original's

  TensorView input(DType dtype, const std::vector<std::int64_t>& shape) {
    return inputs_.emplace_back(dtype, shape).view();
  }

  // Of one dimension or, with so many columns, of two.
  TensorView ints(const std::vector<int>& values, std::int64_t columns = 0) {
    const auto count = static_cast<std::int64_t>(values.size());
    const TensorView view = columns == 0 ? input(DType::int32, {count})
                                         : input(DType::int32, {count / columns, columns});
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
    AttentionWithKvCacheTensors& t = tensors;
    t.q.device = t.k_cache.device = t.v_cache.device = t.o.device = device;
    t.cache_seqlens.device = device;
    const auto move = [&](auto&... views) {
      ((views ? void(views->device = device) : void()), ...);
    };
    move(t.block_table, t.cache_batch_idx, t.leftpad_k, t.prefix_groups, t.prefix_seqlens);
    move(t.cu_seqlens_q, t.k, t.v, t.q_descale, t.k_descale, t.v_descale, t.tree_mask, t.sinks,
         t.lse, t.row_max, t.row_sum);
  }

  AttentionWithKvCacheTensors tensors;
  AttentionWithKvCacheOptions options;

 private:
  std::deque<reference::HostTensor> inputs_, outputs_;
};

// Two sequences of 9 and 4 keys in pages of 4, and 3 new ones of each.
inline KvCacheCall paged_call() {
  KvCacheCall c;
  c.tensors = {.q = c.input(DType::bf16, {2, 3, 6, 64}),
               .k_cache = c.output(DType::bf16, {8, 4, 3, 64}),
               .v_cache = c.output(DType::bf16, {8, 4, 3, 32}),
               .o = c.output(DType::bf16, {2, 3, 6, 32}),
               .cache_seqlens = c.ints({9, 4}),
               .block_table = c.ints({7, 2, 0, -1, 5, 3, -1, -1}, 4),
               .leftpad_k = c.ints({0, 2}),
               .k = c.input(DType::bf16, {2, 3, 3, 64}),
               .v = c.input(DType::bf16, {2, 3, 3, 32}),
               .tree_mask = c.input(DType::int64, {2, 3}),
               .sinks = c.input(DType::fp32, {6}),
               .lse = c.output(DType::fp32, {2, 6, 3})};
  return c;
}

// Packed sequences of 2 and 4 new tokens and a row behind them, in rows 3 and 0 of E4M3 caches that
// hold 5 and 8 of their keys already.
inline KvCacheCall packed_call() {
  KvCacheCall c;
  c.tensors = {.q = c.input(DType::fp16, {7, 4, 64}),
               .k_cache = c.output(DType::e4m3, {4, 12, 2, 64}),
               .v_cache = c.output(DType::e4m3, {4, 12, 2, 64}),
               .o = c.output(DType::fp32, {7, 4, 64}),
               .cache_seqlens = c.ints({5, 8}),
               .cache_batch_idx = c.ints({3, 0}),
               .cu_seqlens_q = c.ints({0, 2, 6}),
               .k = c.input(DType::e4m3, {7, 2, 64}),
               .v = c.input(DType::e4m3, {7, 2, 64}),
               .k_descale = c.input(DType::fp32, {2, 2}),
               .v_descale = c.input(DType::fp32, {4, 12, 2}),
               .row_max = c.output(DType::fp32, {4, 7}),
               .row_sum = c.output(DType::fp32, {4, 7})};
  return c;
}

// The same without packing and new rows, with E4M3 queries.
inline KvCacheCall fp8_call() {
  KvCacheCall c;
  c.tensors = {.q = c.input(DType::e4m3, {2, 3, 4, 64}),
               .k_cache = c.output(DType::e4m3, {4, 12, 2, 64}),
               .v_cache = c.output(DType::e4m3, {4, 12, 2, 32}),
               .o = c.output(DType::bf16, {2, 3, 4, 32}),
               .cache_seqlens = c.ints({5, 8}),
               .q_descale = c.input(DType::fp32, {2, 2}),
               .k_descale = c.input(DType::fp32, {2, 2}),
               .lse = c.output(DType::fp32, {2, 4, 3})};
  return c;
}

// Three sequences of 9, 8 and 4 keys in pages of 4, and 2 new ones of each. The first two share 7
// keys, so that the second's table has no page for the first 4.
inline KvCacheCall prefix_call() {
  KvCacheCall c;
  c.tensors = {.q = c.input(DType::fp32, {3, 2, 2, 16}),
               .k_cache = c.output(DType::fp32, {8, 4, 1, 16}),
               .v_cache = c.output(DType::fp32, {8, 4, 1, 16}),
               .o = c.output(DType::fp32, {3, 2, 2, 16}),
               .cache_seqlens = c.ints({9, 8, 4}),
               .block_table = c.ints({7, 2, 0, -1, 5, 3, 4, 1, -1}, 3),
               .prefix_groups = c.ints({0, 2, 3}),
               .prefix_seqlens = c.ints({7, 0}),
               .k = c.input(DType::fp32, {3, 2, 1, 16}),
               .v = c.input(DType::fp32, {3, 2, 1, 16})};
  c.options.causal = true;
  return c;
}

using BadKvCacheCall = BadCallOf<KvCacheCall>;

// The spoilt call is refused, and so is the question for its workspace, where that can know.
inline void expect_refused(const BadKvCacheCall& bad, KvCacheCall call, bool is_value = false) {
  bad.spoil(call);
  expect_throws(bad, call, [&] { attention_with_kvcache(call.tensors, call.options); });
  if (!is_value) {
    expect_throws(bad, call,
                  [&] { attention_with_kvcache_workspace_bytes(call.tensors, call.options); });
  }
}

}  // namespace tilewright::test
