"""The kernel table."""

from dataclasses import dataclass

from tilewright import _native


@dataclass(frozen=True)
class Kernel:
    """One kernel of the library, and whether this machine can run it."""

    name: str  # what attention(kernel=...) takes
    operation: str
    summary: str
    device: str  # where its tensors live: "cpu" or "cuda"
    compute_capability: int  # the GPU it is built for, 90 for Hopper; 0 on the CPU
    dtypes: tuple[str, ...]  # of "fp32", "fp16", "bf16"
    head_dims: tuple[tuple[int, int], ...]  # of q and k, and of v; empty: any
    features: tuple[str, ...]  # of "window", "softcap", "sinks", "packed", "unnormalized"
    alignment_bytes: int  # of base pointers and outer strides
    doc: str  # its page in the repository
    why_not: str | None  # why this machine cannot run it; None where it can


def kernels() -> list[Kernel]:
    """All kernels of this version, in ascending order of speed."""
    return [Kernel(**row, why_not=_native.why_not(row["name"])) for row in _native.kernels()]
