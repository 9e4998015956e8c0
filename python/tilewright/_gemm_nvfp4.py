"""GEMMs with NVFP4 weights."""

from typing import Any

from tilewright import _native
from tilewright._arguments import check_same, flag, is_second, kernel_name, size_of
from tilewright._errors import invalid
from tilewright._frameworks import (
    dtype_name,
    framework_for,
    framework_of,
    new_workspace,
    refuse_immutable_out,
    to_native,
)
from tilewright._nvfp4 import is_decode, weight_shape

_LAYOUTS = ("linear", "swizzled")
_CODES = ("uint8", "float4_e2m1fn_x2")


def gemm_nvfp4(
    a: Any,
    b: Any,
    sfb: Any = None,
    global_scale_b: Any = None,
    *,
    sfa: Any = None,
    global_scale_a: Any = None,
    bias: Any = None,
    residual: Any = None,
    out: Any = None,
    n: int | None = None,
    dtype: Any = "bfloat16",
    sfa_layout: str = "linear",
    sfb_layout: str = "linear",
    global_scale_a_kind: str | None = None,
    global_scale_b_kind: str | None = None,
    b_is_constant: bool = False,
    batch_invariant: bool = False,
    kernel: str | None = None,
    stream: Any = None,
) -> Any:
    """a times the transpose of b, an NVFP4 weight: ([l,] m, n).

    a        ([l,] m, k) bf16 or fp16, or the codes of NVFP4, ([l,] m, k / 2) uint8, with sfa. An
             array of NumPy, PyTorch, CuPy or JAX, on the CPU or a CUDA device
    b        ([l,] n, k / 2) uint8 or float4_e2m1fn_x2: codes as quantize_nvfp4() gives them; or,
             without sfb, what prepack_nvfp4_weight() makes of them
    sfa, sfb the scales of a's and b's codes, uint8 or float8_e4m3fn; linear ([l,] rows, k / 16) or
             swizzled, as sfa_layout and sfb_layout say
    global_scale_a, global_scale_b
             fp32, (1,) or one for each row; 1 when None
    global_scale_a_kind, global_scale_b_kind
             where they are given: quantize_nvfp4()'s global_scale_kind with which they were made
    bias     (n,), added to every row; residual ([l,] m, n), which may be out. Both of out's dtype
    out      ([l,] m, n) bf16, fp16 or fp32; a new array of `dtype` when None. Shares no byte with
             an input, but for a residual that is out
    n        the weight's rows, where a new array is wanted and b is packed: else nothing says them.
             A packed weight's shape has n and k rounded up to whole tiles. Other sizes with the
             same tiles are not refused: what b has beyond n and k is left out, and is 0 where b
             has less
    b_is_constant
             b, packed, has been written, and that was waited for: by the host, or by a GEMM on
             this stream that did not say so. It may be read while what was queued before this call
             is still at work
    batch_invariant
             a row's bits do not depend on m, l or the other rows
    kernel   a name of kernels() with operation "gemm_nvfp4"; the fastest when None

    The sum is in FP32 and rounded once. On CUDA the work is queued and the call returns at once.
    PyTorch has no operator for it: a call that would record gradients, or that is traced or seen by
    a dispatch mode, is refused. Raises a tilewright.Error that names the argument at fault.
    """
    options = {
        "sfa_swizzled": is_second("sfa_layout", sfa_layout, _LAYOUTS),
        "sfb_swizzled": is_second("sfb_layout", sfb_layout, _LAYOUTS),
        "decode_a": is_decode("global_scale_a_kind", global_scale_a_kind),
        "decode_b": is_decode("global_scale_b_kind", global_scale_b_kind),
        "b_is_constant": flag("b_is_constant", b_is_constant),
        "batch_invariant": flag("batch_invariant", batch_invariant),
        "kernel_name": kernel_name(kernel),
    }
    result_dtype = _result_dtype(dtype)
    framework = framework_for("a", a, stream)
    if dtype_name(a.dtype) == "float32":  # before a result, which may need a missing package
        raise invalid("a", "has dtype fp32, must be bf16, fp16, or e2m1x2 of NVFP4")
    if out is None:
        rows_of_b = _rows_of_packed(b, n) if sfb is None else _rows_of_codes(b, n)
        out = framework.empty((*weight_shape("a", a)[:-1], rows_of_b), result_dtype)
    else:
        refuse_immutable_out(framework)
        if n is not None:
            raise invalid("n", f"is {n!r}, must be None where out is given")

    a_format = "e2m1x2" if dtype_name(a.dtype) in _CODES else None
    b_format = "u8" if sfb is None else "e2m1x2"
    a_takes = "bf16 or fp16, or uint8 of NVFP4's codes"
    tensors = {
        "a": to_native(framework, "a", a, like="a", byte_format=a_format, takes=a_takes),
        "b": to_native(framework, "b", b, like="a", byte_format=b_format),
        "c": to_native(framework, "out", out, is_output=True, like="a"),
    }
    for argument, array, form in (
        ("sfa", sfa, {"byte_format": "e4m3"}),
        ("sfb", sfb, {"byte_format": "e4m3"}),
        ("global_scale_a", global_scale_a, {"takes": "fp32"}),
        ("global_scale_b", global_scale_b, {"takes": "fp32"}),
        ("bias", bias, {"takes": "the dtype of out"}),
        ("residual", residual, {"takes": "the dtype of out"}),
    ):
        if array is not None:
            tensors[argument] = to_native(framework, argument, array, like="a", **form)
    call = _native.GemmNvfp4Call(tensors, **options)
    workspace = new_workspace(framework, call.workspace_bytes())  # held until all is delivered
    call.run(workspace, framework.stream)
    return framework.deliver(out)


def _rows_of_packed(b: Any, n: Any) -> int:
    if n is None:
        raise invalid("n", "is None, must be given where b is packed: without sfb and out")
    framework_of("b", b)
    rows = size_of("n", n)
    row_tiles, _ = _native.packed_nvfp4_weight_shape(rows, columns=1)
    check_same("b", "rows", weight_shape("b", b)[-2], f"the tiles of 64 of N {rows},", row_tiles)
    return rows


def _rows_of_codes(b: Any, n: Any) -> int:
    if n is not None:
        raise invalid("n", f"is {n!r}, must be None where b is codes: they have n rows")
    framework_of("b", b)
    return weight_shape("b", b)[-2]


def _result_dtype(dtype: Any) -> Any:
    name = dtype_name(dtype)
    if name not in ("float32", "float16", "bfloat16"):
        raise invalid("dtype", f"is {dtype!r}, must be 'float32', 'float16' or 'bfloat16'")
    return name
