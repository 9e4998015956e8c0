"""PyTorch's operators of attention over KV caches; tilewright.torch registers them.

Attention has two: attention_with_kvcache reads the caches, attention_with_kvcache_append also
writes new rows to them. PyTorch copies what an operator may write wherever a graph must be free of
side effects, and whole caches are not to be copied for a call that reads. An operator that writes
must return as many tensors in every call; those that are not asked for are empty.
"""

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from tilewright import _append_kv, _attention_with_kvcache, _merge_states
from tilewright._attention import out_shape, row_shape, statistics_of
from tilewright._errors import UnsupportedError


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    block_table: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    prefix_groups: Tensor | None = None,
    prefix_seqlens: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    q_descale: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    tree_mask: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    batch_invariant: bool = False,
    check_values: bool = False,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    kernel_name: str = "auto",
    normalize: bool = True,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """tilewright.attention_with_kvcache() with its arguments flattened.

    Returns (out, lse, empty) or, without normalize, (out, row_max, row_sum).
    """
    inputs = dict(locals())
    statistics = statistics_of(inputs.pop("normalize"), inputs.pop("return_lse"))
    options = {name: inputs.pop(name) for name in _OPTIONS}
    return _three(_attention_with_kvcache.run(inputs, options, statistics))


_OPTIONS = (
    "softmax_scale",
    "causal",
    "window_size_left",
    "window_size_right",
    "softcap",
    "batch_invariant",
    "check_values",
    "max_seqlen_q",
    "max_seqlen_k",
    "kernel_name",
)


def _three(results: list[Tensor]) -> tuple[Tensor, ...]:
    """The results and, up to three, empty tensors."""
    nothing = (results[0].new_empty(0, dtype=torch.float32) for _ in range(3 - len(results)))
    return (*results, *nothing)


def _attend_to_the_cached(*tensors, **options) -> tuple[Tensor, ...]:
    """_attend() without new rows: an operator must not write what it does not say that it does."""
    for name, tensor in zip(("k", "v"), tensors[4:6], strict=False):  # PyTorch leaves out defaults
        if tensor is not None:
            message = "is given, must be None: attention_with_kvcache_append is the operator for it"
            raise UnsupportedError("unsupported", name, message)
    return _attend(*tensors, **options)


attention_with_kvcache = torch.library.custom_op(
    "tilewright::attention_with_kvcache",
    _attend_to_the_cached,
    mutates_args=(),
    schema=torch.library.infer_schema(_attend, mutates_args=()),
)
attention_with_kvcache_append = torch.library.custom_op(
    "tilewright::attention_with_kvcache_append", _attend, mutates_args=("k_cache", "v_cache")
)


@attention_with_kvcache.register_fake
@attention_with_kvcache_append.register_fake
def _empty_results(q, k_cache, v_cache, *rest, normalize=True, return_lse=False, **options):
    """What the operators return, without the values."""
    statistics = statistics_of(normalize, return_lse)
    dtype = _attention_with_kvcache.out_dtype(q, statistics)
    out = q.new_empty(out_shape(q, v_cache), dtype=getattr(torch, dtype) if dtype else q.dtype)
    return _three([out, *(q.new_empty(row_shape(q), dtype=torch.float32) for _ in statistics)])


@register_flop_formula(torch.ops.tilewright.attention_with_kvcache, get_raw=True)
@register_flop_formula(torch.ops.tilewright.attention_with_kvcache_append, get_raw=True)
def _flops(q, k_cache, v_cache, cache_seqlens, k=None, *rest, **options) -> int:
    """Of both GEMMs, masked scores included, as PyTorch counts its own attention."""
    cu_seqlens_q = rest[6] if len(rest) > 6 else None
    if cu_seqlens_q is None:
        new = [q.shape[1]] * q.shape[0]
        appended = [0 if k is None else k.shape[1]] * q.shape[0]
    else:
        new = cu_seqlens_q.diff().tolist()
        appended = [0] * len(new) if k is None else new
    keys = [old + more for old, more in zip(cache_seqlens.tolist(), appended, strict=True)]
    scores = sum(q_len * kv_len for q_len, kv_len in zip(new, keys, strict=True))
    return 2 * scores * q.shape[-2] * (q.shape[-1] + v_cache.shape[-1])


@torch.library.custom_op(
    "tilewright::append_kv",
    mutates_args=("k_cache", "v_cache", "computed_k_descale", "computed_v_descale"),
)
def append_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    computed_k_descale: Tensor | None,  # no default, which PyTorch has not for what is written
    computed_v_descale: Tensor | None,
    slot_mapping: Tensor | None = None,
    cache_seqlens: Tensor | None = None,
    cu_seqlens_new: Tensor | None = None,
    block_table: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    positions: Tensor | None = None,
    q: Tensor | None = None,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
    *,
    interleaved: bool = False,
    check_values: bool = False,
    kernel_name: str = "auto",
) -> Tensor:
    """tilewright.append_kv(), where descales that are written have names of their own.

    Returns q_out, which is empty where no q is given.
    """
    inputs = dict(locals())
    options = {name: inputs.pop(name) for name in ("interleaved", "check_values", "kernel_name")}
    written = ("k_cache", "v_cache", "computed_k_descale", "computed_v_descale")
    outputs = {name: inputs.pop(name) for name in written}
    q_out = _append_kv.run(inputs, outputs, options)
    return k.new_empty(0) if q_out is None else q_out


@append_kv.register_fake
def _empty_q_out(k, *rest, **options):
    q = rest[13] if len(rest) > 13 else None
    return k.new_empty(0 if q is None else q.shape)


@torch.library.custom_op("tilewright::merge_states", mutates_args=())
def merge_states(
    o: Tensor,
    lse: Tensor | None = None,
    row_max: Tensor | None = None,
    row_sum: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    normalize: bool = True,
    return_lse: bool = False,
    dtype: str | None = None,
    kernel_name: str = "auto",
) -> list[Tensor]:
    """tilewright.merge_states(); returns as attention's operator does."""
    inputs = {"o": o, "lse": lse, "row_max": row_max, "row_sum": row_sum, "sinks": sinks}
    return _merge_states.run(inputs, statistics_of(normalize, return_lse), dtype, kernel_name)


@merge_states.register_fake
def _empty_merged(o, *rest, normalize=True, return_lse=False, dtype=None, **options):
    _, tokens, heads, value_dim = o.shape
    out = o.new_empty((tokens, heads, value_dim), dtype=dtype and getattr(torch, dtype))
    statistics = statistics_of(normalize, return_lse)
    return [out] + [o.new_empty((heads, tokens), dtype=torch.float32) for _ in statistics]
