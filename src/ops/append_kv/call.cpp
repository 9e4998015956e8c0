// A call of append_kv(): what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include "ops/append_kv/checks.hpp"
#include "ops/attention_strides.hpp"
#include "ops/rotary_tables.hpp"
#include "tilewright/append_kv.hpp"

namespace tilewright {
namespace {

AppendRows rows_of(const AppendKvTensors& t) {
  AppendRows rows{.count = static_cast<int>(rows_in(t.k)),
                  .per_batch = static_cast<int>(seqlen_of(t.k)),
                  .pages = static_cast<int>(t.k_cache.shape[0]),
                  .page_size = static_cast<int>(t.k_cache.shape[1]),
                  .slots = data_of<const std::int64_t>(t.slot_mapping),
                  .seqlens = data_of<const int>(t.cache_seqlens),
                  .cu_seqlens_new = data_of<const int>(t.cu_seqlens_new),
                  .block_table = data_of<const int>(t.block_table),
                  .cache_batch_idx = data_of<const int>(t.cache_batch_idx),
                  .positions = data_of<const std::int64_t>(t.positions)};
  if (t.cache_seqlens) {
    rows.sequences = static_cast<int>(t.cache_seqlens->shape[0]);
  }
  if (t.block_table) {
    rows.block_table_stride = stride_of(*t.block_table, 0);
    rows.max_pages = static_cast<int>(t.block_table->shape[1]);
  }
  if (t.positions && t.positions->rank == 2) {
    rows.positions_batch_stride = stride_of(*t.positions, 0);
  }
  if (t.rotary_cos) {
    rows.max_positions = static_cast<int>(t.rotary_cos->shape[0]);
  }
  return rows;
}

Rotary rotary_of(const AppendKvTensors& t, const AppendKvOptions& options) {
  if (!t.rotary_cos) {
    return {};
  }
  Rotary rotary = rotary_of_tables(*t.rotary_cos, *t.rotary_sin);
  rotary.is_interleaved = options.interleaved;
  return rotary;
}

AppendDescales descales_of(const std::optional<ConstTensorView>& given,
                           const std::optional<TensorView>& computed) {
  AppendDescales descales{.given = data_of<const float>(given),
                          .computed = data_of<float>(computed)};
  if (given && given->rank == 2) {
    descales.sequence_stride = stride_of(*given, 0);
    descales.head_stride = stride_of(*given, 1);
  }
  if (computed) {
    descales.computed_stride = outer_strides(*computed, 1, 2);
  }
  return descales;
}

}  // namespace

DeviceArgument device_of(const AppendKvTensors& t) { return {"k", t.k.device}; }

AppendKvProblem problem_of(const AppendKvTensors& t, const AppendKvOptions&) {
  return {.dtype = t.k.dtype,
          .rows = rows_in(t.k),
          .heads = t.q ? heads_of(*t.q) : 0,
          .kv_heads = heads_of(t.k),
          .head_dim = head_dim_of(t.k),
          .value_dim = head_dim_of(t.v)};
}

AppendKvParams params_of(const AppendKvTensors& t, const AppendKvOptions& options,
                         const AppendKvProblem& problem) {
  AppendKvParams params{.k = t.k.data,
                        .v = t.v.data,
                        .q = data_of<const void>(t.q),
                        .k_cache = t.k_cache.data,
                        .v_cache = t.v_cache.data,
                        .q_out = data_of<void>(t.q_out),
                        .dtype = t.k.dtype,
                        .is_quantized = t.k_cache.dtype == DType::e4m3,
                        .heads = static_cast<int>(problem.heads),
                        .kv_heads = static_cast<int>(problem.kv_heads),
                        .head_dim = static_cast<int>(problem.head_dim),
                        .value_dim = static_cast<int>(problem.value_dim),
                        .k_stride = row_strides(t.k),
                        .v_stride = row_strides(t.v),
                        .k_cache_stride = row_strides(t.k_cache),
                        .v_cache_stride = row_strides(t.v_cache),
                        .rows = rows_of(t),
                        .rotary = rotary_of(t, options),
                        .k_descale = descales_of(t.k_descale, t.computed_k_descale),
                        .v_descale = descales_of(t.v_descale, t.computed_v_descale)};
  if (t.q) {
    params.q_stride = row_strides(*t.q);
    params.q_out_stride = row_strides(*t.q_out);
  }
  return params;
}

void append_kv(const AppendKvTensors& tensors, const AppendKvOptions& options, Stream stream) {
  Call<AppendKv> call = prepare<AppendKv>(tensors, options);
  if (options.check_values || tensors.k.device.kind == DeviceKind::cpu) {
    check_values(tensors, rows_of(tensors), stream);
  }
  call.launch({}, stream);
}

}  // namespace tilewright
