// A call of attention_fp8(): what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include "ops/attention/call.hpp"
#include "ops/attention_fp8/checks.hpp"
#include "ops/attention_fp8/params.hpp"
#include "ops/attention_strides.hpp"
#include "tilewright/attention_fp8_kernels.hpp"

namespace tilewright {
namespace {

Fp8Descales descales_of(const std::optional<ConstTensorView>& t, int descale_rows,
                        int heads_per_descale) {
  Fp8Descales descales{.data = data_of<const float>(t)};
  if (!t || t->rank == 1) {
    return descales;
  }
  if (descale_rows > 0) {
    descales.stride = statistic_strides(t);
  } else {
    descales.stride = {.batch = stride_of(*t, 0), .head = stride_of(*t, 1)};
    descales.heads_per_descale = heads_per_descale;
  }
  return descales;
}

}  // namespace

DeviceArgument device_of(const AttentionFp8Tensors& t) { return {"q", t.q.device}; }

AttentionFp8Problem problem_of(const AttentionFp8Tensors& t, const AttentionFp8Options& options) {
  AttentionFp8Problem problem{problem_of(attention_part(t), attention_part(options))};
  problem.dtype = t.o.dtype;
  problem.v_transposed = t.v_transposed.has_value();
  problem.descale_rows = options.descale_rows;
  return problem;
}

AttentionFp8Params params_of(const AttentionFp8Tensors& t, const AttentionFp8Options& options,
                             const AttentionFp8Problem& problem) {
  const AttentionTensors part = attention_part(t);
  AttentionFp8Params params{params_of(part, attention_part(options), problem)};
  params.v_dim_stride = stride_of(part.v, part.v.rank - 1);
  if (t.v_transposed) {
    params.is_v_transposed = true;
    params.v_stride.seq = 1;
    params.v_columns = static_cast<int>(t.v_transposed->shape[t.v_transposed->rank - 1]);
  }
  params.descale_rows = options.descale_rows;
  params.q_descale = descales_of(t.q_descale, options.descale_rows, params.heads / params.kv_heads);
  params.k_descale = descales_of(t.k_descale, options.descale_rows, 1);
  params.v_descale = descales_of(t.v_descale, options.descale_rows, 1);
  return params;
}

std::size_t attention_fp8_workspace_bytes(const AttentionFp8Tensors& tensors,
                                          const AttentionFp8Options& options) {
  return prepare<AttentionFp8>(tensors, options).workspace_bytes();
}

void attention_fp8(const AttentionFp8Tensors& tensors, const AttentionFp8Options& options,
                   Workspace workspace, Stream stream) {
  Call<AttentionFp8> call = prepare<AttentionFp8>(tensors, options);
  if (options.check_values || tensors.q.device.kind == DeviceKind::cpu) {
    check_values(tensors, options, stream);
  }
  call.launch(workspace, stream);
}

}  // namespace tilewright
