"""GEMMs: the tables of a race and its plot, speed against the number of tokens."""

import itertools
import math
import pathlib
from dataclasses import dataclass
from functools import cached_property
from statistics import geometric_mean
from typing import Any

from tilewright.plot.figures import colors_of, finish, marker_of, new_figure
from tilewright.plot.results import LinesOfRace, short_name
from tilewright.plot.text import markdown, number, ratio

ACTIVATIONS = {"bf16": "BF16", "fp16": "FP16", "nvfp4": "NVFP4"}


@dataclass(frozen=True, order=True)
class Gemm:
    """One case."""

    activations: str
    out_dtype: str
    n: int
    k: int
    m: int
    batch_invariant: bool = False
    rmsnorm: bool = False

    @staticmethod
    def of(case: dict[str, Any]) -> "Gemm":
        features = (case.get(name, False) for name in ("batch_invariant", "rmsnorm"))
        sizes = (case["n"], case["k"], case["m"])
        return Gemm(case["a_dtype"], case["out_dtype"], *sizes, *features)

    @property
    def kind(self) -> str:
        """What is multiplied, in words."""
        activations = ACTIVATIONS[self.activations]
        result = "" if self.activations == self.out_dtype else f", result in {self.out_dtype}"
        invariant = ", batch-invariant" * self.batch_invariant
        return (
            f"{'RMSNorm, a' if self.rmsnorm else 'A'}ctivations in {activations}{result}{invariant}"
        )

    @property
    def weight(self) -> str:
        return f"{self.n} × {self.k}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def weight_bytes(self) -> float:
        return self.n * self.k * 9 / 16


class GemmResults(LinesOfRace):
    """The lines of one GEMM results file, in its order; of two of the same the last counts."""

    @cached_property
    def times_us(self) -> dict[tuple[Gemm, str], float]:
        """(GEMM, short name) -> median, for all that could run."""
        return {
            (Gemm.of(line["case"]), short_name(line["impl"])): line["median_us"]
            for line in self.lines
            if line["supported"]
        }

    @cached_property
    def kinds(self) -> dict[str, list[Gemm]]:
        """GEMMs of each kind: kinds and weights in the file's order, a weight's by M."""
        gemms = dict.fromkeys(Gemm.of(line["case"]) for line in self.lines)
        weights = list(dict.fromkeys(gemm.weight for gemm in gemms))
        kinds: dict[str, list[Gemm]] = {gemm.kind: [] for gemm in gemms}
        for gemm in sorted(gemms, key=lambda p: (weights.index(p.weight), p.m)):
            kinds[gemm.kind].append(gemm)
        return kinds

    def best_us(self, gemm: Gemm, impls: list[str]) -> float | None:
        measured = [self.times_us.get((gemm, impl)) for impl in impls]
        return min((time for time in measured if time), default=None)

    @property
    def ours(self) -> list[str]:
        return [impl for impl in self.impls if impl not in self.peers]

    def speedup(self, gemm: Gemm) -> float | None:
        """The fastest peer's time over that of the fastest of ours, where both ran."""
        ours, peers = self.best_us(gemm, self.ours), self.best_us(gemm, self.peers)
        return peers / ours if ours and peers else None

    def speed(self, gemm: Gemm, impl: str, baseline: str | None) -> float | None:
        """The baseline's time over that of `impl`, where both ran; without a baseline TFLOP/s."""
        time = self.times_us.get((gemm, impl))
        if baseline is None:
            return gemm.flops / time * 1e-6 if time else None
        baseline_us = self.times_us.get((gemm, baseline))
        return baseline_us / time if time and baseline_us else None


