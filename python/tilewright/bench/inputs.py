"""Attention's random inputs, and what they should give."""

import itertools
import random
from functools import cached_property
from typing import Any

from tilewright.bench import oracle
from tilewright.bench.tensors import constant, normal


class AttentionInputs:
    """q        (batch, q_len, heads, head_dim); packed: (q_len, heads, head_dim)
    k, v     (batch, kv_len, kv_heads, head_dim or v_dim), or likewise
    cu_seqlens
             (sequences + 1,) int32 where packed, of q and of k and v; else None
    sinks    (heads,) fp32, of values that BF16 has too; None without them
    """

    def __init__(self, case: Any, seed: int):
        self.case = case
        batch = () if case.lengths else (case.batch,)
        shapes = [
            (*batch, case.q_len, case.heads, case.head_dim),
            (*batch, case.kv_len, case.kv_heads, case.head_dim),
            (*batch, case.kv_len, case.kv_heads, case.v_dim),
        ]
        self.q, self.k, self.v = normal(shapes, case.dtype, case.device, seed)
        ends = list(itertools.accumulate(case.lengths, initial=0))
        self.cu_seqlens = constant(ends, "int32", case.device) if case.lengths else None
        eighths = [random.Random(seed + head).randint(-16, 16) for head in range(case.heads)]
        sinks = [eighth / 8 for eighth in eighths]
        self.sinks = constant(sinks, "fp32", case.device) if case.sinks else None

    @cached_property
    def expected(self) -> oracle.Expected:
        return oracle.expect(self.case, self)
