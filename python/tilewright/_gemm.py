"""Matrix products with NVFP4 weights."""

from typing import Any

from tilewright import _native
from tilewright._errors import invalid, wrong_type
from tilewright._frameworks import dtype_name, framework_of, new_workspace, stream_handle, to_native

_LAYOUTS = ("linear", "swizzled")
_KINDS = ("encode", "decode")
_CODES = ("uint8", "float4_e2m1fn_x2")


def gemm_nvfp4(
    a: Any,
    b: Any,
    sfb: Any,
    global_scale_b: Any = None,
    *,
    sfa: Any = None,
    global_scale_a: Any = None,
    bias: Any = None,
    residual: Any = None,
    out: Any = None,
    dtype: Any = "bfloat16",
    sfa_layout: str = "linear",
    sfb_layout: str = "linear",
    global_scale_a_kind: str = "encode",
    global_scale_b_kind: str = "encode",
    batch_invariant: bool = False,
    kernel: str | None = None,
    stream: Any = None,
) -> Any:
    """a times the transpose of b, an NVFP4 weight: ([l,] m, n).

    a        ([l,] m, k) bf16 or fp16, or the codes of NVFP4, ([l,] m, k / 2) uint8, with sfa. An
             array of NumPy, PyTorch, CuPy or JAX, on the CPU or a CUDA device
    b        ([l,] n, k / 2) uint8 or float4_e2m1fn_x2: codes as quantize_nvfp4() gives them
    sfa, sfb the scales of a's and b's codes, uint8 or float8_e4m3fn; linear ([l,] rows, k / 16) or
             swizzled, as sfa_layout and sfb_layout say
    global_scale_a, global_scale_b
             fp32, (1,) or one for each row; in the sense of quantize_nvfp4()'s global_scale_kind,
             here global_scale_a_kind and global_scale_b_kind. 1 when None
    bias     (n,), added to every row; residual ([l,] m, n), which may be out. Both of out's dtype
    out      ([l,] m, n) bf16, fp16 or fp32; a new array of `dtype` when None
    batch_invariant
             a row's bits do not depend on m, l or the other rows
    kernel   a name of kernels() with operation "gemm_nvfp4"; the fastest when None

    The sum is in FP32 and rounded once. On CUDA the work is queued and the call returns at once. No
    gradients are recorded. Raises a tilewright.Error that names the argument at fault.
    """
    options = {
        "sfa_swizzled": _choice("sfa_layout", sfa_layout, _LAYOUTS),
        "sfb_swizzled": _choice("sfb_layout", sfb_layout, _LAYOUTS),
        "decode_a": _choice("global_scale_a_kind", global_scale_a_kind, _KINDS),
        "decode_b": _choice("global_scale_b_kind", global_scale_b_kind, _KINDS),
    }
    if not (kernel is None or isinstance(kernel, str)):
        raise wrong_type("kernel", f"is {kernel!r}, must be a name of kernels() or None")
    framework = framework_of("a", a)(a, stream_handle(stream))
    if out is None:
        out = framework.empty(_result_shape(a, b), _result_dtype(dtype))
    elif framework.module == "jax":
        raise invalid("out", "is given, must be None: JAX arrays are immutable")

    a_format = "e2m1x2" if dtype_name(a.dtype) in _CODES else None
    tensors = {
        "a": to_native(framework, "a", a, like="a", byte_format=a_format),
        "b": to_native(framework, "b", b, like="a", byte_format="e2m1x2"),
        "sfb": to_native(framework, "sfb", sfb, like="a", byte_format="e4m3"),
        "c": to_native(framework, "out", out, is_output=True, like="a"),
    }
    if sfa is not None:
        tensors["sfa"] = to_native(framework, "sfa", sfa, like="a", byte_format="e4m3")
    for argument, array in (
        ("global_scale_a", global_scale_a),
        ("global_scale_b", global_scale_b),
        ("bias", bias),
        ("residual", residual),
    ):
        if array is not None:
            tensors[argument] = to_native(framework, argument, array, like="a")
    call = _native.GemmNvfp4Call(
        tensors, **options, batch_invariant=bool(batch_invariant), kernel_name=kernel or "auto"
    )
    call.run(new_workspace(framework, call.workspace_bytes()), framework.stream)
    return framework.deliver(out)


def _choice(argument: str, value: Any, allowed: tuple[str, str]) -> bool:
    """Whether it is the second."""
    if value not in allowed:
        raise invalid(argument, f"is {value!r}, must be {allowed[0]!r} or {allowed[1]!r}")
    return value == allowed[1]


def _result_shape(a: Any, b: Any) -> tuple[int, ...]:
    framework_of("b", b)
    for argument, array in (("a", a), ("b", b)):
        if len(array.shape) not in (2, 3):
            message = f"has rank {len(array.shape)}, must have rank 2 or 3 ([l,] rows, columns)"
            raise invalid(argument, message)
    return (*(int(size) for size in a.shape[:-1]), int(b.shape[-2]))


def _result_dtype(dtype: Any) -> Any:
    name = dtype_name(dtype)
    if name not in ("float32", "float16", "bfloat16"):
        raise invalid("dtype", f"is {dtype!r}, must be 'float32', 'float16' or 'bfloat16'")
    return name
