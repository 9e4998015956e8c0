"""Writing new keys and values into a KV cache."""

from typing import Any

from tilewright import _native
from tilewright._arguments import flag, kernel_name
from tilewright._errors import invalid, renamed
from tilewright._frameworks import (
    ANY_FLOAT,
    framework_of,
    holds_e4m3,
    refuse_gradients,
    stream_handle,
    takes_torch_operator,
    to_native,
)

# The dtypes of inputs other than k, v, q and rotation tables.
_TAKES = {
    "slot_mapping": "int64",
    "cache_seqlens": "int32",
    "cu_seqlens_new": "int32",
    "block_table": "int32",
    "cache_batch_idx": "int32",
    "positions": "int64",
    "k_descale": "fp32",
    "v_descale": "fp32",
}

_RANK_OF_COMPUTED = 3


def append_kv(
    k: Any,
    v: Any,
    k_cache: Any,
    v_cache: Any,
    *,
    slot_mapping: Any = None,
    cache_seqlens: Any = None,
    cu_seqlens_new: Any = None,
    block_table: Any = None,
    cache_batch_idx: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    positions: Any = None,
    interleaved: bool = False,
    q: Any = None,
    q_out: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    check_values: bool = False,
    kernel: str | None = None,
    stream: Any = None,
) -> Any:
    """Writes keys and values of new tokens into a cache, rotated and quantised on the way.

    k        (tokens, kv_heads, head_dim) or (batch, new_len, kv_heads, head_dim); fp16 or bf16, on
             the CPU fp32 too. An array of NumPy, PyTorch or CuPy, on the CPU or a CUDA device
    v        the same with a head dim of its own, value_dim
    k_cache, v_cache
             (pages, page_size, kv_heads, head_dim), or contiguous (entries, capacity, ...), with
             value_dim for v; the dtype of k, or uint8 or float8_e4m3fn. They are written in place.
             The last dimension is contiguous, other strides are free, so that any order of tokens
             and heads in memory, and keys and values in turn, are views

    slot_mapping
             (tokens,) int64: page * page_size + place in the page, or entry * capacity + place; a
             row of -1 is not stored
    cache_seqlens
             instead of slots, (batch,) int32: the keys that are there, behind which the new ones
             go. They do not change
    cu_seqlens_new
             (batch + 1,) int32, from 0, ascending: k is (tokens, ...), and sequence b has the rows
             cu_seqlens_new[b] to cu_seqlens_new[b + 1]
    block_table
             (batch, max_pages) int32: the pages of each sequence. Without it the cache is
             contiguous
    cache_batch_idx
             (batch,) int32: the entries of a contiguous cache that hold the sequences; in their
             order when None

    rotary_cos, rotary_sin
             (max_positions, rotary_dim / 2) fp32 or the dtype of k: rotates the first rotary_dim
             dims of each head of k, never of v
    positions
             (tokens,) or (batch, new_len) int64; those in the sequences when None, so that they
             must be given with slot_mapping
    interleaved
             pairs are neighbouring dims (GPT-J); else they are rotary_dim / 2 apart (GPT-NeoX)
    q        (tokens, heads, head_dim) or (batch, new_len, heads, head_dim): rotated, too
    q_out    where to write the rotated q; a new array when None. Rows beyond the last sequence are
             not written

    k_descale, v_descale
             of e4m3 caches, which hold value / descale: fp32, (1,), or (batch, kv_heads). Or
             (pages, page_size, kv_heads), which is written: the descale of each row that is stored,
             its largest magnitude / 448
    check_values
             on CUDA, read slots, lengths, pages and positions back to check them, which
             synchronises; on the CPU they are always checked. Where they are not, rows with wrong
             ones are left out
    kernel   a name of kernels(); the fastest kernel that can run the problem when None
    stream   the CUDA stream to work on; the framework's current one when None

    Returns the rotated q, or None where no q is given. On CUDA the work is queued and the call
    returns at once. JAX arrays, which are immutable, are refused. Where PyTorch traces or watches
    the call it is torch.ops.tilewright.append_kv (see tilewright.torch); tracing needs q_out and
    stream to be None. A call that would record gradients is refused. Raises a tilewright.Error that
    names the argument at fault; nothing is written then.
    """
    options = {
        "interleaved": flag("interleaved", interleaved),
        "check_values": flag("check_values", check_values),
        "kernel_name": kernel_name(kernel),
    }
    inputs = {
        "k": k,
        "v": v,
        "slot_mapping": slot_mapping,
        "cache_seqlens": cache_seqlens,
        "cu_seqlens_new": cu_seqlens_new,
        "block_table": block_table,
        "cache_batch_idx": cache_batch_idx,
        "rotary_cos": rotary_cos,
        "rotary_sin": rotary_sin,
        "positions": positions,
        "q": q,
        "k_descale": k_descale,
        "v_descale": v_descale,
    }
    outputs = {"k_cache": k_cache, "v_cache": v_cache}
    arrays = inputs | outputs
    is_torch_operator = takes_torch_operator(arrays, q_out, stream, "k", "q_out")
    for name in ("k_descale", "v_descale"):
        is_computed = len(getattr(inputs[name], "shape", ())) == _RANK_OF_COMPUTED
        outputs[f"computed_{name}"] = inputs[name] if is_computed else None
        inputs[name] = None if is_computed else inputs[name]
    if is_torch_operator:
        import tilewright.torch as operators

        refuse_gradients(arrays)
        rotated = operators.append_kv(**inputs, **outputs, **options)
        return None if q is None else rotated
    return run(inputs, outputs, options, q_out, stream)


def run(
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    options: dict[str, Any],
    q_out: Any = None,
    stream: Any = None,
) -> Any:
    """The rotated q, if any, from arrays, None for those that are not given, and right options."""
    framework = framework_of("k", inputs["k"])(inputs["k"], stream_handle(stream))
    if framework.module == "jax":
        raise invalid("k_cache", "is an array of JAX, which is immutable, must be one that is not")
    tensors = {}
    for argument, array in inputs.items():
        if array is not None or argument in ("k", "v"):
            takes = _TAKES.get(argument, ANY_FLOAT)
            tensors[argument] = to_native(framework, argument, array, like="k", takes=takes)
    if inputs["q"] is not None and q_out is None:
        q_out = framework.empty(tuple(inputs["q"].shape))
    for name, array in (outputs | {"q_out": q_out}).items():
        if array is not None or name.endswith("_cache"):
            tensors[name] = _output(framework, name.removeprefix("computed_"), array)
    with renamed(computed_k_descale="k_descale", computed_v_descale="v_descale"):
        _native.append_kv(tensors, **options, stream=framework.stream)
    return None if inputs["q"] is None else framework.deliver(q_out)


def _output(framework: Any, argument: str, array: Any) -> _native.Tensor:
    byte_format = None
    if argument.endswith("_cache") and holds_e4m3(array):
        byte_format = "e4m3"
    takes = "fp32" if argument.endswith("_descale") else ANY_FLOAT
    return to_native(framework, argument, array, True, "k", byte_format, takes)
