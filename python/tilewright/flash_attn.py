"""FlashAttention-3's functions, with its arguments in its order, on tilewright.attention(),
tilewright.attention_fp8(), tilewright.attention_with_kvcache() and tilewright.append_kv().

    from tilewright.flash_attn import (
        flash_attn_func,
        flash_attn_varlen_func,
        flash_attn_with_kvcache,
    )

Arguments that the library has no use for must hold their defaults, and softmax_scale of the first
two may not be 0: FlashAttention-2 has dropout_p in its place.
docs/migrating-from-flash-attention.md says what differs.
"""

import operator
from typing import Any

from tilewright._append_kv import append_kv
from tilewright._attention import attention, max_seqlen
from tilewright._attention_fp8 import attention_fp8
from tilewright._attention_with_kvcache import attention_with_kvcache
from tilewright._errors import UnsupportedError, invalid, renamed
from tilewright._frameworks import BYTE_FORMATS, dtype_name, filled_like, framework_of


def flash_attn_func(
    q: Any,
    k: Any,
    v: Any,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q (batch, q_len, heads, head_dim) over k and v (batch, kv_len, kv_heads, ...).

    q, k and v may be float8_e4m3fn, with descales (batch, kv_heads) fp32; out is bfloat16 then.
    Returns out, or (out, lse) with return_attn_probs: lse is (batch, heads, q_len). num_splits,
    pack_gqa, sm_margin and deterministic are not looked at: the library splits by itself, and its
    results are always the same from run to run.
    """
    _refuse_dropout(softmax_scale)
    _refuse(qv=qv, attention_chunk=attention_chunk or None)
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    return _attend(
        q,
        k,
        v,
        descales,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        return_lse=return_attn_probs,
    )


def flash_attn_varlen_func(
    q: Any,
    k: Any,
    v: Any,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    num_splits: int = 1,
    pack_gqa: bool | None = None,
    deterministic: bool = False,
    sm_margin: int = 0,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of packed sequences: q (total_q, heads, head_dim), k, v (total_k, kv_heads, ...).

    q, k and v may be float8_e4m3fn, with descales (batch, kv_heads) fp32; out is bfloat16 then.
    Returns out, or (out, lse) with return_attn_probs: lse is (heads, total_q). num_splits,
    pack_gqa, sm_margin and deterministic are not looked at, nor are the lengths max_seqlen_q and
    max_seqlen_k.
    """
    _refuse_dropout(softmax_scale)
    _refuse(seqused_q=seqused_q, qv=qv, attention_chunk=attention_chunk or None)
    for name, length in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        max_seqlen(name, length)
    descales = {"q_descale": q_descale, "k_descale": k_descale, "v_descale": v_descale}
    return _attend(
        q,
        k,
        v,
        descales,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_k=seqused_k,
        return_lse=return_attn_probs,
    )


def flash_attn_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    k: Any = None,
    v: Any = None,
    qv: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: Any = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: bool | None = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention of q (batch, q_len, heads, head_dim) over caches, to which k and v are appended.

    cache_seqlens is (batch,) int32, or an integer for all sequences; None: caches are full. Where q
    is packed k and v are packed likewise, and cu_seqlens_k_new must be cu_seqlens_q itself. Returns
    out, or (out, lse) with return_softmax_lse. q may be float8_e4m3fn as the caches are, with
    q_descale (batch, kv_heads) fp32; out is bfloat16 then. scheduler_metadata, num_splits,
    pack_gqa and sm_margin are not looked at.

    With rotary_cos and rotary_sin there are two calls: append_kv() rotates q and k, which have as
    many tokens, and appends k and v; then comes attention. Where attention refuses its arguments
    the new rows are behind the cached ones already.
    """
    _refuse(
        qv=qv,
        rotary_seqlens=rotary_seqlens,
        attention_chunk=attention_chunk or None,
    )
    if cu_seqlens_k_new is not None and cu_seqlens_k_new is not cu_seqlens_q:
        message = "is another array than cu_seqlens_q, must be the same: q's tokens are appended"
        raise UnsupportedError("unsupported", "cu_seqlens_k_new", message)
    is_rotated = rotary_cos is not None or rotary_sin is not None
    if is_rotated:
        _check_rotation(q, k, cu_seqlens_q, causal, window_size)
    caches = {"k_cache": k_cache, "v_cache": v_cache}
    new_rows = {"k": k, "v": v}
    others = {"block_table": page_table, "cache_batch_idx": cache_batch_idx}
    others |= {"k_descale": k_descale, "v_descale": v_descale}
    with renamed(**_NAMES):
        lengths = _lengths(cache_seqlens, q, k_cache, k, page_table, cu_seqlens_q)
        if is_rotated:
            placing = {"cache_seqlens": lengths, "cu_seqlens_new": cu_seqlens_q}
            rotation = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin}
            rotation |= {"interleaved": rotary_interleaved, "q": q}
            q = append_kv(**new_rows, **caches, **placing, **rotation, **others)
            lengths = lengths + (k.shape[1] if cu_seqlens_q is None else _diff(cu_seqlens_q))
            new_rows = {}
        return attention_with_kvcache(
            q,
            **caches,
            cache_seqlens=lengths,
            **new_rows,
            q_descale=q_descale,
            leftpad_k=cache_leftpad,
            cu_seqlens_q=cu_seqlens_q,
            max_seqlen_q=max_seqlen_q,
            softmax_scale=softmax_scale,
            causal=causal,
            window_size=window_size,
            softcap=softcap,
            return_lse=return_softmax_lse,
            **others,
        )


# Arguments that have other names in the functions beneath.
_NAMES = {
    "block_table": "page_table",
    "cu_seqlens_new": "cu_seqlens_q",
    "interleaved": "rotary_interleaved",
    "leftpad_k": "cache_leftpad",
}


def _attend(q: Any, k: Any, v: Any, descales: dict[str, Any], **options: Any) -> Any:
    """Attention, on FP8 where q is E4M3. Its results are bfloat16 then, as FlashAttention's are."""
    framework_of("q", q)
    if dtype_name(q.dtype) == BYTE_FORMATS["e4m3"]:
        return attention_fp8(q, k, v, **descales, **options)
    _refuse(**descales)
    return attention(q, k, v, **options)


def _check_rotation(
    q: Any, k: Any, cu_seqlens_q: Any, causal: bool, window_size: tuple[int, int]
) -> None:
    """What FlashAttention-3 rotates otherwise, or not at all."""
    if k is None:
        raise invalid("rotary_cos", "is given, must be None where k is: only new keys are rotated")
    is_one_token = cu_seqlens_q is None and len(q.shape) > 1 and q.shape[1] == 1
    if not is_one_token and not causal and tuple(window_size) == (-1, -1):
        message = (
            "is given for several tokens without causal or window_size, must be None: "
            "FlashAttention puts them all at one position"
        )
        raise UnsupportedError("unsupported", "rotary_cos", message)


def _diff(ends: Any) -> Any:
    return ends[1:] - ends[:-1]


def _lengths(
    cache_seqlens: Any, q: Any, k_cache: Any, k: Any, page_table: Any, cu_seqlens_q: Any
) -> Any:
    """cache_seqlens as an array."""
    if cache_seqlens is None and k is not None:
        raise invalid("cache_seqlens", "is None, must be given where k is: k is appended there")
    if cache_seqlens is not None and not _is_integer(cache_seqlens):
        return cache_seqlens
    framework_of("q", q)
    arrays = {"k_cache": (k_cache, 2), "page_table": (page_table, 2), "k": (k, 0)}
    arrays |= {"q": (q, 1), "cu_seqlens_q": (cu_seqlens_q, 1)}
    for argument, (array, least_rank) in arrays.items():
        if array is None and argument != "k_cache":
            continue
        framework_of(argument, array)
        if len(array.shape) < least_rank:
            return filled_like("q", q, (1,), 0, "int32")  # the call refuses the rank by name
    batch = q.shape[0] if cu_seqlens_q is None else max(cu_seqlens_q.shape[0] - 1, 0)
    capacity = k_cache.shape[1] * (1 if page_table is None else page_table.shape[1])
    if cache_seqlens is None:
        return filled_like("q", q, (batch,), capacity, "int32")
    is_appended = k is not None and cu_seqlens_q is None and len(k.shape) > 1
    most = capacity - (k.shape[1] if is_appended else 0)
    if not 0 <= operator.index(cache_seqlens) <= most:
        message = f"is {cache_seqlens}, must be between 0 and {most}, the room in the caches"
        raise invalid("cache_seqlens", message)
    return filled_like("q", q, (batch,), operator.index(cache_seqlens), "int32")


def _is_integer(value: Any) -> bool:
    """A number, and no array of a dimension or more."""
    return len(getattr(value, "shape", ())) == 0 and hasattr(value, "__index__")


def _refuse_dropout(softmax_scale: Any) -> None:
    """A call as FlashAttention-2 takes it, without dropout."""
    if isinstance(softmax_scale, int | float) and softmax_scale == 0:
        message = (
            f"is {softmax_scale}, must be a positive number or None: FlashAttention-2 has dropout_p"
            " in this place; tilewright.attention() takes a scale of 0"
        )
        raise invalid("softmax_scale", message)


def _refuse(**arguments: Any) -> None:
    """What the library has not; each must be None here."""
    for argument, value in arguments.items():
        if value is not None:
            raise UnsupportedError("unsupported", argument, "is not supported, must be left out")
