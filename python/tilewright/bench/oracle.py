"""Attention's error against float64, on a few rows."""

import math
from typing import Any

from tilewright.bench.tensors import to_float64

HEADS = 2
ROWS = 256


def errors(case: Any, inputs: Any, output: Any) -> tuple[float, float]:
    """(relative Frobenius error, largest absolute error) of the first and last head of the first
    batch, or of the first and last packed sequence; of ROWS rows, against all their keys."""
    import numpy

    difference, norm, largest = 0.0, 0.0, 0.0
    for sequence in _sequences(case):
        q_len, kv_len = len(inputs.q[sequence]), len(inputs.k[sequence])
        rows = numpy.unique(numpy.linspace(0, q_len - 1, min(ROWS, q_len)).astype(int))
        last_keys = rows + kv_len - q_len if case.causal else None
        for head in sorted({0, case.heads - 1})[:HEADS]:
            kv_head = head // (case.heads // case.kv_heads)
            q, o = (to_float64(t[sequence][:, head])[rows] for t in (inputs.q, output))
            k, v = (to_float64(t[sequence][:, kv_head]) for t in (inputs.k, inputs.v))
            expected = _attention(q, k, v, last_keys)
            difference += float(((o - expected) ** 2).sum())
            norm += float((expected**2).sum())
            largest = max(largest, float(abs(o - expected).max()))
    return math.sqrt(difference / norm) if norm else math.sqrt(difference), largest


def _sequences(case: Any) -> list[Any]:
    """Where those that are checked lie in a tensor's first dimension."""
    if not case.lengths:
        return [0]
    tokens = sum(case.lengths)
    return [slice(case.lengths[0]), slice(tokens - case.lengths[-1], tokens)]


def _attention(q: Any, k: Any, v: Any, last_keys: Any) -> Any:
    """One head in float64; row i sees keys up to last_keys[i], or all of them."""
    import numpy

    scores = q @ k.T / math.sqrt(q.shape[1])
    if last_keys is not None:
        scores[numpy.arange(len(k)) > last_keys[:, None]] = -numpy.inf
    largest = scores.max(axis=1, keepdims=True)
    weights = numpy.exp(scores - numpy.where(numpy.isfinite(largest), largest, 0.0))
    total = weights.sum(axis=1, keepdims=True)
    return weights @ v / numpy.where(total == 0, 1.0, total)
