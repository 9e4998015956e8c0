"""PyTorch's operators torch.ops.tilewright.*, and NVFP4Linear, a layer with an NVFP4 weight.

Importing this module registers the operators: attention; attention_with_kvcache, which reads
caches, and attention_with_kvcache_append, which is given k and v and writes them; append_kv;
merge_states; attention_fp8 and rotate_quantize; quantize_kv_rows, dequantize_kv_rows and rope;
dsv4_attention.

tilewright.attention() and its like go through the operators by themselves where PyTorch traces a
call or watches it, so that torch.compile, torch.export, tracers, profilers and FLOP counters take
it whole; attention() also where it records gradients. Import this module to call an operator by
name, or before an exported program that contains one is loaded.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tilewright._attention import out_shape, row_shape, run, statistics_of
from tilewright._errors import UnsupportedError
from tilewright._torch_dsv4 import dsv4_attention
from tilewright._torch_fp8 import attention_fp8, lengths_of, rotate_quantize
from tilewright._torch_kv_rows import dequantize_kv_rows, quantize_kv_rows, rope
from tilewright._torch_kvcache import (
    append_kv,
    attention_with_kvcache,
    attention_with_kvcache_append,
    merge_states,
)
from tilewright._torch_linear import NVFP4Linear

__all__ = [
    "NVFP4Linear",
    "append_kv",
    "attention",
    "attention_fp8",
    "attention_with_kvcache",
    "attention_with_kvcache_append",
    "dequantize_kv_rows",
    "dsv4_attention",
    "merge_states",
    "quantize_kv_rows",
    "rope",
    "rotate_quantize",
]


@torch.library.custom_op("tilewright::attention", mutates_args=())
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
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
    check_lengths: bool = False,
    kernel_name: str = "auto",
    normalize: bool = True,
    return_lse: bool = False,
) -> list[Tensor]:
    """tilewright.attention() with its arguments flattened.

    Returns [out], [out, lse] where return_lse, or [out, row_max, row_sum] without normalize.
    """
    optional = {
        "sinks": sinks,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_k": seqused_k,
    }
    options = {
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window_size_left": window_size_left,
        "window_size_right": window_size_right,
        "softcap": softcap,
        "batch_invariant": batch_invariant,
        "check_lengths": check_lengths,
        "kernel_name": kernel_name,
    }
    return run(q, k, v, optional, options, statistics_of(normalize, return_lse))


@attention.register_fake
def _empty_results(q, k, v, *optional, normalize=True, return_lse=False, **options):
    """What the operator returns, without the values."""
    out = q.new_empty(out_shape(q, v), dtype=q.dtype if normalize else torch.float32)
    statistics = statistics_of(normalize, return_lse)
    return [out] + [q.new_empty(row_shape(q), dtype=torch.float32) for _ in statistics]


def _refuse_backward(ctx, *gradients):
    raise UnsupportedError("unsupported", "q", "needs a gradient: attention has no backward")


attention.register_autograd(_refuse_backward)


@register_flop_formula(torch.ops.tilewright.attention, get_raw=True)
def _flops(q, k, v, sinks=None, cu_seqlens_q=None, cu_seqlens_k=None, *rest, **options) -> int:
    """Of both GEMMs, masked scores included, as PyTorch counts its own attention."""
    lengths = (lengths_of(q, cu_seqlens_q), lengths_of(k, cu_seqlens_k))
    scores = sum(q_len * kv_len for q_len, kv_len in zip(*lengths, strict=True))
    return 2 * scores * q.shape[-2] * (q.shape[-1] + v.shape[-1])
