"""Attention of new tokens over KV caches."""

from typing import Any

from tilewright import _native
from tilewright._arguments import flag, kernel_name, score_options
from tilewright._attention import max_seqlen, out_shape, row_shape, statistics_of
from tilewright._errors import invalid
from tilewright._frameworks import (
    ANY_FLOAT,
    framework_of,
    holds_e4m3,
    new_workspace,
    refuse_gradients,
    refuse_immutable_out,
    stream_handle,
    takes_torch_operator,
    to_native,
)

# The dtypes of inputs that are no rows of q, k or v.
_TAKES = {
    "cache_seqlens": "int32",
    "block_table": "int32",
    "cache_batch_idx": "int32",
    "leftpad_k": "int32",
    "prefix_groups": "int32",
    "prefix_seqlens": "int32",
    "cu_seqlens_q": "int32",
    "q_descale": "fp32",
    "k_descale": "fp32",
    "v_descale": "fp32",
    "tree_mask": "int64",
    "sinks": "fp32",
}

_REQUIRED = ("q", "k_cache", "v_cache", "cache_seqlens")


def attention_with_kvcache(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    cache_seqlens: Any,
    *,
    block_table: Any = None,
    cache_batch_idx: Any = None,
    leftpad_k: Any = None,
    prefix_groups: Any = None,
    prefix_seqlens: Any = None,
    cu_seqlens_q: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    k: Any = None,
    v: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    tree_mask: Any = None,
    sinks: Any = None,
    normalize: bool = True,
    return_lse: bool = False,
    batch_invariant: bool = False,
    check_values: bool = False,
    kernel: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """softmax(softmax_scale * Q K^T + mask) V, where K and V lie in caches, whole or in pages.

    q        (batch, q_len, heads, head_dim): new tokens of each sequence, from one to thousands;
             fp32, fp16 or bf16, or E4M3 as the caches, with results in bf16. Arrays are as of
             attention()
    k_cache, v_cache
             (rows, capacity, kv_heads, ...), where sequence b has row b; or, with block_table,
             (pages, page_size, kv_heads, ...). q's dtype, or E4M3: PyTorch's or ml_dtypes'
             float8_e4m3fn, or its bytes as uint8. The head dimension is contiguous, other strides
             are free
    cache_seqlens
             (batch,) int32: how many keys of each sequence the cache holds

    block_table
             (batch, max_pages) int32: the pages of each sequence, in order. Entries beyond its
             length may be anything
    cache_batch_idx
             (batch,) int32: the row of the caches that is sequence b's, where it is not b
    leftpad_k
             (batch,) int32: no query sees keys before this one
    prefix_groups, prefix_seqlens
             (groups + 1,) int32, from 0 to batch, ascending, and (groups,) int32: sequences
             prefix_groups[g] to prefix_groups[g + 1] have their first prefix_seqlens[g] keys in
             common, which are read where the first of them has them. Every new token must see all
             of them, and new rows are none. Not together with leftpad_k or a window
    cu_seqlens_q
             (batch + 1,) int32, from 0, ascending: q is (total_q, heads, head_dim), and sequence b
             is rows cu_seqlens_q[b] to cu_seqlens_q[b + 1]
    max_seqlen_q, max_seqlen_k
             the most new tokens of a sequence, with cu_seqlens_q, and the most keys, new rows
             included, where the host knows them: the call is planned for them. Results are right
             where a sequence has more, but may take longer. Not looked at where batch_invariant
    k, v     new rows of the caches' dtype, (batch, new, kv_heads, ...), or, with cu_seqlens_q,
             (total_q, kv_heads, ...). They are written to the caches behind what these hold, and
             count as keys. cache_seqlens stays as it is
    k_descale, v_descale
             fp32: what an E4M3 cache's values must be multiplied by: (1,), (batch, kv_heads), or of
             the caches' shape without the head dimension; 1 when None
    q_descale
             the same for E4M3 queries: (1,), or (batch, kv_heads), for all heads of a KV head. On
             CUDA they are taken where no prefix is shared

    causal, window_size
             as of attention(): new token i stands at key i + keys - q_len
    tree_mask
             (batch, q_len) or (total_q,) int64: bit j of token i says whether it sees new token
             j's key; all keys before the new tokens' it sees. Sequences have at most 64 new
             tokens, and there is no other mask
    check_values
             on CUDA, read lengths, tables and indices back to check them, which synchronises; on
             the CPU they are always checked

    softmax_scale, softcap, sinks, normalize, return_lse, batch_invariant, kernel, out and stream
    are as of attention(), and so is what comes back: out, (out, lse) or (out, row_max, row_sum).

    On CUDA the work is queued and the call returns at once; a CUDA graph of it may be replayed with
    other lengths, tables and indices in the same arrays. Where PyTorch traces or watches the call
    it is torch.ops.tilewright.attention_with_kvcache, or attention_with_kvcache_append where k
    and v are given (see tilewright.torch); tracing needs out and stream to be None. A call that
    would record gradients is refused. Raises a tilewright.Error that names the argument at fault;
    nothing is written then.
    """
    inputs = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "cache_seqlens": cache_seqlens,
        "k": k,
        "v": v,
        "block_table": block_table,
        "cache_batch_idx": cache_batch_idx,
        "leftpad_k": leftpad_k,
        "prefix_groups": prefix_groups,
        "prefix_seqlens": prefix_seqlens,
        "cu_seqlens_q": cu_seqlens_q,
        "q_descale": q_descale,
        "k_descale": k_descale,
        "v_descale": v_descale,
        "tree_mask": tree_mask,
        "sinks": sinks,
    }
    options = score_options(softmax_scale, causal, window_size, softcap) | {
        "batch_invariant": flag("batch_invariant", batch_invariant),
        "check_values": flag("check_values", check_values),
        "max_seqlen_q": max_seqlen("max_seqlen_q", max_seqlen_q),
        "max_seqlen_k": max_seqlen("max_seqlen_k", max_seqlen_k),
        "kernel_name": kernel_name(kernel),
    }
    returns = {
        "normalize": flag("normalize", normalize),
        "return_lse": flag("return_lse", return_lse),
    }
    statistics = statistics_of(**returns)
    if takes_torch_operator(inputs, out, stream):
        import tilewright.torch as operators

        refuse_gradients(inputs)
        operator = operators.attention_with_kvcache
        if k is not None or v is not None:
            operator = operators.attention_with_kvcache_append
        results = operator(**inputs, **options, **returns)[: 1 + len(statistics)]
    else:
        results = run(inputs, options, statistics, out, stream)
    return results[0] if len(results) == 1 else tuple(results)


