"""The kernel table."""

from dataclasses import dataclass
from typing import Any

from tilewright import _native


@dataclass(frozen=True)
class Kernel:
    """One kernel of the library, and whether this machine can run it."""

    name: str  # what attention(kernel=...) or gemm_nvfp4(kernel=...) takes
    operation: str  # "attention", "gemm_bf16" or "gemm_nvfp4"
    summary: str
    device: str  # where its tensors live: "cpu" or "cuda"
    compute_capability: int  # the GPU it is built for, 90 for Hopper; 0 on the CPU
    dtypes: tuple[str, ...]  # of "fp32", "fp16", "bf16", "e2m1x2"; of a GEMM's a
    head_dims: tuple[tuple[int, int], ...]  # of q and k, and of v; empty: any
    features: tuple[str, ...]  # of "window", "softcap", "sinks", "packed", "unnormalized"
    out_dtypes: tuple[str, ...]  # of a GEMM's c
    n_multiple: int  # what a GEMM's N and K must be multiples of
    k_multiple: int
    weight_forms: tuple[str, ...]  # of "codes", "packed"; of gemm_nvfp4's b
    alignment_bytes: int  # of base pointers and outer strides
    doc: str  # its page in the repository
    why_not: str | None  # why this machine cannot run it; None where it can


def kernels() -> list[Kernel]:
    """All kernels of this version, operation by operation, in ascending order of speed."""
    return [Kernel(**row) for row in _native.kernels()]


def flash_rows() -> list[Kernel]:
    """The shapes that "flash" chooses from, each as a kernel of its own, for measuring them."""
    return [Kernel(**row) for row in _native.flash_rows()]


def nvfp4_rows() -> list[Kernel]:
    """The shapes that "nvfp4" chooses from, likewise."""
    return [Kernel(**row) for row in _native.nvfp4_rows()]


def flash_row_of(case: dict[str, Any]) -> str:
    """The one of them in which "flash" runs a results file's case on an H200."""
    return _native.flash_row_of(problem_of(case), multiprocessors=132)


def nvfp4_row_of(case: dict[str, Any]) -> str:
    """The one of nvfp4_rows() in which "nvfp4" runs a results file's case on an H200."""
    return _native.nvfp4_row_of(gemm_problem_of(case, b_is_packed=True), multiprocessors=132)


def problem_of(case: dict[str, Any]) -> _native.AttentionProblem:
    """The problem of a results file's case, its window, soft cap and sinks aside."""
    asked_for = ("window", "softcap", "sinks", "lengths")
    fields = {name: value for name, value in case.items() if name not in asked_for}
    return _native.AttentionProblem(**fields, packed="lengths" in case)


def gemm_problem_of(case: dict[str, Any], b_is_packed: bool) -> _native.GemmProblem:
    """The same of a product with an NVFP4 weight."""
    return _native.GemmProblem(
        a_dtype="e2m1x2" if case["a_dtype"] == "nvfp4" else case["a_dtype"],
        c_dtype=case["out_dtype"],
        b_is_packed=b_is_packed,
        batch_invariant=case.get("batch_invariant", False),
        **{name: case[name] for name in ("m", "n", "k", "l")},
    )
