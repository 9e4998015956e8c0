"""Attention's random inputs."""

import itertools
from dataclasses import dataclass
from typing import Any

from tilewright.bench.tensors import constant, normal


@dataclass(frozen=True)
class AttentionInputs:
    q: Any  # (batch, q_len, heads, head_dim); packed: (q_len, heads, head_dim)
    k: Any  # (batch, kv_len, kv_heads, head_dim), or likewise
    v: Any  # (batch, kv_len, kv_heads, v_dim), or likewise
    cu_seqlens: Any = None  # (sequences + 1,) int32 where packed, of q and of k and v


def make_inputs(case: Any, seed: int) -> AttentionInputs:
    batch = () if case.lengths else (case.batch,)
    shapes = [
        (*batch, case.q_len, case.heads, case.head_dim),
        (*batch, case.kv_len, case.kv_heads, case.head_dim),
        (*batch, case.kv_len, case.kv_heads, case.v_dim),
    ]
    tensors = normal(shapes, case.dtype, case.device, seed)
    ends = list(itertools.accumulate(case.lengths, initial=0))
    return AttentionInputs(*tensors, constant(ends, "int32", case.device) if case.lengths else None)
