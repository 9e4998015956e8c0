"""What the races of attention on FP8 were to show, and what they do show."""

from collections.abc import Callable, Iterator
from functools import partial
from statistics import geometric_mean

from tilewright.plot.accuracy import AccuracyResults, longest_to_shortest, to_per_tensor
from tilewright.plot.fp8 import Fp8Results
from tilewright.plot.goals import AT_LEAST, AT_MOST, Bound
from tilewright.plot.quantize import to_copy
from tilewright.plot.race_goals import RaceGoal
from tilewright.plot.results import LinesOfRace

SWEEP, ACCURACY, QUANTIZING = "attention-fp8", "accuracy-fp8", "rotate_quantize"
LONG = 8192
OUTLIERS_TO_PER_TENSOR = 0.385  # 1 / 2.6

SpeedGoal = partial(RaceGoal, Fp8Results)
AccuracyGoal = partial(RaceGoal, AccuracyResults)
Values = Callable[[Fp8Results], Iterator[float | None]]


def to_best_peer(results: Fp8Results) -> Iterator[float | None]:
    return map(results.to_best_peer, results.rows)


def long_tflops(head_dim: int) -> Values:
    """Of long sequences without a mask."""

    def values(results: Fp8Results) -> Iterator[float | None]:
        for row in results.rows:
            if row.head_dim == head_dim and not row.causal and row.seqlen >= LONG:
                ours = results.fastest(row, is_peer=False)
                yield ours and ours[1]

    return values


def k7_to_k6(results: Fp8Results) -> Iterator[float | None]:
    """At head dim 128 and the greatest length."""
    for row in results.rows:
        if (row.head_dim, row.seqlen) == (128, 16384):
            speeds = [results.tflops.get((row, impl)) for impl in ("k7", "k6")]
            yield speeds[0] / speeds[1] if all(speeds) else None


def accuracy_goals() -> Iterator[RaceGoal]:
    """Of kernels that promote their sums after each key tile, K7 having one descale a tensor. They
    hold for every number of keys."""
    for kernel in ("k8", "flash_fp8"):
        yield AccuracyGoal(f"`{kernel}`, outliers: most, error to `k7`'s", ACCURACY,
                           Bound(AT_MOST, OUTLIERS_TO_PER_TENSOR),
                           to_per_tensor(kernel, outliers=True), max)  # fmt: skip
        yield AccuracyGoal(f"`{kernel}`, normal values: most, error to `k7`'s", ACCURACY,
                           Bound(AT_MOST, 1),
                           to_per_tensor(kernel, outliers=False), max)  # fmt: skip
        yield AccuracyGoal(f"`{kernel}`: most, error at 128k to 1k", ACCURACY,
                           Bound(AT_MOST, 1.1), longest_to_shortest(kernel), max)  # fmt: skip


GOALS = [
    SpeedGoal("Production: geometric mean, to best peer", SWEEP,
              Bound(AT_LEAST, 1.08), to_best_peer, geometric_mean),
    SpeedGoal("Production: least, to best peer", SWEEP,
              Bound(AT_LEAST, 1), to_best_peer, min),
    SpeedGoal("Production, D 128 full from 8k: least TFLOP/s", SWEEP,
              Bound(AT_LEAST, 1100, ".0f"), long_tflops(128), min),
    SpeedGoal("Production, D 256 full from 8k: least TFLOP/s", SWEEP,
              Bound(AT_LEAST, 1300, ".0f"), long_tflops(256), min),
    SpeedGoal("`k7`, D 128, 16k: least, to `k6`", SWEEP,
              Bound(AT_LEAST, 1.25), k7_to_k6, min),
    RaceGoal(LinesOfRace, "Rotating and quantising: least, to a copy", QUANTIZING,
             Bound(AT_LEAST, 0.85), to_copy, min),
    *accuracy_goals(),
]  # fmt: skip