def gemm_table(path: pathlib.Path) -> str:
    """µs: a table for each kind of activations, a row a case, a column an implementation. Beside
    peers, the ratio to the best of them and how fast ours reads the weight."""
    results = GemmResults.read(path)
    tables = []
    for kind, gemms in results.kinds.items():
        tables += [f"{kind}:", _table_of(results, gemms)]
        speedups = [s for s in map(results.speedup, gemms) if s]
        if speedups:
            mean = ratio(geometric_mean(speedups))
            of_all = f"Geometric mean of the ratios to the best peer, {len(speedups)} points"
            tables.append(f"{of_all}: {mean}.")
    return "\n\n".join([*tables, f"µs, medians. {results.provenance}."])


def gemm_configs_table(path: pathlib.Path) -> str:
    """µs of nvfp4's variants, a table for each weight. The one that the plan takes is in
    bold."""
    from tilewright._kernels import nvfp4_variant_of  # the compiled plan

    results = GemmResults.read(path)
    chosen = {Gemm.of(line["case"]): nvfp4_variant_of(line["case"]) for line in results.lines}
    tables = []
    for weight in dict.fromkeys(gemm.weight for gemm in chosen):
        body = []
        for gemm in (gemm for gemm in chosen if gemm.weight == weight):
            times = {impl: number(results.times_us.get((gemm, impl))) for impl in results.impls}
            times[chosen[gemm]] = f"**{times[chosen[gemm]]}**"
            body.append([str(gemm.m), *times.values()])
        header = [f"{weight}, M", *(f"`{impl}`" for impl in results.impls)]
        tables.append(markdown(header, body, 0))
    return "\n\n".join([*tables, f"µs, medians. {results.provenance}."])


def _table_of(results: GemmResults, gemms: list[Gemm]) -> str:
    impls = [i for i in results.impls if any((p, i) in results.times_us for p in gemms)]
    has_peers = any(impl in results.peers for impl in impls)
    header = ["N × K", "M", *(f"`{impl}`" for impl in impls)]
    header += ["to best peer", "weight, GB/s"] * has_peers
    body = []
    for gemm in gemms:
        cells = [number(results.times_us.get((gemm, impl))) for impl in impls]
        if has_peers:
            ours_us = results.best_us(gemm, results.ours)
            speed = gemm.weight_bytes / ours_us * 1e-3 if ours_us else None
            cells += [ratio(results.speedup(gemm)), number(speed)]
        body.append([gemm.weight, str(gemm.m), *cells])
    return markdown(header, body)


def plot_gemm(results: GemmResults, stem: pathlib.Path) -> list[pathlib.Path]:
    """Writes STEM.png and STEM.svg: beside peers the speed relative to the first of them, for its
    range is small enough for a linear axis; without, TFLOP/s."""
    baseline = results.peers[0] if results.peers else None
    kinds = list(results.kinds.values())
    weights = list(dict.fromkeys(p.weight for gemms in kinds for p in gemms))
    panels = [[p for p in gemms if p.weight == weight] for weight in weights for gemms in kinds]
    columns = len(kinds) if len(kinds) > 1 else min(len(weights), 2)
    figure, axes = new_figure(math.ceil(len(panels) / columns), columns)
    for panel, gemms in itertools.zip_longest(axes.flat, panels):
        if gemms:
            panel.set_title(f"{gemms[0].weight}\n{gemms[0].kind}", fontsize="medium")
            _draw_panel(panel, results, gemms, baseline)
        else:
            panel.set_visible(False)
    speed = f"speed, {baseline} = 1" if baseline else "TFLOP/s"
    return finish(figure, axes, ("tokens (M)", speed), results, stem)


def _draw_panel(panel: Any, results: GemmResults, gemms: list[Gemm], baseline: str | None) -> None:
    colors = colors_of(results)
    for impl in results.impls:
        speeds = [(p.m, results.speed(p, impl, baseline)) for p in gemms]
        points = [(m, speed) for m, speed in speeds if speed]
        if points:
            panel.plot(*zip(*points, strict=True), color=colors[impl], markersize=4.5,
                       marker=marker_of(results, impl), fillstyle="none", label=impl)  # fmt: skip
