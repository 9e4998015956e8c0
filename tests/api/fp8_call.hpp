// Right calls of the FP8 operations, which cases then spoil.
#pragma once

#include "bad_call.hpp"
#include "reference/host_tensor.hpp"
#include "tilewright/attention_fp8.hpp"
#include "tilewright/rotate_quantize.hpp"

namespace tilewright::test {

using HostTensor = reference::HostTensor;

inline HostTensor constant(HostTensor tensor, double value) {
  reference::fill_constant(tensor.view(), value);
  return tensor;
}

// Two sequences of 70 queries on 4 heads and 100 keys on 2, with descales of blocks of 64 rows.
struct Fp8Call {
  Fp8Call() {
    for (HostTensor* const output : {&o, &lse, &row_max, &row_sum, &fp32_o}) {
      poison(*output);
    }
  }
  Fp8Call(const Fp8Call&) = delete;

  bool outputs_untouched() const {
    return is_poisoned(o) && is_poisoned(lse) && is_poisoned(row_max) && is_poisoned(row_sum) &&
           is_poisoned(fp32_o);
  }

  // Makes it a call on packed sequences: all batch entries' rows are one after the other.
  void pack() {
    const auto packed = [](auto view, std::int64_t rows) {
      view.rank = 3;
      view.shape = {rows, view.shape[2], view.shape[3]};
      view.stride = {view.stride[1], view.stride[2], 1};
      return view;
    };
    t.q = packed(t.q, 140);
    t.k = packed(t.k, 200);
    t.v = packed(*t.v, 200);
    t.o = packed(t.o, 140);
    t.lse.reset();
    t.cu_seqlens_q = starts_q.view();
    t.cu_seqlens_k = starts_k.view();
    t.q_descale = packed_q_descale.view();
    t.k_descale = packed_k_descale.view();
    t.v_descale = packed_k_descale.view();
  }

  void use_head_descales() {
    options.descale_rows = 0;
    t.q_descale = t.k_descale = t.v_descale = head_descale.view();
  }

  void use_transposed_values() {
    t.v.reset();
    t.v_transposed = v_transposed.view();
  }

  void use_packed_transposed_values() {
    t.v.reset();
    t.v_transposed = packed_v_transposed.view();
  }

  HostTensor q{DType::e4m3, {2, 70, 4, 64}};
  HostTensor k{DType::e4m3, {2, 100, 2, 64}};
  HostTensor v{DType::e4m3, {2, 100, 2, 64}};
  HostTensor v_transposed{DType::e4m3, {2, 2, 64, 112}};
  HostTensor packed_v_transposed{DType::e4m3, {2, 64, 224}};
  HostTensor o{DType::bf16, {2, 70, 4, 64}};
  HostTensor fp32_o{DType::fp32, {2, 70, 4, 64}};
  HostTensor lse{DType::fp32, {2, 4, 70}};
  HostTensor row_max{DType::fp32, {2, 4, 70}};
  HostTensor row_sum{DType::fp32, {2, 4, 70}};
  HostTensor q_descale = constant({DType::fp32, {2, 4, 2}}, 0.5);
  HostTensor k_descale = constant({DType::fp32, {2, 2, 2}}, 0.5);
  HostTensor v_descale = constant({DType::fp32, {2, 2, 2}}, 0.5);
  HostTensor head_descale = constant({DType::fp32, {2, 2}}, 0.5);
  HostTensor one_descale = constant({DType::fp32, {1}}, 0.5);
  HostTensor packed_q_descale = constant({DType::fp32, {4, 4}}, 0.5);
  HostTensor packed_k_descale = constant({DType::fp32, {2, 5}}, 0.5);
  HostTensor sinks{DType::fp32, {4}};
  HostTensor starts_q = lengths({0, 70, 140});
  HostTensor starts_k = lengths({0, 100, 200});

  AttentionFp8Tensors t{.q = q.view(),
                        .k = k.view(),
                        .o = o.view(),
                        .v = v.view(),
                        .q_descale = q_descale.view(),
                        .k_descale = k_descale.view(),
                        .v_descale = v_descale.view(),
                        .lse = lse.view(),
                        .sinks = sinks.view()};
  AttentionFp8Options options{.descale_rows = 64};

  static HostTensor lengths(const std::vector<double>& values) {
    HostTensor tensor(DType::int32, {static_cast<std::int64_t>(values.size())});
    for (std::size_t i = 0; i < values.size(); ++i) {
      reference::store(tensor.view(), static_cast<std::int64_t>(i), values[i]);
    }
    return tensor;
  }
};

// Two sequences of 70 rows on 2 heads, rotated in every way, with descales of blocks of 64 rows.
struct RotateCall {
  RotateCall() {
    for (HostTensor* const output :
         {&out, &out_transposed, &packed_out_transposed, &descale, &packed_descale}) {
      poison(*output);
    }
  }
  RotateCall(const RotateCall&) = delete;

  bool outputs_untouched() const {
    return is_poisoned(out) && is_poisoned(out_transposed) && is_poisoned(packed_out_transposed) &&
           is_poisoned(descale) && is_poisoned(packed_descale);
  }

  void pack() {
    for (auto* const rows : {&*t.out}) {
      rows->rank = 3;
      rows->shape = {140, 2, 64};
      rows->stride = {128, 64, 1};
    }
    t.x.rank = 3;
    t.x.shape = {140, 2, 64};
    t.x.stride = {128, 64, 1};
    t.cu_seqlens = starts.view();
    t.descale = packed_descale.view();
    t.positions.reset();
  }

  void transpose() {
    t.out.reset();
    t.out_transposed = out_transposed.view();
  }

  void transpose_packed() {
    t.out.reset();
    t.out_transposed = packed_out_transposed.view();
  }

  void fix_descale() {
    t.descale.reset();
    t.fixed_descale = fixed_descale.view();
  }

  HostTensor x{DType::bf16, {2, 70, 2, 64}};
  HostTensor out{DType::e4m3, {2, 70, 2, 64}};
  HostTensor out_transposed{DType::e4m3, {2, 2, 64, 80}};
  HostTensor packed_out_transposed{DType::e4m3, {2, 64, 160}};
  HostTensor descale{DType::fp32, {2, 2, 2}};
  HostTensor packed_descale{DType::fp32, {2, 4}};
  HostTensor fixed_descale = constant({DType::fp32, {2, 2}}, 0.5);
  HostTensor starts = Fp8Call::lengths({0, 70, 140});
  HostTensor cos{DType::fp32, {80, 16}};
  HostTensor sin{DType::fp32, {80, 16}};
  HostTensor positions{DType::int64, {2, 70}};

  RotateQuantizeTensors t{.x = x.view(),
                          .out = out.view(),
                          .descale = descale.view(),
                          .rotary_cos = cos.view(),
                          .rotary_sin = sin.view(),
                          .positions = positions.view()};
  RotateQuantizeOptions options{.descale_rows = 64, .seed = 1};
};

}  // namespace tilewright::test
