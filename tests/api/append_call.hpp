// A right call of append_kv() with every kind of tensor, which a test then spoils.
#pragma once

#include <initializer_list>
#include <vector>

#include "bad_call.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/append_kv.hpp"

namespace tilewright::test {

// By lengths: two sequences with 3 and 2 new tokens, in a paged e4m3 cache of 6 pages of 4.
struct AppendCall {
  using HostTensor = reference::HostTensor;

  AppendCall() {
    for (HostTensor* const output : outputs()) {
      poison(*output);
    }
    set(seqlens, {4, 7});
    set(starts, {0, 3, 5});
    set(table, {5, 0, 3, 2, 1, 4});
    set(slots, {0, 9, -1, 23, 4});
    set(batch_idx, {1, 0});
    set(positions, {0, 1, 2, 3, 4});
    for (HostTensor* const descale : {&k_descale, &v_descale}) {
      reference::fill_constant(descale->view(), 0.5);
    }
  }
  AppendCall(const AppendCall&) = delete;

  static void set(HostTensor& tensor, const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      reference::store(tensor.view(), static_cast<std::int64_t>(i), values[i]);
    }
  }

  std::vector<HostTensor*> outputs() {
    return {&k_cache, &v_cache, &q_out, &computed_k_descale, &computed_v_descale};
  }

  bool outputs_untouched() const {
    return is_poisoned(k_cache) && is_poisoned(v_cache) && is_poisoned(q_out) &&
           is_poisoned(computed_k_descale) && is_poisoned(computed_v_descale);
  }

  // Makes it a call by slots.
  void use_slots() {
    t.slot_mapping = slots.view();
    t.positions = positions.view();
    t.cache_seqlens.reset();
    t.cu_seqlens_new.reset();
    t.block_table.reset();
    t.k_descale.reset();
    t.computed_k_descale = computed_k_descale.view();
  }

  // Makes it a call on a contiguous cache, of 6 entries of 4.
  void use_entries() {
    t.block_table.reset();
    t.cache_batch_idx = batch_idx.view();
    set(seqlens, {1, 2});
  }

  HostTensor k{DType::bf16, {5, 2, 16}};
  HostTensor v{DType::bf16, {5, 2, 8}};
  HostTensor q{DType::bf16, {5, 4, 16}};
  HostTensor k_cache{DType::e4m3, {6, 4, 2, 16}};
  HostTensor v_cache{DType::e4m3, {6, 4, 2, 8}};
  HostTensor q_out{DType::bf16, {5, 4, 16}};
  HostTensor seqlens{DType::int32, {2}};
  HostTensor starts{DType::int32, {3}};
  HostTensor table{DType::int32, {2, 3}};
  HostTensor batch_idx{DType::int32, {2}};
  HostTensor slots{DType::int64, {5}};
  HostTensor positions{DType::int64, {5}};
  HostTensor cos{DType::fp32, {12, 4}};
  HostTensor sin{DType::fp32, {12, 4}};
  HostTensor k_descale{DType::fp32, {2, 2}};
  HostTensor v_descale{DType::fp32, {1}};
  HostTensor computed_k_descale{DType::fp32, {6, 4, 2}};
  HostTensor computed_v_descale{DType::fp32, {6, 4, 2}};

  AppendKvTensors t{.k = k.view(),
                    .v = v.view(),
                    .k_cache = k_cache.view(),
                    .v_cache = v_cache.view(),
                    .cache_seqlens = seqlens.view(),
                    .cu_seqlens_new = starts.view(),
                    .block_table = table.view(),
                    .rotary_cos = cos.view(),
                    .rotary_sin = sin.view(),
                    .q = q.view(),
                    .q_out = q_out.view(),
                    .k_descale = k_descale.view(),
                    .v_descale = v_descale.view()};
  AppendKvOptions options;
};

}  // namespace tilewright::test
