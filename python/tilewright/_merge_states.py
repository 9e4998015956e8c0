"""Merging attention results over disjoint keys."""

from typing import Any

from tilewright import _native
from tilewright._arguments import flag, kernel_name
from tilewright._attention import statistics_of
from tilewright._errors import invalid, renamed
from tilewright._frameworks import (
    ANY_FLOAT,
    dtype_name,
    framework_of,
    refuse_gradients,
    refuse_immutable_out,
    stream_handle,
    takes_torch_operator,
    to_native,
)

_FLOATS = ("float32", "float16", "bfloat16")

# The dtypes of the inputs.
_TAKES = {"o": ANY_FLOAT} | dict.fromkeys(("lse", "row_max", "row_sum", "sinks"), "fp32")


def merge_states(
    o: Any,
    lse: Any = None,
    *,
    row_max: Any = None,
    row_sum: Any = None,
    sinks: Any = None,
    normalize: bool = True,
    return_lse: bool = False,
    dtype: Any = None,
    kernel: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The attention over all keys, of parts that are attention over some of them each.

    o        (parts, tokens, heads, value_dim); fp32, fp16 or bf16. An array of NumPy, PyTorch, CuPy
             or JAX, on the CPU or a CUDA device. The last dimension is contiguous, other strides
             are free
    lse      (parts, heads, tokens) fp32, natural log, of normalised parts
    row_max, row_sum
             the same shape, fp32, of un-normalised parts, as attention(normalize=False) gives
             them; o is fp32. Either lse is given or both of these
    sinks    (heads,) fp32: a logit for each head, as attention() has it; it counts once, so the
             parts come without it

    normalize
             False, of un-normalised parts: return (out, row_max, row_sum), all fp32
    return_lse
             also return lse
    dtype    of the result; o's when None. Where o is fp32, "float16" and "bfloat16" too
    kernel   a name of kernels(); the fastest kernel that can run the problem when None
    out      where to write, (tokens, heads, value_dim); a new array when None. JAX arrays are
             immutable: None only
    stream   the CUDA stream to work on; the framework's current one when None

    Returns out, (out, lse) or (out, row_max, row_sum); the statistics are (heads, tokens). A part
    whose lse or row_max is -inf has no keys for the row, and its values are not looked at. A row
    without keys gives 0, and -inf in lse. On CUDA the work is queued and the call returns at once.
    Where PyTorch traces or watches the call it is torch.ops.tilewright.merge_states (see
    tilewright.torch); tracing needs out and stream to be None. A call that would record gradients
    is refused. Raises a tilewright.Error that names the argument at fault; nothing is written then.
    """
    returns = {
        "normalize": flag("normalize", normalize),
        "return_lse": flag("return_lse", return_lse),
    }
    statistics = statistics_of(**returns)
    name = kernel_name(kernel)
    result_dtype = _result_dtype(dtype, out)
    inputs = {"o": o, "lse": lse, "row_max": row_max, "row_sum": row_sum, "sinks": sinks}
    if takes_torch_operator(inputs, out, stream, "o"):
        import tilewright.torch as operators

        refuse_gradients(inputs)
        results = operators.merge_states(**inputs, dtype=result_dtype, kernel_name=name, **returns)
    else:
        results = run(inputs, statistics, result_dtype, name, out, stream)
    return results[0] if len(results) == 1 else tuple(results)


def run(
    inputs: dict[str, Any],
    statistics: tuple[str, ...],
    dtype: str | None,
    kernel_name: str,
    out: Any = None,
    stream: Any = None,
) -> list[Any]:
    """[out, *statistics], from arrays, None for those that are not given."""
    framework = framework_of("o", inputs["o"])(inputs["o"], stream_handle(stream))
    if out is not None:
        refuse_immutable_out(framework)
    with renamed(o="o"):
        tensors = {
            argument: to_native(framework, argument, array, like="o", takes=_TAKES[argument])
            for argument, array in inputs.items()
            if array is not None
        }
        _, tokens, heads, value_dim = _shape("o", inputs["o"])
        if out is None:
            out = framework.empty((tokens, heads, value_dim), dtype)
        results = [out] + [framework.empty((heads, tokens), "float32") for _ in statistics]
        arguments = ("out", *(f"{statistic}_out" for statistic in statistics))
        for argument, array in zip(arguments, results, strict=True):
            tensors[argument] = to_native(framework, argument, array, is_output=True, like="o")
        _native.merge_states(tensors, kernel_name=kernel_name, stream=framework.stream)
    return [framework.deliver(result) for result in results]


def _shape(argument: str, array: Any) -> tuple[int, ...]:
    if len(array.shape) != 4:
        message = f"has rank {len(array.shape)}, must have rank 4 (parts, tokens, heads, value_dim)"
        raise invalid(argument, message)
    return tuple(int(size) for size in array.shape)


def _result_dtype(dtype: Any, out: Any) -> str | None:
    if dtype is None:
        return None
    if out is not None:
        raise invalid("dtype", "is given, must be None where out is given")
    if dtype_name(dtype) not in _FLOATS:
        raise invalid("dtype", f"is {dtype!r}, must be 'float32', 'float16' or 'bfloat16'")
    return dtype_name(dtype)
