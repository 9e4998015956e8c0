"""Forward attention on FP8."""

from typing import Any

from tilewright import _native
from tilewright._arguments import flag, kernel_name, score_options
from tilewright._attention import out_shape, row_shape, statistics_of
from tilewright._errors import invalid, wrong_type
from tilewright._frameworks import (
    dtype_name,
    framework_of,
    new_workspace,
    refuse_gradients,
    refuse_immutable_out,
    stream_handle,
    takes_torch_operator,
    to_native,
)

# The dtypes of inputs that are not E4M3.
_TAKES = dict.fromkeys(("q_descale", "k_descale", "v_descale", "sinks"), "fp32")
_TAKES |= dict.fromkeys(("cu_seqlens_q", "cu_seqlens_k", "seqused_k"), "int32")

_DTYPES = ("bfloat16", "float16")


def attention_fp8(
    q: Any,
    k: Any,
    v: Any = None,
    *,
    v_transposed: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    descale_rows: int = 0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: Any = None,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    normalize: bool = True,
    return_lse: bool = False,
    batch_invariant: bool = False,
    check_values: bool = False,
    dtype: Any = "bfloat16",
    kernel: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """attention() of E4M3 queries, keys and values, each a byte times a descale.

    q        (batch, q_len, heads, head_dim), float8_e4m3fn, or uint8 that holds its bytes; an array
             of NumPy, PyTorch, CuPy or JAX (uint8), on the CPU or a CUDA device
    k, v     (batch, kv_len, kv_heads, head_dim), the same; v may have a head dim of its own
    v_transposed
             in place of v: (batch, kv_heads, value_dim, columns), where columns is a multiple of
             16 and at least kv_len; packed (kv_heads, value_dim, columns), where it is at least
             16 * (total // 16 + batch), and key j of sequence b has column
             16 * (cu_seqlens_k[b] // 16 + b) + j, as rotate_quantize() writes it
    q_descale, k_descale, v_descale
             fp32, 1 when None: (1,), of the whole tensor; or, where descale_rows is 0,
             (batch, kv_heads), for q too; or, where it is 64 or 128, a descale for each so many
             rows of a head: (batch, heads, ceil(len / descale_rows)), with heads of its tensor, and
             for packed rows (heads, total // descale_rows + batch). docs/fp8.md says which block a
             row has. Finite and at least 0
    dtype    of the result, "bfloat16" or "float16"; not looked at where out is given, or without
             normalize
    check_values
             on CUDA, read lengths and descales back to check them, which synchronises; on the CPU
             they are always checked

    The other arguments, and what is returned, are those of attention(). On a GPU the weights
    exp(s - max) are rounded to E4M3 before they meet v, and without return_lse their sum may be
    that of the rounded ones; on the CPU they are not. Where PyTorch traces or watches the call it
    is torch.ops.tilewright.attention_fp8 (see tilewright.torch); tracing needs out and stream to be
    None. A call that would record gradients is refused. Raises a tilewright.Error that names the
    argument at fault; nothing is written then.
    """
    inputs = {
        "q": q,
        "k": k,
        "v": v,
        "v_transposed": v_transposed,
        "q_descale": q_descale,
        "k_descale": k_descale,
        "v_descale": v_descale,
        "sinks": sinks,
        "cu_seqlens_q": cu_seqlens_q,
        "cu_seqlens_k": cu_seqlens_k,
        "seqused_k": seqused_k,
    }
    options = score_options(softmax_scale, causal, window_size, softcap) | {
        "batch_invariant": flag("batch_invariant", batch_invariant),
        "descale_rows": rows_of_a_descale(descale_rows, (0, 64, 128)),
        "check_values": flag("check_values", check_values),
        "kernel_name": kernel_name(kernel),
    }
    returns = {
        "normalize": flag("normalize", normalize),
        "return_lse": flag("return_lse", return_lse),
    }
    if dtype_name(dtype) not in _DTYPES:
        raise invalid("dtype", f"is {dtype!r}, must be 'bfloat16' or 'float16'")
    if takes_torch_operator(inputs, out, stream):
        import tilewright.torch as operators

        refuse_gradients(inputs)
        results = operators.attention_fp8(**inputs, **options, **returns, dtype=dtype_name(dtype))
    else:
        results = run(inputs, options, statistics_of(**returns), dtype_name(dtype), out, stream)
    return results[0] if len(results) == 1 else tuple(results)


def run(
    inputs: dict[str, Any],
    options: dict[str, Any],
    statistics: tuple[str, ...],
    dtype: str,
    out: Any = None,
    stream: Any = None,
) -> list[Any]:
    """[out, *statistics], from arrays, None for those that are not given, and right options."""
    q = inputs["q"]
    framework = framework_of("q", q)(q, stream_handle(stream))
    if out is not None:
        refuse_immutable_out(framework)
    tensors = {}
    for name, array in inputs.items():
        if array is not None:
            takes = _TAKES.get(name)
            form = {"takes": takes} if takes else {"byte_format": "e4m3"}
            tensors[name] = to_native(framework, name, array, **form)
    if out is None:
        shape = result_shape(q, inputs["v"], inputs["v_transposed"])
        out = framework.empty(shape, "float32" if "row_max" in statistics else dtype)
    results = [out] + [framework.empty(row_shape(q), "float32") for _ in statistics]
    for name, array in zip(("out", *statistics), results, strict=True):
        tensors[name] = to_native(framework, name, array, is_output=True)
    call = _native.AttentionFp8Call(tensors, **options)
    workspace = new_workspace(framework, call.workspace_bytes())  # held until all is delivered
    call.run(workspace, framework.stream)
    return [framework.deliver(result) for result in results]


def result_shape(q: Any, v: Any, v_transposed: Any) -> tuple[int, ...]:
    """Of out. Of a wrong rank too: the library refuses that by name."""
    if v_transposed is None:
        return out_shape(q, q if v is None else v)
    return (*q.shape[:-1], *v_transposed.shape[-2:-1])


def rows_of_a_descale(value: Any, allowed: tuple[int, ...]) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type("descale_rows", f"is {value!r}, must be an integer")
    if value not in allowed:
        *others, last = allowed
        choices = ", ".join(map(str, others)) + f" or {last}"
        raise invalid("descale_rows", f"is {value}, must be {choices}")
    return int(value)
