"""NVFP4: quantising, dequantising (MXFP4 too), the layouts of block scales, packed weights."""

from typing import Any

from tilewright import _native
from tilewright._arguments import check_same, is_second, size_of
from tilewright._errors import invalid, renamed
from tilewright._frameworks import (
    BYTE_FORMATS,
    dtype_name,
    framework_for,
    new_workspace,
    refuse_immutable_out,
    to_native,
)

_BLOCK = 16
_KINDS = ("encode", "decode")


def quantize_nvfp4(
    x: Any,
    global_scale: Any = None,
    *,
    global_scale_kind: str,
    scale_layout: str = "linear",
    stream: Any = None,
) -> tuple[Any, Any, Any]:
    """(codes, scales, global_scale) of a matrix.

    x        (rows, columns), columns a multiple of 16; fp32, fp16 or bf16. An array of NumPy,
             PyTorch, CuPy or JAX, on the CPU or a CUDA device. Columns are contiguous
    global_scale
             (1,) fp32; computed from x when None, and then a new array
    global_scale_kind
             "encode": a value is code * scale / global_scale, the convention of FlashInfer's and
             vLLM's quantisers and of compressed-tensors; "decode": code * scale * global_scale,
             ModelOpt's
    scale_layout
             "linear", or "swizzled" for the 128x4 layout that cuBLAS, CUTLASS and FlashInfer read
    stream   the CUDA stream to work on; the framework's current one when None

    codes    (rows, columns / 2) uint8: two E2M1 codes a byte, the even column in the low half
    scales   (rows, columns / 16) E4M3; swizzled, rows up to a multiple of 128 and columns / 16 up
             to one of 4, the padding 0. torch.float8_e4m3fn, else uint8

    docs/nvfp4.md has the formulas, to the bit. On CUDA the work is queued and the call returns at
    once. PyTorch has no operator for it: a call that would record gradients, or that is traced or
    seen by a dispatch mode, is refused. Raises a tilewright.Error that names the argument at fault.
    """
    swizzled = _is_swizzled(scale_layout)
    decode = is_second("global_scale_kind", global_scale_kind, _KINDS)
    framework = framework_for("x", x, stream)
    rows, columns = _matrix_shape("x", x)
    codes = framework.empty((rows, columns // 2), "uint8")
    shape = (rows, columns // _BLOCK)
    scales = _empty_scales(framework, _swizzled_shape(*shape) if swizzled else shape)
    tensors = {
        "x": to_native(framework, "x", x, like="x"),
        "codes": to_native(framework, "codes", codes, is_output=True, byte_format="e2m1x2"),
        "scales": to_native(framework, "scales", scales, is_output=True, byte_format="e4m3"),
    }
    results = [codes, scales]
    if global_scale is None:
        computed = framework.empty((1,), "float32")
        tensors["computed_global_scale"] = to_native(
            framework, "computed_global_scale", computed, is_output=True
        )
        results.append(computed)
    else:
        tensors["global_scale"] = to_native(
            framework, "global_scale", global_scale, like="x", takes="fp32"
        )
    call = _native.QuantizeNvfp4Call(tensors, swizzled=swizzled, decode=decode)
    workspace = new_workspace(framework, call.workspace_bytes())  # held until all is delivered
    call.run(workspace, framework.stream)
    delivered = [framework.deliver(result) for result in results]
    return (*delivered, global_scale) if global_scale is not None else tuple(delivered)


def dequantize_nvfp4(
    codes: Any,
    scales: Any,
    global_scale: Any = None,
    *,
    block_format: str = "nvfp4",
    global_scale_kind: str | None = None,
    scale_layout: str = "linear",
    dtype: Any = "float32",
    stream: Any = None,
) -> Any:
    """The matrix (rows, columns) of codes, scales and a global scale.

    codes    (rows, columns / 2) uint8 or float4_e2m1fn_x2
    scales   as quantize_nvfp4() gives them, uint8 or float8_e4m3fn
    global_scale
             (1,) fp32; 1 when None
    global_scale_kind
             where a global scale is given: that with which it was made
    block_format
             "nvfp4"; "mxfp4": blocks of 32 columns, scales uint8 or float8_e8m0fnu, no global scale
    dtype    of the result: "float32", "float16" or "bfloat16", or a framework's dtype of that name

    The other arguments, and what is raised, are quantize_nvfp4()'s.
    """
    swizzled = _is_swizzled(scale_layout)
    decode = is_decode("global_scale_kind", global_scale_kind)
    if block_format not in ("nvfp4", "mxfp4"):
        raise invalid("block_format", f"is {block_format!r}, must be 'nvfp4' or 'mxfp4'")
    if dtype_name(dtype) not in ("float32", "float16", "bfloat16"):
        raise invalid("dtype", f"is {dtype!r}, must be 'float32', 'float16' or 'bfloat16'")
    framework = framework_for("codes", codes, stream)
    rows, code_bytes = _matrix_shape("codes", codes)
    out = framework.empty((rows, 2 * code_bytes), dtype_name(dtype))
    scale_format = "e8m0" if block_format == "mxfp4" else "e4m3"
    tensors = {
        "codes": to_native(framework, "codes", codes, like="codes", byte_format="e2m1x2"),
        "scales": to_native(framework, "scales", scales, like="codes", byte_format=scale_format),
        "out": to_native(framework, "out", out, is_output=True),
    }
    if global_scale is not None:
        tensors["global_scale"] = to_native(
            framework, "global_scale", global_scale, like="codes", takes="fp32"
        )
    _native.dequantize_nvfp4(tensors, swizzled=swizzled, decode=decode, stream=framework.stream)
    return framework.deliver(out)


def swizzle_scales(linear: Any, *, stream: Any = None) -> Any:
    """Linear scales (rows, blocks) in the 128x4 layout, rows up to a multiple of 128 and blocks up
    to one of 4, the padding 0. uint8, float8_e4m3fn or float8_e8m0fnu, which the result is too."""
    framework = framework_for("linear", linear, stream)
    swizzled = framework.empty(_swizzled_shape(*_matrix_shape("linear", linear)))
    _native.swizzle_scales(
        _scale_bytes(framework, "linear", linear),
        _scale_bytes(framework, "swizzled", swizzled, is_output=True),
        framework.stream,
    )
    return framework.deliver(swizzled)


def unswizzle_scales(swizzled: Any, rows: int, blocks: int, *, stream: Any = None) -> Any:
    """The linear scales (rows, blocks) of those that swizzle_scales() gives."""
    framework = framework_for("swizzled", swizzled, stream)
    shape = size_of("rows", rows), size_of("blocks", blocks)
    padded_rows, padded_blocks = _matrix_shape("swizzled", swizzled)
    right_rows, right_blocks = _swizzled_shape(*shape)
    check_same("swizzled", "rows", padded_rows, "rows up to a multiple of 128,", right_rows)
    check_same("swizzled", "columns", padded_blocks, "blocks up to one of 4,", right_blocks)
    linear = framework.empty(shape)
    _native.unswizzle_scales(
        _scale_bytes(framework, "swizzled", swizzled),
        _scale_bytes(framework, "linear", linear, is_output=True),
        framework.stream,
    )
    return framework.deliver(linear)


def prepack_nvfp4_weight(
    codes: Any, scales: Any, *, scale_layout: str = "linear", out: Any = None, stream: Any = None
) -> Any:
    """A weight as gemm_nvfp4() takes it fastest: packed once, for any number of GEMMs.

    codes    ([l,] n, k / 2) uint8 or float4_e2m1fn_x2, k a multiple of 16
    scales   as quantize_nvfp4() gives them, uint8 or float8_e4m3fn; a matrix of swizzled ones for
             each of l
    out      where to write; a new array when None. JAX arrays are immutable: None only

    The result is uint8, ([l,] row tiles, bytes), in the layout that docs/nvfp4.md shows; its
    version is tilewright.NVFP4_WEIGHT_LAYOUT. stream, and what is raised, are quantize_nvfp4()'s.
    """
    swizzled = _is_swizzled(scale_layout)
    framework = framework_for("codes", codes, stream)
    *batch, rows, code_bytes = weight_shape("codes", codes)
    if out is None:
        shape = _native.packed_nvfp4_weight_shape(rows, 2 * code_bytes)
        out = framework.empty((*batch, *shape), "uint8")
    else:
        refuse_immutable_out(framework)
    tensors = {
        "codes": to_native(framework, "codes", codes, like="codes", byte_format="e2m1x2"),
        "scales": to_native(framework, "scales", scales, like="codes", byte_format="e4m3"),
        "packed": to_native(framework, "out", out, True, like="codes", byte_format="u8"),
    }
    with renamed(packed="out"):
        _native.prepack_nvfp4_weight(tensors, swizzled=swizzled, stream=framework.stream)
    return framework.deliver(out)


def unpack_nvfp4_weight(
    packed: Any, n: int, k: int, *, scale_layout: str = "linear", stream: Any = None
) -> tuple[Any, Any]:
    """(codes, scales) of a weight (n, k) that prepack_nvfp4_weight() packed.

    They dequantise to the same values. Under scales that are neither negative nor zero they are the
    bytes that were packed; else the scale's sign is in the codes, and codes under zero are zeros.
    """
    swizzled = _is_swizzled(scale_layout)
    framework = framework_for("packed", packed, stream)
    *batch, row_tiles, row_bytes = weight_shape("packed", packed)
    rows, columns = size_of("n", n), size_of("k", k)
    if columns % _BLOCK != 0:
        raise invalid("k", f"is {columns}, must be a multiple of {_BLOCK}")
    right_tiles, right_bytes = _native.packed_nvfp4_weight_shape(rows, columns)
    check_same("packed", "rows", row_tiles, f"the tiles of 64 of N {rows},", right_tiles)
    bytes_of = f"the bytes of tiles that K {columns} takes,"
    check_same("packed", "columns", row_bytes, bytes_of, right_bytes)
    codes = framework.empty((*batch, rows, columns // 2), "uint8")
    shape = (rows, columns // _BLOCK)
    scales = _empty_scales(framework, (*batch, *(_swizzled_shape(*shape) if swizzled else shape)))
    tensors = {
        "packed": to_native(framework, "packed", packed, like="packed", byte_format="u8"),
        "codes": to_native(framework, "codes", codes, is_output=True, byte_format="e2m1x2"),
        "scales": to_native(framework, "scales", scales, is_output=True, byte_format="e4m3"),
    }
    _native.unpack_nvfp4_weight(tensors, swizzled=swizzled, stream=framework.stream)
    return framework.deliver(codes), framework.deliver(scales)


def is_decode(argument: str, global_scale_kind: Any) -> bool | None:
    """None where it is not said, as it need not be where there is no global scale."""
    return None if global_scale_kind is None else is_second(argument, global_scale_kind, _KINDS)


def _is_swizzled(scale_layout: Any) -> bool:
    return is_second("scale_layout", scale_layout, ("linear", "swizzled"))


def _matrix_shape(argument: str, array: Any) -> tuple[int, int]:
    if len(array.shape) != 2:
        message = f"has rank {len(array.shape)}, must have rank 2 (rows, columns)"
        raise invalid(argument, message)
    rows, columns = array.shape
    return int(rows), int(columns)


def weight_shape(argument: str, array: Any) -> tuple[int, ...]:
    if len(array.shape) not in (2, 3):
        message = f"has rank {len(array.shape)}, must have rank 2 or 3 ([l,] rows, columns)"
        raise invalid(argument, message)
    return tuple(int(size) for size in array.shape)


def _swizzled_shape(rows: int, blocks: int) -> tuple[int, int]:
    return -(-rows // 128) * 128, -(-blocks // 4) * 4


def _empty_scales(framework: Any, shape: tuple[int, ...]) -> Any:
    return framework.empty(shape, BYTE_FORMATS["e4m3"] if framework.module == "torch" else "uint8")


def _scale_bytes(framework: Any, argument: str, scales: Any, is_output: bool = False) -> Any:
    byte_format = "e8m0" if dtype_name(scales.dtype) == BYTE_FORMATS["e8m0"] else "e4m3"
    return to_native(framework, argument, scales, is_output, argument, byte_format)
