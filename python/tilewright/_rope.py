"""Rotation by position (RoPE), its inverse, and its tables."""

from typing import Any

from tilewright import _native
from tilewright._arguments import flag, kernel_name, number, size_of
from tilewright._errors import renamed
from tilewright._frameworks import (
    ANY_FLOAT,
    NumPy,
    framework_of,
    refuse_gradients,
    refuse_immutable_out,
    stream_handle,
    takes_torch_operator,
    to_native,
)


def rope(
    x: Any,
    rotary_cos: Any,
    rotary_sin: Any,
    positions: Any,
    *,
    interleaved: bool = True,
    rotates_last: bool = True,
    inverse: bool = False,
    check_values: bool = False,
    kernel: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """x with the dims of each head rotated by their tokens' positions.

    x        (tokens, heads, head_dim) or (tokens, head_dim); fp16 or bf16, on the CPU fp32 too. An
             array of NumPy, PyTorch, CuPy or JAX, on the CPU or a CUDA device. The last dimension
             is contiguous
    rotary_cos, rotary_sin
             (max_positions, rotary_dim / 2) fp32 or the dtype of x, as rope_tables() gives them
    positions
             (tokens,) int64, each less than max_positions

    interleaved
             pairs are neighbouring dims (DeepSeek, GPT-J); else they are rotary_dim / 2 apart
             (GPT-NeoX)
    rotates_last
             the last rotary_dim dims of a head are rotated (DeepSeek); else the first
    inverse  rotate back
    check_values
             on CUDA, read positions back to check them, which synchronises; on the CPU they are
             always checked. Where they are not, rows with wrong ones are not written
    kernel   a name of kernels(); the fastest kernel that can run the problem when None
    out      where to write, x itself or an array of its shape; a new array when None. JAX arrays
             are immutable: None only
    stream   the CUDA stream to work on; the framework's current one when None

    Returns out. On CUDA the work is queued and the call returns at once. Where PyTorch traces or
    watches the call it is torch.ops.tilewright.rope (see tilewright.torch); tracing needs out and
    stream to be None. A call that would record gradients is refused. Raises a tilewright.Error that
    names the argument at fault; nothing is written then.
    """
    options = {
        "interleaved": flag("interleaved", interleaved),
        "rotates_last": flag("rotates_last", rotates_last),
        "inverse": flag("inverse", inverse),
        "check_values": flag("check_values", check_values),
        "kernel_name": kernel_name(kernel),
    }
    inputs = {"x": x, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "positions": positions}
    if takes_torch_operator(inputs, out, stream, "x"):
        import tilewright.torch as operators

        refuse_gradients(inputs)
        return operators.rope(**inputs, **options)
    return run(inputs, options, out, stream)


def run(
    inputs: dict[str, Any], options: dict[str, Any], out: Any = None, stream: Any = None
) -> Any:
    """The rotated x, of arrays and right options."""
    framework = framework_of("x", inputs["x"])(inputs["x"], stream_handle(stream))
    tensors = {}
    for argument, array in inputs.items():
        takes = "int64" if argument == "positions" else ANY_FLOAT
        tensors[argument] = to_native(framework, argument, array, like="x", takes=takes)
    if out is None:
        out = framework.empty(tuple(inputs["x"].shape))
    else:
        refuse_immutable_out(framework)
    tensors["out"] = to_native(framework, "out", out, is_output=True, like="x")
    _native.rope(tensors, **options, stream=framework.stream)
    return framework.deliver(out)


def rope_tables(
    max_positions: int,
    *,
    dims: int = 64,
    theta: float = 10000.0,
    yarn_factor: float | None = None,
    original_positions: int = 65536,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
) -> tuple[Any, Any]:
    """(rotary_cos, rotary_sin) as rope() and append_kv() take them, of positions from 0 on.

    dims     how many dims are rotated
    theta    the base of the frequencies theta^(-2 i / dims)
    yarn_factor
             where given, YaRN slows frequencies down by up to this factor. Dims that make
             `beta_fast` turns within the original context keep theirs; those that make no more than
             `beta_slow` have the factor in full. Its attention scaling ("mscale") is left out
    original_positions
             of the context before it was extended

    DeepSeek-V4 has two rotations: the defaults, in layers that attend to a window alone, and
    theta=160000, yarn_factor=16 in all others.

    The tables are NumPy arrays (max_positions, dims / 2) of float32. An angle is a product in FP32,
    float(position) * float(frequency), as models' own code has it.
    """
    import numpy

    shape = (size_of("max_positions", max_positions), max(size_of("dims", dims) // 2, 1))
    cos, sin = (numpy.empty(shape, "float32") for _ in range(2))
    framework = NumPy(cos, None)
    tensors = {
        "cos": to_native(framework, "cos", cos, is_output=True),
        "sin": to_native(framework, "sin", sin, is_output=True),
    }
    options = {
        "theta": number("theta", theta),
        "dims": size_of("dims", dims),
        "yarn_factor": None if yarn_factor is None else number("yarn_factor", yarn_factor),
        "original_positions": size_of("original_positions", original_positions),
        "beta_fast": number("beta_fast", beta_fast),
        "beta_slow": number("beta_slow", beta_slow),
    }
    with renamed(factor="yarn_factor"):
        _native.rope_tables(tensors, **options)
    return cos, sin
