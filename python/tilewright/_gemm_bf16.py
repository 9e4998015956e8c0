"""GEMMs of BF16 matrices: the steps that lead to those with NVFP4 weights."""

from typing import Any

from tilewright import _native
from tilewright._arguments import kernel_name
from tilewright._frameworks import framework_for, framework_of, refuse_immutable_out, to_native
from tilewright._nvfp4 import weight_shape


def gemm_bf16(
    a: Any, b: Any, *, out: Any = None, kernel: str | None = None, stream: Any = None
) -> Any:
    """a (m, k) times the transpose of b (n, k), both bf16: (m, n) bf16, on a CUDA device.

    The steps towards gemm_nvfp4() that docs/worklog/gemm-ladder.md describes; n is a multiple of 16
    and k of 64. kernel is a name of kernels() with operation "gemm_bf16". out, stream, and what is
    raised, are gemm_nvfp4()'s.
    """
    framework = framework_for("a", a, stream)
    if out is None:
        framework_of("b", b)
        out = framework.empty((weight_shape("a", a)[-2], weight_shape("b", b)[-2]))
    else:
        refuse_immutable_out(framework)
    tensors = {
        "a": to_native(framework, "a", a, like="a", takes="bf16"),
        "b": to_native(framework, "b", b, like="a", takes="bf16"),
        "c": to_native(framework, "out", out, is_output=True, like="a", takes="bf16"),
    }
    _native.gemm_bf16(tensors, kernel_name=kernel_name(kernel), stream=framework.stream)
    return framework.deliver(out)
