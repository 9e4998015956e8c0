"""Attention in float64, of all rows or a sample of them, by PyTorch on the tensors' device
or by NumPy."""

import math
from dataclasses import dataclass
from typing import Any

from tilewright.bench.case import Errors
from tilewright.bench.tensors import in_float64, indices, library_of

MOST_SCORES = 1 << 27  # at a time: 1 GiB


@dataclass(frozen=True)
class Expected:
    """A tensor for each sequence."""

    outs: list[Any]  # (q_len, heads, v_dim)
    lses: list[Any]  # (heads, q_len)
    rows: Any = None  # the rows of each sequence that these are of, ascending; None: all

    def of_out(self, out: Any) -> Any:
        """These rows of a sequence's result, in float64."""
        out = in_float64(out)
        return out if self.rows is None else out[self.rows]

    def of_lse(self, lse: Any) -> Any:
        lse = in_float64(lse)
        return lse if self.rows is None else lse[:, self.rows]


def expect(case: Any, inputs: Any, rows: Any = None) -> Expected:
    """Of inputs whose sequences() are (q, k, v), each of one sequence; of all rows, or of these."""
    results = [_attention(case, inputs, *qkv, rows) for qkv in inputs.sequences()]
    outs, lses = zip(*results, strict=True)
    return Expected(list(outs), list(lses), rows)


def errors(
    case: Any, expected: Expected, output: Any, lse: Any, *, of_worst_sequence: bool = False
) -> Errors:
    """Of all rows; of their LSE too where there is one. The relative error is of all together, or
    the largest of a sequence."""
    squares, largest = [], []
    for exact, found in zip(expected.outs, by_sequence(case, output, axis=0), strict=True):
        error = expected.of_out(found) - exact
        squares.append((float((error**2).sum()), float((exact**2).sum())))
        largest.append(float(abs(error).max()))
    if not of_worst_sequence:
        squares = [tuple(map(sum, zip(*squares, strict=True)))]
    rel_fro, max_abs = _largest([_relative(*pair) for pair in squares]), _largest(largest)
    if lse is None:
        return Errors(rel_fro, max_abs)
    lses = zip(expected.lses, by_sequence(case, lse, axis=1), strict=True)
    lse_errors = [_lse_error(exact, expected.of_lse(found)) for exact, found in lses]
    return Errors(rel_fro, max_abs, _largest(lse_errors))


def _relative(error: float, norm: float) -> float:
    """Of sums of squares."""
    return math.sqrt(error / norm) if norm else math.sqrt(error)


def _largest(values: list[float]) -> float:
    return math.nan if any(map(math.isnan, values)) else max(values)


def _lse_error(exact: Any, found: Any) -> float:
    """The largest, as Errors.lse says. Rows without a key have -inf, exactly."""
    where, is_same = library_of(found).where, found == exact
    exact, found = (where(is_same, 0.0, lse) for lse in (exact, found))
    return float((abs(found - exact) / (1 + abs(_finite(exact)) / 10)).max())


def by_sequence(case: Any, tensor: Any, axis: int) -> list[Any]:
    """Each sequence's part; packed sequences lie along `axis`, others along the first."""
    if not case.lengths:
        return list(tensor)
    parts, end = [], 0
    for length in case.lengths:
        begin, end = end, end + length
        parts.append(tensor[begin:end] if axis == 0 else tensor[:, begin:end])
    return parts


def _attention(case: Any, inputs: Any, q: Any, k: Any, v: Any, rows: Any = None) -> tuple[Any, Any]:
    """(out, lse) of one sequence, or of these rows of it, some rows of all heads at a time."""
    xp = library_of(q)
    keys = xp.moveaxis(in_float64(k), 0, 2)  # (kv_heads, head_dim, kv_len)
    values = xp.moveaxis(in_float64(v), 0, 1)  # (kv_heads, kv_len, v_dim)
    count = max(1, MOST_SCORES // (case.heads * len(k)))
    parts = []
    rows = indices(len(q), q) if rows is None else rows
    for first in range(0, len(rows), count):
        part = rows[first : first + count]
        at = part + len(k) - len(q)  # the keys at which the rows stand
        begin, end = _reach(case, int(at[0]), int(at[-1]), len(k))
        seen = _seen(case, at, begin + indices(end - begin, q))
        parts.append(
            _rows(case, inputs, q[part], keys[:, :, begin:end], values[:, begin:end], seen)
        )
    outs, lses = zip(*parts, strict=True)
    return xp.concatenate(outs, 0), xp.concatenate(lses, 1)


def _rows(case: Any, inputs: Any, q: Any, keys: Any, values: Any, seen: Any) -> tuple[Any, Any]:
    """(out, lse) of some rows of a sequence, and of the keys that any of them sees."""
    xp = library_of(q)
    q = in_float64(q) / math.sqrt(case.head_dim)
    grouped = xp.moveaxis(q, 1, 0).reshape(case.kv_heads, -1, case.head_dim)
    scores = (grouped @ keys).reshape(case.heads, len(q), -1)
    if case.softcap:
        scores = case.softcap * xp.tanh(scores / case.softcap)
    if seen is not None:
        scores = xp.where(seen, scores, -math.inf)

    lse = _log_sum_exp(scores)
    if inputs.sinks is not None:
        lse = xp.logaddexp(lse, in_float64(inputs.sinks)[:, None])
    weights = xp.exp(scores - _finite(lse)[..., None])
    out = weights.reshape(case.kv_heads, -1, scores.shape[2]) @ values
    return xp.moveaxis(out.reshape(case.heads, len(q), -1), 0, 1), lse


def _reach(case: Any, first: int, last: int, kv_len: int) -> tuple[int, int]:
    """A range of keys, one at least, outside of which rows from key `first` to `last` see none."""
    left, right = case.sides
    begin = 0 if left is None else min(max(0, first - left), kv_len - 1)
    end = kv_len if right is None else min(last + 1 + right, kv_len)
    return begin, max(end, begin + 1)


def _seen(case: Any, at: Any, keys: Any) -> Any:
    """(rows, keys), of rows that are at these keys; None where each sees all."""
    left, right = case.sides
    if left is None and right is None:
        return None
    every = case.q_len + case.kv_len
    offsets = keys - at[:, None]
    is_left = offsets >= -(every if left is None else left)
    return is_left & (offsets <= (every if right is None else right))


def _log_sum_exp(scores: Any) -> Any:
    xp = library_of(scores)
    largest = xp.amax(scores, -1)
    total = xp.exp(scores - _finite(largest)[..., None]).sum(-1)
    empty = total == 0
    return xp.where(empty, -math.inf, xp.log(total + empty) + _finite(largest))


def _finite(values: Any) -> Any:
    """0 in the place of -inf: of rows that see no key."""
    return library_of(values).where(values == -math.inf, 0.0, values)
