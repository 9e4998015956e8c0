"""Attention's random inputs: PyTorch's tensors where it is there, NumPy's arrays elsewhere."""

import itertools
import sys
from dataclasses import dataclass
from typing import Any

LIBRARY_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}


@dataclass(frozen=True)
class AttentionInputs:
    q: Any  # (batch, q_len, heads, head_dim); packed: (q_len, heads, head_dim)
    k: Any  # (batch, kv_len, kv_heads, head_dim), or likewise
    v: Any  # (batch, kv_len, kv_heads, v_dim), or likewise
    cu_seqlens: Any = None  # (sequences + 1,) int32 where packed, of q and of k and v


def make_inputs(case: Any, seed: int) -> AttentionInputs:
    batch = () if case.lengths else (case.batch,)
    shapes = (
        (*batch, case.q_len, case.heads, case.head_dim),
        (*batch, case.kv_len, case.kv_heads, case.head_dim),
        (*batch, case.kv_len, case.kv_heads, case.v_dim),
    )
    ends = list(itertools.accumulate(case.lengths, initial=0)) if case.lengths else None
    make = _of_torch if "torch" in sys.modules else _of_numpy
    return AttentionInputs(*make(shapes, ends, case.dtype, case.device, seed))


def _of_torch(shapes: Any, ends: Any, dtype: str, device: str, seed: int) -> list[Any]:
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)
    torch_dtype = getattr(torch, LIBRARY_DTYPES[dtype])
    tensors = [
        torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(torch_dtype)
        for shape in shapes
    ]
    return [*tensors, ends and torch.tensor(ends, dtype=torch.int32, device=device)]


def _of_numpy(shapes: Any, ends: Any, dtype: str, device: str, seed: int) -> list[Any]:
    import numpy

    if dtype == "bf16":
        import ml_dtypes  # noqa: F401  (it gives NumPy the dtype)
    generator = numpy.random.default_rng(seed)
    arrays = [
        generator.standard_normal(shape, numpy.float32).astype(LIBRARY_DTYPES[dtype])
        for shape in shapes
    ]
    return [*arrays, ends and numpy.array(ends, numpy.int32)]
