"""PyTorch's operators of attention on FP8; tilewright.torch registers them."""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tilewright import _attention_fp8, _rotate_quantize
from tilewright._attention import row_shape, statistics_of

_ATTENTION_OPTIONS = (
    "softmax_scale",
    "causal",
    "window_size_left",
    "window_size_right",
    "softcap",
    "batch_invariant",
    "descale_rows",
    "check_values",
    "kernel_name",
)


@torch.library.custom_op("tilewright::attention_fp8", mutates_args=())
def attention_fp8(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    v_transposed: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    sinks: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    batch_invariant: bool = False,
    descale_rows: int = 0,
    check_values: bool = False,
    kernel_name: str = "auto",
    normalize: bool = True,
    return_lse: bool = False,
    dtype: str = "bfloat16",
) -> list[Tensor]:
    """tilewright.attention_fp8() with its arguments flattened.

    Returns [out], [out, lse] where return_lse, or [out, row_max, row_sum] without normalize.
    """
    inputs = dict(locals())
    statistics = statistics_of(inputs.pop("normalize"), inputs.pop("return_lse"))
    result_dtype = inputs.pop("dtype")
    options = {name: inputs.pop(name) for name in _ATTENTION_OPTIONS}
    return _attention_fp8.run(inputs, options, statistics, result_dtype)


@attention_fp8.register_fake
def _empty_results(
    q,
    k,
    v=None,
    v_transposed=None,
    *rest,
    normalize=True,
    return_lse=False,
    dtype="bfloat16",
    **options,
):
    """What the operator returns, without the values."""
    out_dtype = getattr(torch, dtype) if normalize else torch.float32
    out = q.new_empty(_attention_fp8.result_shape(q, v, v_transposed), dtype=out_dtype)
    statistics = statistics_of(normalize, return_lse)
    return [out] + [q.new_empty(row_shape(q), dtype=torch.float32) for _ in statistics]


@register_flop_formula(torch.ops.tilewright.attention_fp8, get_raw=True)
def _flops(q, k, v=None, v_transposed=None, *rest, **options) -> int:
    """Of both GEMMs, masked scores included, as PyTorch counts its own attention."""
    cu_seqlens_q, cu_seqlens_k = rest[4:6] if len(rest) > 5 else (None, None)
    lengths = (lengths_of(q, cu_seqlens_q), lengths_of(k, cu_seqlens_k))
    scores = sum(q_len * kv_len for q_len, kv_len in zip(*lengths, strict=True))
    value_dim = v.shape[-1] if v_transposed is None else v_transposed.shape[-2]
    return 2 * scores * q.shape[-2] * (q.shape[-1] + value_dim)


def lengths_of(tensor: Tensor, cu_seqlens: Tensor | None) -> list[int]:
    if cu_seqlens is None:
        return [tensor.shape[1]] * tensor.shape[0]
    return cu_seqlens.diff().tolist()


@torch.library.custom_op("tilewright::rotate_quantize", mutates_args=())
def rotate_quantize(
    x: Tensor,
    fixed_descale: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    descale_rows: int = 128,
    seed: int | None = None,
    interleaved: bool = False,
    check_values: bool = False,
    kernel_name: str = "auto",
    transposed: bool = False,
) -> list[Tensor]:
    """tilewright.rotate_quantize(). Returns [out, descale], or [out] with fixed_descale."""
    inputs = dict(locals())
    is_transposed = inputs.pop("transposed")
    options = {
        name: inputs.pop(name)
        for name in ("descale_rows", "seed", "interleaved", "check_values", "kernel_name")
    }
    return _rotate_quantize.run(inputs, options, is_transposed)


@rotate_quantize.register_fake
def _empty_codes(
    x, fixed_descale=None, cu_seqlens=None, *rest, descale_rows=128, transposed=False, **options
):
    """What the operator returns, without the values."""
    shape = _rotate_quantize.out_shape(x, cu_seqlens, transposed)
    results = [x.new_empty(shape, dtype=torch.float8_e4m3fn)]
    if fixed_descale is None:
        shape = _rotate_quantize.descale_shape(x, cu_seqlens, descale_rows)
        results.append(x.new_empty(shape, dtype=torch.float32))
    return results
