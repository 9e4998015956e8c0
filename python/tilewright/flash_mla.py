"""FlashMLA's functions for DeepSeek-V4's sparse decode, with its arguments in its order, on
tilewright.dsv4_attention().

    from tilewright.flash_mla import flash_mla_with_kvcache, get_mla_metadata

Tensors are PyTorch's. What FlashMLA has for other models is refused by name. docs/dsv4.md says what
differs.
"""

import sys
from typing import Any

from tilewright._dsv4_attention import Dsv4Scope, dsv4_attention
from tilewright._errors import UnsupportedError, invalid, renamed, wrong_type
from tilewright._frameworks import Torch, dtype_name, framework_of

_HEAD_DIM = 512
_BYTES = ("uint8", "int8", "float8_e4m3fn")


class FlashMLASchedMeta:
    """What FlashMLA keeps of its plans. It is empty here: a call plans for itself, on the GPU."""


def get_mla_metadata(*args: Any, **kwargs: Any) -> tuple[FlashMLASchedMeta, None]:
    """(FlashMLASchedMeta(), None); the arguments are not looked at."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: Any,
    k_cache: Any,
    block_table: Any,
    cache_seqlens: Any,
    head_dim_v: int,
    tile_scheduler_metadata: Any,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: Any = None,
    attn_sink: Any = None,
    extra_k_cache: Any = None,
    extra_indices_in_kvcache: Any = None,
    topk_length: Any = None,
    extra_topk_length: Any = None,
    out: Any = None,
) -> tuple[Any, Any]:
    """Attention of q (batch, q_len, heads, 512) over lists of keys in one cache or two.

    k_cache, extra_k_cache
             (pages, page_size, 1, bytes) of uint8, int8 or float8_e4m3fn, where bytes is 584, or
             that of another format of quantize_kv_rows(); or (pages, page_size, 1, 512) bf16 where
             is_fp8_kvcache is False. Any number of heads up to 128, any page size
    indices, extra_indices_in_kvcache
             (batch, q_len, entries) int32: page * page_size + row; -1 is no key
    topk_length, extra_topk_length
             (batch,) int32: so many of the entries count
    attn_sink
             (heads,) fp32: out is multiplied by exp(lse) / (exp(lse) + exp(attn_sink))
    out      where to write; a new tensor when None

    Returns (out, lse). lse (batch, heads, q_len) fp32 leaves the sink out, and is +inf in rows
    without keys. block_table, cache_seqlens and tile_scheduler_metadata are not looked at: they
    are for dense attention, and for plans.
    """
    if framework_of("q", q) is not Torch:
        raise wrong_type("q", f"is a {type(q).__qualname__}, must be a tensor of PyTorch")
    _check_what_is_served(head_dim_v, num_splits, causal, indices)
    extra = {
        "extra_k_cache": extra_k_cache,
        "extra_indices_in_kvcache": extra_indices_in_kvcache,
        "extra_topk_length": extra_topk_length,
    }
    has_extra = _is_given_whole(extra)
    scopes = {"window": _scope("k_cache", k_cache, is_fp8_kvcache, indices, topk_length)}
    if has_extra:
        of_extra = extra_k_cache, is_fp8_kvcache, extra_indices_in_kvcache, extra_topk_length
        scopes["compressed"] = _scope("extra_k_cache", *of_extra)
    with renamed(**_NAMES):
        out, lse = dsv4_attention(
            q,
            **scopes,
            sinks=attn_sink,
            softmax_scale=softmax_scale,
            return_lse=True,
            lse_counts_sink=False,
            out=out,
        )
    infinity = float("inf")
    return out, lse.nan_to_num_(nan=float("nan"), posinf=infinity, neginf=infinity)


# Arguments that have other names in the function beneath.
_NAMES = {
    "window.rows": "k_cache",
    "window.indices": "indices",
    "window.list_lengths": "topk_length",
    "compressed.rows": "extra_k_cache",
    "compressed.indices": "extra_indices_in_kvcache",
    "compressed.list_lengths": "extra_topk_length",
    "sinks": "attn_sink",
}


def _check_what_is_served(head_dim_v: int, num_splits: Any, causal: bool, indices: Any) -> None:
    if indices is None:
        message = "is None, must be given: dense attention is not served"
        raise UnsupportedError("unsupported", "indices", message)
    if head_dim_v != _HEAD_DIM:
        raise UnsupportedError("unsupported", "head_dim_v", f"is {head_dim_v}, must be {_HEAD_DIM}")
    if num_splits is not None:
        raise invalid("num_splits", "is given, must be None")
    if causal:
        raise invalid("causal", "is True, must be False where indices are given")


def _is_given_whole(extra: dict[str, Any]) -> bool:
    """Whether a second cache is given, with its indices at least."""
    given = [argument for argument, value in extra.items() if value is not None]
    for argument in ("extra_k_cache", "extra_indices_in_kvcache"):
        if given and argument not in given:
            raise invalid(argument, f"is None, must be given where {given[0]} is")
    return bool(given)


def _scope(argument: str, cache: Any, is_fp8: bool, indices: Any, lengths: Any) -> Dsv4Scope:
    if framework_of(argument, cache) is not Torch:
        raise wrong_type(argument, f"is a {type(cache).__qualname__}, must be a tensor of PyTorch")
    is_bytes = dtype_name(cache.dtype) in _BYTES
    if is_bytes != bool(is_fp8):
        message = f"is {is_fp8}, must be {is_bytes} where {argument} has {dtype_name(cache.dtype)}"
        raise invalid("is_fp8_kvcache", message)
    if cache.dim() != 4 or cache.shape[2] != 1:
        message = f"has shape {tuple(cache.shape)}, must be (pages, page_size, 1, bytes or dims)"
        raise invalid(argument, message)
    rows = cache.view(sys.modules["torch"].uint8) if is_bytes else cache
    return Dsv4Scope(rows.squeeze(2), indices=indices, list_lengths=lengths)
