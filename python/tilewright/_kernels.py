"""The kernel table."""

from dataclasses import dataclass, field
from typing import Any

from tilewright import _native


@dataclass(frozen=True)
class Kernel:
    """One kernel of the library, and whether this machine can run it."""

    name: str  # what attention(kernel=...) or gemm_nvfp4(kernel=...) takes
    operation: str  # "attention", "gemm_nvfp4", ...
    summary: str
    device: str  # where its tensors live: "cpu" or "cuda"
    architectures: tuple[int, ...]  # compute capabilities of its GPUs, 90 for Hopper; none on a CPU
    dtypes: tuple[str, ...]  # of the first input, of the output where inputs are codes
    # What it takes of other arguments, in words: {"head_dim": "64, 128"}
    limits: dict[str, str] = field(hash=False)
    alignment_bytes: int  # of base pointers and outer strides
    doc: str  # its page in the repository
    why_not: str | None  # why this machine cannot run it; None where it can
    variants: tuple["Kernel", ...] = ()  # its configs, each as a kernel of its own, to be measured

    def takes(self, argument: str) -> bool:
        """Whether it takes a feature, such as "window" of attention."""
        return self.limits.get(argument) != "none"


def kernels() -> list[Kernel]:
    """All kernels of this version, operation by operation, in ascending order of speed."""
    return [_kernel(**row) for row in _native.kernels()]


def _kernel(variants: list[dict[str, Any]], **row: Any) -> Kernel:
    return Kernel(**row, variants=tuple(Kernel(**variant) for variant in variants))


def find_kernel(name: str) -> Kernel:
    """The first of kernels() of that name."""
    return next(kernel for kernel in kernels() if kernel.name == name)


def flash_variant_of(case: dict[str, Any]) -> str:
    """The variant in which "flash" runs a results file's case on an H200."""
    return _native.variant_of("flash", problem_of(case), multiprocessors=132)


def nvfp4_variant_of(case: dict[str, Any]) -> str:
    """The variant in which "nvfp4" runs a results file's case on an H200."""
    problem = gemm_nvfp4_problem_of(case, b_is_packed=True)
    return _native.variant_of("nvfp4", problem, multiprocessors=132)


def problem_of(case: dict[str, Any]) -> _native.AttentionProblem:
    """The problem of a results file's case, its window, soft cap and sinks aside."""
    asked_for = ("window", "softcap", "sinks", "lengths")
    fields = {name: value for name, value in case.items() if name not in asked_for}
    return _native.AttentionProblem(**fields, packed="lengths" in case)


def fp8_problem_of(
    case: dict[str, Any], v_transposed: bool, descale_rows: int
) -> _native.AttentionFp8Problem:
    """The same of attention on FP8 with BF16 results."""
    names = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "v_dim", "causal")
    sizes = {name: case[name] for name in (*names, "lengths") if name in case}
    return _native.AttentionFp8Problem(
        problem_of(sizes | {"dtype": "bf16"}), v_transposed=v_transposed, descale_rows=descale_rows
    )


def kvcache_problem_of(case: dict[str, Any]) -> _native.AttentionWithKvCacheProblem:
    """The same of attention over KV caches: its window, soft cap, sinks and descales aside."""
    rows, capacity = case["batch"], case["kv_len"]
    if page_size := case["page_size"]:
        kv_lens = case.get("kv_lens") or [capacity] * case["batch"]
        pages = [-(-kv_len // page_size) for kv_len in kv_lens]
        rows, capacity = sum(pages), max(pages) * page_size
    fields = ("dtype", "cache_dtype", "batch", "q_len", "page_size", "heads", "kv_heads")
    return _native.AttentionWithKvCacheProblem(
        cache_rows=rows,
        capacity=capacity,
        packed="q_lens" in case,
        **{name: case[name] for name in (*fields, "head_dim", "v_dim", "causal")},
    )


def dsv4_problem_of(case: dict[str, Any]) -> _native.Dsv4AttentionProblem:
    """The same of DeepSeek-V4's attention. A model's window has a fixed length."""
    is_list = case.get("compressed_keys") == "list"
    return _native.Dsv4AttentionProblem(
        window=_dsv4_scope_of(case, "window", case["window"] + case["q_len"] - 1, is_bounded=True),
        compressed=_dsv4_scope_of(
            case,
            "compressed",
            case.get("context", 0),
            is_list=is_list,
            is_bounded=is_list,
        ),
        **{name: case[name] for name in _DSV4_FIELDS},
    )


_DSV4_FIELDS = ("dtype", "batch", "q_len", "heads", "sinks", "inverse_rope")


def _dsv4_scope_of(
    case: dict[str, Any], scope: str, rows: int, is_bounded: bool, is_list: bool = False
) -> _native.Dsv4ScopeProblem | None:
    """A scope whose cache has so many rows of each request; None if the case has none. If it is
    bounded, the call says that a token sees no more keys than the case has."""
    if not case[scope]:
        return None
    page_size = case[f"{scope}_page_size"]
    pages = -(-rows // page_size)
    return _native.Dsv4ScopeProblem(
        is_list=is_list,
        rows=case[f"{scope}_rows"],
        pages=case["batch"] * pages,
        page_size=page_size,
        most_keys=case[scope] if is_bounded else pages * page_size,
    )


def gemm_nvfp4_problem_of(case: dict[str, Any], b_is_packed: bool) -> _native.GemmNvfp4Problem:
    """The same of a GEMM with an NVFP4 weight."""
    return _native.GemmNvfp4Problem(
        a_dtype="e2m1x2" if case["a_dtype"] == "nvfp4" else case["a_dtype"],
        c_dtype=case["out_dtype"],
        b_is_packed=b_is_packed,
        batch_invariant=case.get("batch_invariant", False),
        **{name: case[name] for name in ("m", "n", "k", "l")},
    )


def gemm_bf16_problem_of(case: dict[str, Any]) -> _native.GemmBf16Problem:
    return _native.GemmBf16Problem(m=case["m"], n=case["n"], k=case["k"])
