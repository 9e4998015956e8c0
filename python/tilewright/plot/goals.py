"""What the race of NVFP4 GEMMs was to show, and what it does show."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence
from statistics import geometric_mean

from tilewright.plot.gemm import Gemm, GemmResults
from tilewright.plot.text import markdown

WEIGHTS = ((7168, 16384), (4096, 7168), (7168, 2048), (8192, 8192))  # N, K
TOKENS = (1, 16, 64, 128, 256, 1024, 4096)
FEW, MANY = (1, 16), (1024, 4096)
AT_LEAST, AT_MOST = "at least", "at most"


@dataclasses.dataclass(frozen=True)
class Bound:
    word: str
    value: float
    format: str = ".3f"

    def cells(self, reached: float | None) -> list[str]:
        """What is asked for, what is reached, and whether that is enough."""
        asked = f"{self.word} {self.value:g}"
        if reached is None:
            return [asked, "—", "—"]
        is_met = reached >= self.value if self.word == AT_LEAST else reached <= self.value
        return [asked, f"{reached:{self.format}}", "yes" if is_met else "no"]


@dataclasses.dataclass(frozen=True)
class Goal:
    """A bound on one number, which is made of a value of each of several points."""

    name: str
    points: list[Gemm]
    bound: Bound
    value: Callable[[GemmResults, Gemm], float | None]
    number: Callable[[list[float]], float]

    def cells(self, results: GemmResults) -> list[str]:
        """A row of the table; of points without results there is but the count."""
        values = [v for point in self.points if (v := self.value(results, point)) is not None]
        missing = f" of {len(self.points)}" if len(values) < len(self.points) else ""
        cells = [self.name, f"{len(values)}{missing}"]
        return cells + self.bound.cells(self.number(values) if values else None)


def goals_table(path: pathlib.Path) -> str:
    """A row a goal: how many points it is of, what is asked for, what is reached."""
    results = GemmResults.read(path)
    header = ["", "points", "goal", "reached", "met"]
    return markdown(header, [goal.cells(results) for goal in GOALS])


def ours_us(results: GemmResults, point: Gemm) -> float | None:
    return results.best_us(point, results.ours)


def to_cublas(results: GemmResults, point: Gemm) -> float | None:
    ours, cublas = ours_us(results, point), results.best_us(point, ["cublas"])
    return cublas / ours if ours and cublas else None


def above_bf16_us(results: GemmResults, point: Gemm) -> float | None:
    """How much longer it takes than with activations in BF16."""
    ours = ours_us(results, point)
    bf16 = ours_us(results, dataclasses.replace(point, activations="bf16"))
    return ours - bf16 if ours and bf16 else None


def count_behind(ratios: list[float]) -> int:
    return sum(ratio < 1 for ratio in ratios)


def points(
    activations: str,
    tokens: Sequence[int] = TOKENS,
    weights: Sequence[tuple[int, int]] = WEIGHTS,
) -> list[Gemm]:
    result = "fp16" if activations == "fp16" else "bf16"
    return [Gemm(activations, result, n, k, m) for n, k in weights for m in tokens]


def one_point(m: int, weight: tuple[int, int], what: str) -> tuple[str, list[Gemm]]:
    """A point and the name of a goal of it alone."""
    (point,) = points("bf16", [m], [weight])
    return f"BF16, {point.weight}, M {m}: {what}", [point]


def goals_of_points() -> Iterator[Goal]:
    """Those of the two large weights where tokens are few."""
    first, *_, last = WEIGHTS
    for m in FEW:
        yield Goal(*one_point(m, first, "µs"), Bound(AT_MOST, 21, ".1f"), ours_us, max)
    for weight in (first, last):
        for m in (64, 128):
            name, point = one_point(m, weight, "to best peer")
            yield Goal(name, point, Bound(AT_LEAST, 1.4), GemmResults.speedup, min)


GOALS = [
    Goal("BF16: geometric mean, to best peer", points("bf16"), Bound(AT_LEAST, 1.25),
         GemmResults.speedup, geometric_mean),
    Goal("BF16: behind the best peer", points("bf16"), Bound(AT_MOST, 0, ".0f"),
         GemmResults.speedup, count_behind),
    Goal("FP16: behind the best peer", points("fp16"), Bound(AT_MOST, 0, ".0f"),
         GemmResults.speedup, count_behind),
    *goals_of_points(),
    Goal("BF16, M 1024 and 4096: least, to cuBLAS", points("bf16", MANY), Bound(AT_LEAST, 0.97),
         to_cublas, min),
    Goal("NVFP4, M 1024 and 4096: least, to cuBLAS", points("nvfp4", MANY), Bound(AT_LEAST, 0.85),
         to_cublas, min),
    Goal("NVFP4, M 1 and 16: most µs above BF16", points("nvfp4", FEW), Bound(AT_MOST, 0, ".1f"),
         above_bf16_us, max),
]  # fmt: skip
