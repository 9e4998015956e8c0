"""How fast the library is beside the best peer, at one glance: a figure of an attention race and of
a race of GEMMs with NVFP4 weights, and its caption."""

import itertools
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import geometric_mean
from typing import Any

from tilewright.plot.figures import plain_length, pyplot, save, set_lengths, set_speeds
from tilewright.plot.gemm import Gemm, GemmResults
from tilewright.plot.results import LinesOfRace, Results, Row
from tilewright.plot.text import ratio

KIND = "Activations in BF16"
NAMES = {"cudnn": "cuDNN", "fa3": "FlashAttention-3", "cublas": "cuBLAS", "humming": "Humming",
         "humming_search": "Humming"}  # fmt: skip
BAR_COLORS = ("#d0d5dc", "#4c3a8f")  # up to the best peer's speed, and above it
LINE_COLORS = ("#1f78b4", "#1b9e77", "#d9730d", "#c2307a")
MARKERS = "osD^"


@dataclass(frozen=True)
class Headline:
    """The two races."""

    attention: Results
    gemm: GemmResults

    @staticmethod
    def read(races: list[pathlib.Path]) -> "Headline":
        attention, gemm = races
        return Headline(Results.read(attention), GemmResults.read(gemm))

    def shapes(self) -> dict[Row, float]:
        """Each shape's speed relative to the best peer."""
        return _known((row, self.attention.to_best_peer(row)) for row in self.attention.rows)

    def gemms(self) -> dict[Gemm, float]:
        """The same of each GEMM whose best peer is known."""
        gaps = self.gaps()
        timed = [gemm for gemm in self.gemm.kinds.get(KIND, []) if gemm not in gaps]
        return _known((gemm, self.gemm.speedup(gemm)) for gemm in timed)

    def gaps(self) -> list[Gemm]:
        """GEMMs on which a peer was not timed, although it was with fewer and with more tokens. The
        best peer may be faster than the best of those that were."""
        gemms = self.gemm.kinds.get(KIND, [])
        return [p for p in gemms if any(self._skipped(p, peer) for peer in self.gemm.peers)]

    def _skipped(self, gemm: Gemm, peer: str) -> bool:
        own = [p for p in self.gemm.kinds[KIND] if p.weight == gemm.weight]
        timed = [p.m for p in own if (p, peer) in self.gemm.times_us]
        return gemm.m not in timed and bool(timed) and min(timed) < gemm.m < max(timed)


def _known(speeds: Iterable[tuple[Any, float | None]]) -> dict[Any, float]:
    return {case: speed for case, speed in speeds if speed}


def headline_caption(races: list[pathlib.Path]) -> str:
    """Both geometric means, against whom and where, in a line."""
    headline = Headline.read(races)
    shapes, gemms = headline.shapes(), headline.gemms()
    tokens = sorted({gemm.m for gemm in headline.gaps()})
    gaps = f" (without M {', '.join(map(str, tokens))}, where not every peer was timed)"
    attention = f"{_mean(shapes)} × the best of {_peers(headline.attention)}"
    gemm = f"{_mean(gemms)} × the best of {_peers(headline.gemm)}"
    both = LinesOfRace(headline.attention.lines + headline.gemm.lines)
    return (
        f"Geometric means: attention {attention} on {len(shapes)} shapes; GEMMs with NVFP4 weights "
        f"and BF16 activations {gemm} on {len(gemms)} shapes{gaps if tokens else ''}. Peers: "
        f"{_versions(both)}. {both.provenance}."
    )


def _mean(speeds: dict[Any, float]) -> str:
    return ratio(geometric_mean(speeds.values()) if speeds else None)


def _peers(race: LinesOfRace) -> str:
    return " and ".join(dict.fromkeys(NAMES.get(peer, peer) for peer in race.peers))


