"""What the races of DeepSeek-V4's attention were to show, and what they do show."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tilewright.plot.dsv4 import FLASH, LATENT, PRO, Dsv4Problem, Dsv4Results
from tilewright.plot.goals import AT_LEAST, AT_MOST, Bound
from tilewright.plot.quantize import to_copy
from tilewright.plot.race_goals import RaceGoal
from tilewright.plot.results import LinesOfRace

DECODE = "dsv4-decode"
ROWS_OF_PEER = ("e4m3_bf16",)
MANY = 128  # requests from which on computing is the limit

Dsv4Goal = partial(RaceGoal, Dsv4Results)
Values = Callable[[Dsv4Results], Iterator[float | None]]
Chosen = Callable[[Dsv4Problem], bool]


def _is_flash(case: Dsv4Problem, heads: int = 64) -> bool:
    return (case.keys, case.heads, case.q_len) == (FLASH, heads, 1)


def flash(*batches: int) -> Chosen:
    return lambda case: _is_flash(case) and case.batch in batches


def two_tokens(keys: tuple[int, int], heads: int) -> Chosen:
    return lambda case: (case.keys, case.heads, case.q_len) == (keys, heads, 2)


def few_heads(case: Dsv4Problem) -> bool:
    return case.heads < 64 and case.batch >= 32


def every(case: Dsv4Problem) -> bool:
    return True


def to_peer(chosen: Chosen) -> Values:
    """How many times as fast as the peer, whose heads are padded."""

    def values(results: Dsv4Results) -> Iterator[float | None]:
        for case in filter(chosen, results.cases):
            if results.best_us(case, results.peers):
                yield results.to_best_peer(case)

    return values


def to_other(chosen: Chosen, **others: Any) -> Values:
    """The time of ours over that of ours in the same case with these fields."""

    def values(results: Dsv4Results) -> Iterator[float | None]:
        for case in filter(chosen, results.cases):
            same = dataclasses.replace(case, **others)
            times = [results.ours_us(each) for each in (case, same)]
            yield times[0] / times[1] if all(times) else None

    return values


def of_rows(*formats: str, batch: int = 1) -> Chosen:
    return lambda case: case.rows in [(f,) for f in formats] and case.batch >= batch


def rotated_back(case: Dsv4Problem) -> bool:
    return case.inverse_rope


def fewer_heads(case: Dsv4Problem) -> bool:
    return case.heads < 64


def latent_us(heads: int) -> Values:
    def values(results: Dsv4Results) -> Iterator[float | None]:
        for case in results.cases:
            if (case.keys, case.heads, case.batch) == (LATENT, heads, 1):
                yield results.ours_us(case)

    return values


GOALS = [
    Dsv4Goal("Flash, batch 128: to FlashMLA", DECODE,
             Bound(AT_LEAST, 2), to_peer(flash(128)), min),
    Dsv4Goal("Flash, batch 32: to FlashMLA", DECODE,
             Bound(AT_LEAST, 1.7), to_peer(flash(32)), min),
    Dsv4Goal("Flash, batch 1 and 8: least, to FlashMLA", DECODE,
             Bound(AT_LEAST, 1.5), to_peer(flash(1, 8)), min),
    Dsv4Goal("Flash, two tokens, batch 128: to FlashMLA", DECODE,
             Bound(AT_LEAST, 2), to_peer(two_tokens(FLASH, 64)), min),
    Dsv4Goal("Pro, two tokens, batch 64: to FlashMLA", DECODE,
             Bound(AT_LEAST, 1.4), to_peer(two_tokens(PRO, 128)), min),
    Dsv4Goal("Every case: least, to FlashMLA", DECODE,
             Bound(AT_LEAST, 1), to_peer(every), min),
    Dsv4Goal("8 to 32 heads, batch 32 or more: least, to FlashMLA", DECODE,
             Bound(AT_LEAST, 2.2), to_peer(few_heads), min),
    Dsv4Goal("8 to 32 heads: most, time to 64 heads", DECODE,
             Bound(AT_MOST, 1), to_other(fewer_heads, heads=64), max),
    Dsv4Goal("BF16 rows, batch 128: most, time to 584 bytes", DECODE,
             Bound(AT_MOST, 1), to_other(of_rows("bf16", batch=MANY), rows=ROWS_OF_PEER), max),
    Dsv4Goal("528 and 288 bytes: most, time to 584 bytes", DECODE,
             Bound(AT_MOST, 1), to_other(of_rows("e4m3", "e2m1"), rows=ROWS_OF_PEER), max),
    Dsv4Goal("HCA at 1M, 64 heads: µs", DECODE,
             Bound(AT_MOST, 12, ".1f"), latent_us(64), max),
    Dsv4Goal("HCA at 1M, 128 heads: µs", DECODE,
             Bound(AT_MOST, 14, ".1f"), latent_us(128), max),
    Dsv4Goal("Inverse RoPE: most, time to without", DECODE,
             Bound(AT_MOST, 1.03), to_other(rotated_back, inverse_rope=False), max),
    RaceGoal(LinesOfRace, "`quantize_kv_rows`: least, to a copy", "quantize_kv_rows",
             Bound(AT_LEAST, 0.85), to_copy, min),
]  # fmt: skip
