"""FlashAttention-3's functions, with its arguments in its order, on tilewright.attention().

    from tilewright.flash_attn import flash_attn_func, flash_attn_varlen_func

Arguments that the library has no use for must hold their defaults, and softmax_scale may not be 0:
FlashAttention-2 has dropout_p in its place. docs/migrating-from-flash-attention.md says what
differs.
"""

from typing import Any

from tilewright._attention import attention
from tilewright._errors import UnsupportedError, invalid


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

    Returns out, or (out, lse) with return_attn_probs: lse is (batch, heads, q_len). num_splits,
    pack_gqa and deterministic are not looked at: the library splits by itself, and its results are
    always the same from run to run.
    """
    _refuse_dropout(softmax_scale)
    _refuse(
        qv=qv,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        attention_chunk=attention_chunk or None,
        sm_margin=sm_margin or None,
    )
    return attention(
        q,
        k,
        v,
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

    Returns out, or (out, lse) with return_attn_probs: lse is (heads, total_q). num_splits, pack_gqa
    and deterministic are not looked at, nor are the lengths max_seqlen_q and max_seqlen_k.
    """
    _refuse_dropout(softmax_scale)
    _refuse(
        seqused_q=seqused_q,
        qv=qv,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        attention_chunk=attention_chunk or None,
        sm_margin=sm_margin or None,
    )
    return attention(
        q,
        k,
        v,
        softmax_scale=softmax_scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        seqused_k=seqused_k,
        return_lse=return_attn_probs,
    )


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
