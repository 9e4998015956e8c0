"""DeepSeek-V4's rows of a KV cache: vectors of 512 values, which are key and value at once."""

from typing import Any

from tilewright import _native
from tilewright._arguments import flag, kernel_name
from tilewright._errors import invalid
from tilewright._frameworks import (
    dtype_name,
    framework_of,
    refuse_gradients,
    refuse_immutable_out,
    stream_handle,
    takes_torch_operator,
    to_native,
)

_DIMS = 512
_VECTORS = ("float32", "bfloat16")  # dtypes


def quantize_kv_rows(
    x: Any,
    rows: Any,
    slot_mapping: Any,
    *,
    check_values: bool = False,
    kernel: str | None = None,
    stream: Any = None,
) -> None:
    """Quantises vectors into rows of a paged cache.

    x        (tokens, 512) bf16 or fp32, normalised and rotated. An array of NumPy, PyTorch or CuPy,
             on the CPU or a CUDA device. The last dimension is contiguous
    rows     the cache, which is written in place, in the format that its shape says:
             (pages, page_size, 512) bf16: copied, or rounded;
             (pages, page_size, 584) uint8: 448 E4M3 in groups of 64 and 64 BF16, in a page of P
             rows P times 576 bytes, then P times 7 UE8M0 scales and a zero (FlashMLA's MODEL1). A
             page's bytes are contiguous, the stride of pages is free;
             (pages, page_size, 528) uint8: 512 E4M3, then 16 UE8M0 scales (DeepSeek-V4.1);
             (pages, page_size, 288) uint8: 512 E2M1, then 32 E4M3 scales (DeepSeek-V4.1)
    slot_mapping
             (tokens,) int64: page * page_size + place in the page; a row of -1 is skipped
    check_values
             on CUDA, read slots back to check them, which synchronises; on the CPU they are always
             checked. Where they are not, rows with wrong ones are skipped
    kernel   a name of kernels(); the fastest kernel that can run the problem when None
    stream   the CUDA stream to work on; the framework's current one when None

    docs/kv-rows.md has the formats and the arithmetic, to the bit. On CUDA the work is queued and
    the call returns at once. JAX arrays, which are immutable, are refused. Where PyTorch traces or
    watches the call it is torch.ops.tilewright.quantize_kv_rows (see tilewright.torch); tracing
    needs stream to be None. A call that would record gradients is refused. Raises a
    tilewright.Error that names the argument at fault; nothing is written then.
    """
    options = _options(check_values, kernel)
    arrays = {"x": x, "rows": rows, "slot_mapping": slot_mapping}
    if takes_torch_operator(arrays, None, stream, "x"):
        import tilewright.torch as operators

        refuse_gradients(arrays)
        operators.quantize_kv_rows(**arrays, **options)
    else:
        run_quantize(x, rows, slot_mapping, options, stream)


def dequantize_kv_rows(
    rows: Any,
    slot_mapping: Any,
    *,
    dtype: Any = "bfloat16",
    check_values: bool = False,
    kernel: str | None = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The vectors (tokens, 512) of rows of a cache.

    rows, slot_mapping
             as quantize_kv_rows() has them
    dtype    of the result: "bfloat16" or "float32"
    out      where to write; a new array when None. JAX arrays are immutable: None only

    A vector whose slot is -1 is not written: in a new array it is anything. The other arguments,
    and what is raised, are quantize_kv_rows()'s; tracing needs out to be None, too.
    """
    options = _options(check_values, kernel)
    if dtype_name(dtype) not in _VECTORS:
        raise invalid("dtype", f"is {dtype!r}, must be 'float32' or 'bfloat16'")
    arrays = {"rows": rows, "slot_mapping": slot_mapping}
    if takes_torch_operator(arrays, out, stream, "rows"):
        import tilewright.torch as operators

        refuse_gradients(arrays)
        return operators.dequantize_kv_rows(**arrays, dtype=dtype_name(dtype), **options)
    return run_dequantize(rows, slot_mapping, dtype_name(dtype), options, out, stream)


def run_quantize(
    x: Any, rows: Any, slot_mapping: Any, options: dict[str, Any], stream: Any = None
) -> None:
    """Of arrays and right options."""
    framework = framework_of("x", x)(x, stream_handle(stream))
    if framework.module == "jax":
        raise invalid("rows", "is an array of JAX, which is immutable, must be one that is not")
    tensors = {
        "x": to_native(framework, "x", x, like="x", takes="fp32 or bf16"),
        "rows": _rows(framework, rows, "x", is_output=True),
        "slot_mapping": _slots(framework, slot_mapping, "x"),
    }
    _native.quantize_kv_rows(tensors, **options, stream=framework.stream)


def run_dequantize(
    rows: Any,
    slot_mapping: Any,
    dtype: str,
    options: dict[str, Any],
    out: Any = None,
    stream: Any = None,
) -> Any:
    """The vectors, of arrays and right options."""
    framework = framework_of("rows", rows)(rows, stream_handle(stream))
    tensors = {
        "rows": _rows(framework, rows, "rows"),
        "slot_mapping": _slots(framework, slot_mapping, "rows"),
    }
    if out is None:
        out = framework.empty(out_shape(slot_mapping), dtype)
    else:
        refuse_immutable_out(framework)
    tensors["out"] = to_native(framework, "out", out, True, "rows", takes="fp32 or bf16")
    _native.dequantize_kv_rows(tensors, **options, stream=framework.stream)
    return framework.deliver(out)


def out_shape(slot_mapping: Any) -> tuple[int, int]:
    return (int(slot_mapping.shape[0]) if len(slot_mapping.shape) > 0 else 1, _DIMS)


def _options(check_values: Any, kernel: Any) -> dict[str, Any]:
    return {
        "check_values": flag("check_values", check_values),
        "kernel_name": kernel_name(kernel),
    }


def _rows(framework: Any, rows: Any, like: str, is_output: bool = False) -> _native.Tensor:
    byte_format = "u8" if dtype_name(getattr(rows, "dtype", None)) == "uint8" else None
    return to_native(framework, "rows", rows, is_output, like, byte_format, "bf16 or uint8")


def _slots(framework: Any, slots: Any, like: str) -> _native.Tensor:
    return to_native(framework, "slot_mapping", slots, like=like, takes="int64")
