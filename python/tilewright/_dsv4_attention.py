"""DeepSeek-V4's attention: multi-query over two scopes of keys, which are their own values."""

import operator
from dataclasses import dataclass, fields
from typing import Any

from tilewright import _native
from tilewright._arguments import flag, kernel_name, number
from tilewright._attention import row_shape, statistics_of
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

_GROUPS = 4  # of a row of out that have a scale each, in E4M3


@dataclass(frozen=True)
class Dsv4Scope:
    """The keys that queries see in one cache, as a range of positions or as a list.

    rows     (pages, page_size, 512) bf16, or (pages, page_size, 584, 528 or 288) uint8, in a format
             of quantize_kv_rows()

    A range, where (batch, q_len) is (total_q,) in a call with cu_seqlens_q:
    range_end, range_begin
             (batch, q_len) int32: a token sees the positions from range_begin, or 0, up to
             range_end, which is not one of them
    block_table
             (batch, max_pages) int32: the pages of each request, in order; request b has page b
             when None
    ring     a request's pages are a ring of so many rows, at most page_size or a multiple of it:
             position p lies where p % ring would. 0: no ring
    most_keys
             a bound: no range has more positions. With it short ranges in a large cache are planned
             as such, and take no workspace for long ones. 0: no such bound

    A list:
    indices  (batch, q_len, entries) int32: slots, page * page_size + row; -1 is no key. A slot that
             occurs twice counts twice
    list_lengths
             (batch,) int32: so many entries of each of a request's tokens count; all when None
    """

    rows: Any
    range_end: Any = None
    range_begin: Any = None
    block_table: Any = None
    ring: int = 0
    most_keys: int = 0
    indices: Any = None
    list_lengths: Any = None


_SCOPE_NUMBERS = ("ring", "most_keys")
_SCOPE_TENSORS = tuple(
    field.name for field in fields(Dsv4Scope) if field.name not in _SCOPE_NUMBERS
)
SCOPES = ("window", "compressed")

# The dtypes of inputs that are neither vectors nor rows.
_TAKES = {
    "sinks": "fp32",
    "rotary_cos": "fp32",
    "rotary_sin": "fp32",
    "positions": "int64",
    "cu_seqlens_q": "int32",
}


