"""Rotating and quantising for attention on FP8."""

import math
from typing import Any

from tilewright import _native
from tilewright._arguments import flag, kernel_name
from tilewright._attention_fp8 import rows_of_a_descale
from tilewright._errors import invalid, wrong_type
from tilewright._frameworks import (
    ANY_FLOAT,
    BYTE_FORMATS,
    framework_of,
    refuse_gradients,
    refuse_immutable_out,
    stream_handle,
    takes_torch_operator,
    to_native,
)

# The dtypes of inputs other than x and rotation tables.
_TAKES = {"fixed_descale": "fp32", "cu_seqlens": "int32", "positions": "int64"}

_SEED_LIMIT = 1 << 63
_COLUMN_MULTIPLE = 16


def rotate_quantize(
    x: Any,
    *,
    seed: int | None = None,
    descale_rows: int = 128,
    transposed: bool = False,
    fixed_descale: Any = None,
    cu_seqlens: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    positions: Any = None,
    interleaved: bool = False,
    check_values: bool = False,
    kernel: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """E4M3 of queries, keys or values for attention_fp8(), with a descale for each block of rows.

    x        (batch, len, heads, head_dim), or packed (total, heads, head_dim); fp16 or bf16, on the
             CPU fp32 too. An array of NumPy, PyTorch, CuPy or JAX, on the CPU or a CUDA device. The
             head dimension is contiguous, other strides are free
    seed     from 0 to 2^63 - 1: rotates the head dim, by random signs of that seed and a Hadamard
             matrix, which spreads outliers; head_dim is a power of two up to 256. Queries and keys
             need the same seed, values none
    descale_rows
             64 or 128 rows of a sequence and head share a descale
    transposed
             write attention_fp8()'s v_transposed: (batch, heads, head_dim, columns), where columns
             is len rounded up to a multiple of 16, or packed (heads, head_dim, columns), where it
             is 16 * (total // 16 + batch)
    fixed_descale
             fp32, (1,) or (batch, heads), above 0: quantise by these descales and compute none
    cu_seqlens
             (batch + 1,) int32, from 0, ascending: x is packed
    rotary_cos, rotary_sin
             (max_positions, rotary_dim / 2) fp32 or the dtype of x: rotates the first rotary_dim
             dims of each head first (RoPE)
    positions
             (batch, len), or packed (total,), int64; places in the sequences when None
    interleaved
             pairs are neighbouring dims (GPT-J); else they are rotary_dim / 2 apart (GPT-NeoX)
    check_values
             on CUDA, read lengths, positions and fixed_descale back to check them, which
             synchronises; on the CPU they are always checked
    kernel   a name of kernels(); the fastest kernel that can run the problem when None
    out      where to write, float8_e4m3fn or uint8; a new array when None, uint8 in NumPy, CuPy and
             JAX
    stream   the CUDA stream to work on; the framework's current one when None

    Returns (out, descale), or out where fixed_descale is given. descale is fp32, (batch, heads,
    ceil(len / descale_rows)), or packed (heads, total // descale_rows + batch). docs/fp8.md has the
    arithmetic; CPU and GPU give the same bytes. On CUDA the work is queued and the call returns at
    once. Where PyTorch traces or watches the call it is torch.ops.tilewright.rotate_quantize (see
    tilewright.torch); tracing needs out and stream to be None. A call that would record gradients
    is refused. Raises a tilewright.Error that names the argument at fault; nothing is written then.
    """
    inputs = {
        "x": x,
        "fixed_descale": fixed_descale,
        "cu_seqlens": cu_seqlens,
        "rotary_cos": rotary_cos,
        "rotary_sin": rotary_sin,
        "positions": positions,
    }
    options = {
        "descale_rows": rows_of_a_descale(descale_rows, (64, 128)),
        "seed": _seed(seed),
        "interleaved": flag("interleaved", interleaved),
        "check_values": flag("check_values", check_values),
        "kernel_name": kernel_name(kernel),
    }
    is_transposed = flag("transposed", transposed)
    if takes_torch_operator(inputs, out, stream, "x"):
        import tilewright.torch as operators

        refuse_gradients(inputs)
        results = operators.rotate_quantize(**inputs, **options, transposed=is_transposed)
    else:
        results = run(inputs, options, is_transposed, out, stream)
    return results[0] if fixed_descale is not None else tuple(results)


def run(
    inputs: dict[str, Any],
    options: dict[str, Any],
    is_transposed: bool,
    out: Any = None,
    stream: Any = None,
) -> list[Any]:
    """[out], or [out, descale], from arrays, None for those that are not given."""
    x = inputs["x"]
    framework = framework_of("x", x)(x, stream_handle(stream))
    if out is not None:
        refuse_immutable_out(framework)
    tensors = {
        name: to_native(framework, name, array, like="x", takes=_TAKES.get(name, ANY_FLOAT))
        for name, array in inputs.items()
        if array is not None
    }
    if out is None:
        dtype = BYTE_FORMATS["e4m3"] if framework.module == "torch" else "uint8"
        out = framework.empty(out_shape(x, inputs["cu_seqlens"], is_transposed), dtype)
    name = "out_transposed" if is_transposed else "out"
    tensors[name] = to_native(framework, "out", out, True, "x", "e4m3")
    results = [out]
    if inputs["fixed_descale"] is None:
        shape = descale_shape(x, inputs["cu_seqlens"], options["descale_rows"])
        results.append(framework.empty(shape, "float32"))
        tensors["descale"] = to_native(framework, "descale", results[1], True, "x")
    _native.rotate_quantize(tensors, **options, stream=framework.stream)
    return [framework.deliver(result) for result in results]


def out_shape(x: Any, cu_seqlens: Any, is_transposed: bool) -> tuple[int, ...]:
    """Of a wrong rank too: the library refuses that by name."""
    if not is_transposed or len(x.shape) < 3:
        return tuple(x.shape)
    *batch, length, heads, head_dim = x.shape
    columns = _COLUMN_MULTIPLE * block_count(length, cu_seqlens, _COLUMN_MULTIPLE)
    return (*batch, heads, head_dim, columns)


def descale_shape(x: Any, cu_seqlens: Any, descale_rows: int) -> tuple[int, ...]:
    if len(x.shape) < 3:
        return (1,)
    *batch, length, heads, _ = x.shape
    if cu_seqlens is not None:
        batch = []
    return (*batch, heads, block_count(length, cu_seqlens, descale_rows))


def block_count(length: int, cu_seqlens: Any, rows: int) -> int:
    """Blocks of so many rows of a sequence; packed: of all of them together."""
    if cu_seqlens is None:
        return (length + rows - 1) // rows
    return length // rows + max(math.prod(cu_seqlens.shape) - 1, 0)


def _seed(value: Any) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type("seed", f"is {value!r}, must be an integer or None")
    if not 0 <= value < _SEED_LIMIT:
        raise invalid("seed", f"is {value}, must be from 0 to 2^63 - 1")
    return int(value)
