"""Attention's random inputs, and what they should give."""

import itertools
import random
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tilewright.bench import oracle
from tilewright.bench.tensors import constant, normal


class AttentionInputs:
    """q        (batch, q_len, heads, head_dim); packed: (q_len, heads, head_dim)
    k, v     (batch, kv_len, kv_heads, head_dim or v_dim), or likewise
    cu_seqlens
             (sequences + 1,) int32 where packed, of q and of k and v; else None
    sinks    as random_sinks() gives them; None without them
    """

    def __init__(self, case: Any, seed: int):
        self.case = case
        batch = () if case.lengths else (case.batch,)
        shapes = [
            (*batch, case.q_len, case.heads, case.head_dim),
            (*batch, case.kv_len, case.kv_heads, case.head_dim),
            (*batch, case.kv_len, case.kv_heads, case.v_dim),
        ]
        self.q, self.k, self.v = self._random(shapes, seed)
        ends = list(itertools.accumulate(case.lengths, initial=0))
        self.cu_seqlens = constant(ends, "int32", case.device) if case.lengths else None
        self.sinks = random_sinks(case, seed) if case.sinks else None

    def _random(self, shapes: list[tuple[int, ...]], seed: int) -> list[Any]:
        return normal(shapes, self.case.dtype, self.case.device, seed)

    def sequences(self) -> Iterator[tuple[Any, Any, Any]]:
        """(q, k, v) of each."""
        tensors = (self.q, self.k, self.v)
        parts = (oracle.by_sequence(self.case, tensor, axis=0) for tensor in tensors)
        return zip(*parts, strict=True)

    @cached_property
    def expected(self) -> oracle.Expected:
        return oracle.expect(self.case, self)


def random_sinks(case: Any, seed: int) -> Any:
    """(heads,) fp32, of values that BF16 has too."""
    eighths = [random.Random(seed + head).randint(-16, 16) for head in range(case.heads)]
    return constant([eighth / 8 for eighth in eighths], "fp32", case.device)
