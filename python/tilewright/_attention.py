"""Forward attention."""

import operator
from typing import Any

from tilewright import _native
from tilewright._arguments import flag, kernel_name, score_options
from tilewright._errors import invalid, wrong_type
from tilewright._frameworks import (
    ANY_FLOAT,
    framework_of,
    new_workspace,
    refuse_immutable_out,
    stream_handle,
    takes_torch_operator,
    to_native,
)

# The dtypes of inputs other than q, k and v.
_TAKES = {"sinks": "fp32", "cu_seqlens_q": "int32", "cu_seqlens_k": "int32", "seqused_k": "int32"}


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    seqused_k: Any = None,
    normalize: bool = True,
    return_lse: bool = False,
    batch_invariant: bool = False,
    check_lengths: bool = False,
    kernel: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """softmax(softmax_scale * Q K^T + mask) V, exact, in one pass over the keys.

    q        (batch, q_len, heads, head_dim); fp32, fp16 or bf16. An array of NumPy, PyTorch, CuPy
             or JAX, on the CPU or a CUDA device; all arrays of a call are of one framework and
             device, and q, k and v of one dtype. The head dimension is contiguous, other strides
             are free.
    k, v     (batch, kv_len, kv_heads, head_dim), where kv_heads divides heads: query head h reads
             key/value head h // (heads // kv_heads). v may have a head dim of its own, value_dim

    softmax_scale
             finite and at least 0; 1 / sqrt(head_dim) when None
    causal   query i sees keys up to i + kv_len - q_len (aligned to the bottom right); a query that
             sees none gives 0, and -inf in lse
    window_size
             (left, right): query i, at key i + kv_len - q_len, sees as many keys to its left and
             right; -1: all of them. Where causal too, both hold
    softcap  scaled scores s become softcap * tanh(s / softcap); 0: they stay as they are
    sinks    (heads,) fp32: a logit for each query head that enters its softmax like the score of
             one more key, whose value is 0; lse counts it

    cu_seqlens_q, cu_seqlens_k
             (batch + 1,) int32, from 0, ascending: q is (total_q, heads, head_dim), or k and v are
             (total_k, kv_heads, ...), and sequence b is rows cu_seqlens[b] to cu_seqlens[b + 1].
             Lengths may be 0. Rows of a new out beyond the last sequence are not initialised
    seqused_k
             (batch,) int32: only the first seqused_k[b] keys of sequence b count
    max_seqlen_q, max_seqlen_k
             taken for the sake of callers from FlashAttention; not needed, and not looked at
    check_lengths
             on CUDA, read the lengths back to check their values, which synchronises; on the CPU
             they are always checked

    normalize
             False: return (out, row_max, row_sum), all fp32, to be merged with those over other
             keys; out is sum_j exp(s_j - row_max) v_j and row_sum is sum_j exp(s_j - row_max)
    return_lse
             also return lse, fp32, natural log
    batch_invariant
             a row's result depends on its own sequence only, not on the batch around it
    kernel   a name of kernels(), or of a variant, as "flash/3"; the fastest kernel that
             can run the problem when None
    out      where to write; a new array when None. JAX arrays are immutable: None only
    stream   the CUDA stream to work on, a framework's object or a cudaStream_t as an integer; the
             framework's current one when None. CPU tensors have no use for it

    Returns out, of q's shape and dtype but for value_dim, or (out, lse), or (out, row_max,
    row_sum). lse, row_max and row_sum are (batch, heads, q_len), or (heads, total_q) where q is
    packed. On CUDA the work is queued and the call returns at once. Where PyTorch traces the call,
    watches it or records gradients it is torch.ops.tilewright.attention (see tilewright.torch);
    tracing and gradients need out and stream to be None. Raises a tilewright.Error that names the
    argument at fault; nothing is written then.
    """
    optional = {
        "sinks": sinks,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_k": seqused_k,
    }
    options = score_options(softmax_scale, causal, window_size, softcap) | {
        "batch_invariant": flag("batch_invariant", batch_invariant),
        "check_lengths": flag("check_lengths", check_lengths),
        "kernel_name": kernel_name(kernel),
    }
    returns = {
        "normalize": flag("normalize", normalize),
        "return_lse": flag("return_lse", return_lse),
    }
    max_seqlen("max_seqlen_q", max_seqlen_q)
    max_seqlen("max_seqlen_k", max_seqlen_k)

    if takes_torch_operator({"q": q, "k": k, "v": v} | optional, out, stream):
        import tilewright.torch as torch_operator

        results = torch_operator.attention(q, k, v, **optional, **options, **returns)
    else:
        results = run(q, k, v, optional, options, statistics_of(**returns), out, stream)
    return results[0] if len(results) == 1 else tuple(results)


def run(
    q: Any,
    k: Any,
    v: Any,
    optional: dict[str, Any],
    options: dict[str, Any],
    statistics: tuple[str, ...],
    out: Any = None,
    stream: Any = None,
) -> list[Any]:
    """[out, *statistics], from optional inputs, some of them None, and options of right types."""
    framework = framework_of("q", q)(q, stream_handle(stream))
    if out is not None:
        refuse_immutable_out(framework)
    inputs = {"q": q, "k": k, "v": v}
    inputs |= {name: array for name, array in optional.items() if array is not None}
    tensors = {
        name: to_native(framework, name, array, takes=_TAKES.get(name, ANY_FLOAT))
        for name, array in inputs.items()
    }

    if out is None:
        out = framework.empty(out_shape(q, v), "float32" if "row_max" in statistics else None)
    results = [out] + [framework.empty(row_shape(q), "float32") for _ in statistics]
    for name, array in zip(("out", *statistics), results, strict=True):
        tensors[name] = to_native(framework, name, array, is_output=True)

    call = _native.AttentionCall(tensors, **options)
    workspace = new_workspace(framework, call.workspace_bytes())  # held until all is delivered
    call.run(workspace, framework.stream)
    return [framework.deliver(result) for result in results]


def out_shape(q: Any, v: Any) -> tuple[int, ...]:
    return (*q.shape[:-1], *v.shape[-1:])


def row_shape(q: Any) -> tuple[int, ...]:
    """Of the rows' statistics. Of a wrong rank too: the library refuses that by name."""
    *batch, q_len, heads = q.shape[:-1] if len(q.shape) > 2 else (1, 1)
    return (*batch, heads, q_len)


def statistics_of(normalize: bool, return_lse: bool) -> tuple[str, ...]:
    """The names of what comes back beside out."""
    if normalize:
        return ("lse",) if return_lse else ()
    if return_lse:
        message = "is True, must be False without normalize: lse is row_max + log(row_sum)"
        raise invalid("return_lse", message)
    return ("row_max", "row_sum")


def max_seqlen(argument: str, value: Any) -> int:
    """The value, or 0 for None: it is not known."""
    try:
        number = operator.index(0 if value is None else value)
    except TypeError:
        raise wrong_type(argument, f"is {value!r}, must be an integer or None") from None
    if not 0 <= number < 1 << 63:
        raise invalid(argument, f"is {number}, must be at least 0 and less than 2^63")
    return number