def _versions(race: LinesOfRace) -> str:
    versions = dict.fromkeys(
        f"{NAMES.get(line['impl'], line['impl'])} ({line['impl_version']})"
        for line in race.lines
        if line["impl"] in race.peers
    )
    return ", ".join(versions)


def plot_headline(races: list[pathlib.Path], stem: pathlib.Path) -> list[pathlib.Path]:
    """Writes STEM.png and STEM.svg: attention and GEMMs on the same linear axis."""
    headline = Headline.read(races)
    shapes, gemms = headline.shapes(), headline.gemms()
    figure, panels = pyplot().subplots(1, 2, figsize=(9.6, 4.4), sharey=True, layout="constrained")
    _draw_shapes(panels[0], shapes)
    _draw_gemms(panels[1], gemms)
    dtypes = " and ".join(sorted({row.dtype.upper() for row in shapes}))
    _set_title(panels[0], f"Attention, forward: {_mean(shapes)} ×",
               f"{len(shapes)} shapes, {dtypes}; peers: {_peers(headline.attention)}")  # fmt: skip
    _set_title(panels[1], f"GEMM, NVFP4 weights: {_mean(gemms)} ×",
               f"{len(gemms)} shapes, BF16 activations; "
               f"peers: {_peers(headline.gemm)}")  # fmt: skip
    for panel in panels:
        _set_axes(panel, max([1, *shapes.values(), *gemms.values()]))
    panels[0].set_ylabel("speed, best peer = 1")
    gpu = headline.attention.lines[0]["gpu"]
    figure.suptitle(f"{gpu}: speed relative to the best peer, geometric mean and each shape")
    return save(figure, stem)


def _set_title(panel: Any, what: str, against: str) -> None:
    panel.set_title(what, loc="left", fontsize=12, fontweight="bold", pad=22)
    panel.text(0, 1.03, against, transform=panel.transAxes, fontsize=10, in_layout=False)


def _set_axes(panel: Any, highest: float) -> None:
    set_speeds(panel, highest)
    panel.grid(visible=False, axis="x")
    panel.axhline(1, color="#222222", linewidth=1.2, zorder=3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_axisbelow(True)
    panel.tick_params(axis="y", labelleft=True)


def _draw_shapes(panel: Any, shapes: dict[Row, float]) -> None:
    """A bar a shape, in groups of a head dim and mask."""
    below, above = BAR_COLORS
    ticks, left = {}, 0
    for name, group in itertools.groupby(shapes, key=lambda row: f"{row.head_dims}\n{row.mask}"):
        speeds = [shapes[row] for row in group]
        places = range(left, left + len(speeds))
        panel.bar(places, [min(speed, 1) for speed in speeds], 0.8, color=below)
        panel.bar(places, [max(speed - 1, 0) for speed in speeds], 0.8, bottom=1, color=above)
        ticks[left + (len(speeds) - 1) / 2] = name
        left += len(speeds) + 1
    panel.set_xticks(list(ticks), ticks.values())
    panel.tick_params(axis="x", length=0)
    lengths = sorted({row.seqlen for row in shapes})
    first_and_last = " to ".join(map(plain_length, lengths[:: max(1, len(lengths) - 1)]))
    panel.set_xlabel(f"head dim and mask; bars are lengths, {first_and_last}")


def _draw_gemms(panel: Any, gemms: dict[Gemm, float]) -> None:
    """A line a weight, over the number of tokens."""
    for i, weight in enumerate(dict.fromkeys(gemm.weight for gemm in gemms)):
        points = [(p.m, speed) for p, speed in gemms.items() if p.weight == weight]
        panel.plot(*zip(*points, strict=True), color=LINE_COLORS[i % len(LINE_COLORS)],
                   marker=MARKERS[i % len(MARKERS)], markersize=5, label=weight)  # fmt: skip
    set_lengths(panel)
    panel.set_xlabel("tokens (M)")
    panel.legend(title="weight, N × K", frameon=False, loc="lower left")