def dsv4_attention(
    q: Any,
    *,
    window: Dsv4Scope | None = None,
    compressed: Dsv4Scope | None = None,
    fresh_rows: Any = None,
    sinks: Any = None,
    cu_seqlens_q: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    positions: Any = None,
    softmax_scale: float | None = None,
    normalize: bool = True,
    quantize: bool = False,
    return_lse: bool = False,
    lse_counts_sink: bool = True,
    check_values: bool = False,
    kernel: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """sum exp(s - m) k / l over the keys k that a token sees, where s = softmax_scale * q . k.

    q        (batch, q_len, heads, 512), up to 8 new tokens of each request and 128 heads; bf16, on
             the CPU fp32 too. Arrays are as of attention()
    window, compressed
             Dsv4Scope: where the keys lie, and which of them a token sees. A key that is in both
             counts twice, as the model has it
    fresh_rows
             (batch, q_len, 512), q's dtype: keys of the new tokens that no cache holds. Token i
             sees those of the tokens 0 to i, beside its scopes
    sinks    (heads,) fp32: a logit for each head, of one more key whose value is 0
    cu_seqlens_q
             (batch + 1,) int32, from 0, ascending: q is (total_q, heads, 512), and request b has
             the rows cu_seqlens_q[b] to cu_seqlens_q[b + 1]; what else is (batch, q_len, ...) is
             (total_q, ...) then
    rotary_cos, rotary_sin, positions
             (max_positions, 32) fp32 and (batch, q_len) int64: the last 64 dims of out are rotated
             back, by the conjugate of rope() at the token's position

    softmax_scale
             1 / sqrt(512) when None
    normalize
             when False, what comes back is (out, row_max, row_sum), out un-normalised in fp32, for
             merge_states(). out and lse alone could not be merged then
    quantize out in E4M3, as float8_e4m3fn in PyTorch, as bytes elsewhere; it is followed by
             out_scale (batch, q_len, heads, 4) fp32, one for 128 values, powers of two
    return_lse
             also return lse (batch, heads, q_len) fp32; lse_counts_sink says whether it counts the
             sink, which out does in any case. It is -inf in rows without keys and sinks
    check_values
             on CUDA, read ranges, tables, indices, lengths and positions back to check them, which
             synchronises; on the CPU they are always checked

    kernel, out and stream are as of attention(). Returns out, or a tuple of out, out_scale and lse,
    as far as they are asked for. A row's bits depend on its own request alone.

    On CUDA the work is queued and the call returns at once; a CUDA graph of it may be replayed with
    other ranges, tables, lists and lengths in the same arrays. Where PyTorch traces or watches the
    call it is torch.ops.tilewright.dsv4_attention (see tilewright.torch); tracing needs out and
    stream to be None. A call that would record gradients is refused. Raises a tilewright.Error that
    names the argument at fault; nothing is written then.
    """
    inputs = {
        "q": q,
        **_scope_tensors("window", window),
        **_scope_tensors("compressed", compressed),
    }
    inputs |= {"fresh_rows": fresh_rows, "sinks": sinks, "cu_seqlens_q": cu_seqlens_q}
    inputs |= {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "positions": positions}
    options = {
        **_scope_numbers("window", window),
        **_scope_numbers("compressed", compressed),
        "softmax_scale": None if softmax_scale is None else number("softmax_scale", softmax_scale),
        "lse_counts_sink": flag("lse_counts_sink", lse_counts_sink),
        "check_values": flag("check_values", check_values),
        "kernel_name": kernel_name(kernel),
    }
    returns = {
        "normalize": flag("normalize", normalize),
        "quantize": flag("quantize", quantize),
        "return_lse": flag("return_lse", return_lse),
    }
    names = results_of(**returns)
    if takes_torch_operator(inputs, out, stream):
        import tilewright.torch as operators

        refuse_gradients(inputs)
        flat = {name.replace(".", "_"): array for name, array in inputs.items()}
        results = operators.dsv4_attention(**flat, **options, **returns)
    else:
        results = run(inputs, options, names, out, stream)
    return results[0] if len(results) == 1 else tuple(results)


def run(
    inputs: dict[str, Any],
    options: dict[str, Any],
    names: tuple[str, ...],
    out: Any = None,
    stream: Any = None,
) -> list[Any]:
    """[out, *names], from arrays, of which those but q may be None, and right options."""
    q = inputs["q"]
    framework = framework_of("q", q)(q, stream_handle(stream))
    tensors = {
        name: _to_native(framework, name, array)
        for name, array in inputs.items()
        if array is not None or name == "q"
    }
    if out is None:
        out = framework.empty(tuple(q.shape), out_dtype(framework.module, names))
    else:
        refuse_immutable_out(framework)
    is_quantized = "out_scale" in names
    tensors["out"] = to_native(
        framework, "out", out, True, byte_format="e4m3" if is_quantized else None
    )
    results = [out]
    for name in names:
        results.append(framework.empty(result_shape(q, name), "float32"))
        tensors[name] = to_native(framework, name, results[-1], is_output=True)

    call = _native.Dsv4AttentionCall(tensors, **options)
    workspace = new_workspace(framework, call.workspace_bytes())  # held until all is delivered
    call.run(workspace, framework.stream)
    return [framework.deliver(result) for result in results]


def results_of(normalize: bool, quantize: bool, return_lse: bool) -> tuple[str, ...]:
    """The names of what comes back beside out."""
    if quantize and not normalize:
        raise invalid("quantize", "is True, must be False without normalize: out is fp32 then")
    return (("out_scale",) if quantize else ()) + statistics_of(normalize, return_lse)


def result_shape(q: Any, name: str) -> tuple[int, ...]:
    return (*q.shape[:-1], _GROUPS) if name == "out_scale" else row_shape(q)


def out_dtype(module: str, names: tuple[str, ...]) -> str | None:
    """The name of out's dtype; None: that of q."""
    if "out_scale" in names:
        return "float8_e4m3fn" if module == "torch" else "uint8"
    return "float32" if "row_max" in names else None


def _scope_tensors(scope: str, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, Dsv4Scope):
        raise wrong_type(scope, f"is {value!r}, must be a Dsv4Scope or None")
    return {f"{scope}.{name}": getattr(value, name, None) for name in _SCOPE_TENSORS}


def _scope_numbers(scope: str, value: Dsv4Scope | None) -> dict[str, int]:
    return {f"{scope}_{name}": _scope_number(scope, name, value) for name in _SCOPE_NUMBERS}


def _scope_number(scope: str, name: str, value: Dsv4Scope | None) -> int:
    number = getattr(value, name, 0)
    try:
        return operator.index(number)
    except TypeError:
        raise wrong_type(f"{scope}.{name}", f"is {number!r}, must be an integer") from None


def _to_native(framework: Any, name: str, array: Any) -> _native.Tensor:
    scope, _, part = name.partition(".")
    if scope not in SCOPES:
        return to_native(framework, name, array, takes=_TAKES.get(name, "bf16 or fp32"))
    if part != "rows":
        return to_native(framework, name, array, takes="int32")
    byte_format = "u8" if dtype_name(getattr(array, "dtype", None)) == "uint8" else None
    return to_native(framework, name, array, byte_format=byte_format, takes="bf16 or uint8")