def run(
    inputs: dict[str, Any],
    options: dict[str, Any],
    statistics: tuple[str, ...],
    out: Any = None,
    stream: Any = None,
) -> list[Any]:
    """[out, *statistics], from arrays, of which those from k on may be None, and right options."""
    framework = framework_of("q", inputs["q"])(inputs["q"], stream_handle(stream))
    if out is not None:
        refuse_immutable_out(framework)
    new_rows = [name for name in ("k", "v") if inputs[name] is not None]
    if framework.module == "jax" and new_rows:
        message = "is given, must be None: it would be written to caches, and JAX's are immutable"
        raise invalid(new_rows[0], message)
    tensors = {
        name: to_native(
            framework,
            name,
            array,
            is_output=bool(new_rows) and name in ("k_cache", "v_cache"),
            byte_format=_byte_format(name, array),
            takes=_TAKES.get(name, ANY_FLOAT),
        )
        for name, array in inputs.items()
        if array is not None or name in _REQUIRED
    }
    if out is None:
        dtype = out_dtype(inputs["q"], statistics)
        out = framework.empty(out_shape(inputs["q"], inputs["v_cache"]), dtype)
    results = [out] + [framework.empty(row_shape(inputs["q"]), "float32") for _ in statistics]
    for name, array in zip(("out", *statistics), results, strict=True):
        tensors[name] = to_native(framework, name, array, is_output=True)

    call = _native.AttentionWithKvCacheCall(tensors, **options)
    workspace = new_workspace(framework, call.workspace_bytes())  # held until all is delivered
    call.run(workspace, framework.stream)
    return [framework.deliver(result) for result in results]


def out_dtype(q: Any, statistics: tuple[str, ...]) -> str | None:
    """The name of the results' dtype where it is not q's."""
    if "row_max" in statistics:
        return "float32"
    return "bfloat16" if holds_e4m3(q) else None


def _byte_format(argument: str, array: Any) -> str | None:
    """Of queries, caches and new rows in E4M3."""
    is_rows = argument in ("q", "k_cache", "v_cache", "k", "v")
    return "e4m3" if is_rows and holds_e4m3(array) else None
