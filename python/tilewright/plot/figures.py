"""Throughput against sequence length, a panel for each head dim and mask; and what all figures
share."""

import pathlib
from collections.abc import Callable
from typing import Any

from tilewright.plot.results import LinesOfRace, Results

OURS_COLORS = "viridis"  # along the ladder
MARKERS = "os^Dv<>pPX"  # so that curves that coincide can be told apart
PEER_COLORS = ("#d62728", "#ff7f0e", "#8c564b", "#e377c2")


def plot(results: Results, stem: pathlib.Path) -> list[pathlib.Path]:
    """Writes STEM.png and STEM.svg."""
    head_dims = sorted({row.head_dim for row in results.rows})
    masks = sorted({row.causal for row in results.rows})
    figure, axes = new_figure(len(head_dims), len(masks))
    for head_dim, line_of_axes in zip(head_dims, axes, strict=True):
        for causal, panel in zip(masks, line_of_axes, strict=True):
            _draw_panel(panel, results, head_dim, causal)
    return finish(figure, axes, ("sequence length", "TFLOP/s"), results, stem)


def pyplot() -> Any:
    """matplotlib's, which makes the same files for the same results."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tilewright"
    from matplotlib import pyplot

    return pyplot


def new_figure(rows: int, columns: int) -> tuple[Any, Any]:
    """(figure, panels)"""
    return pyplot().subplots(
        rows,
        columns,
        figsize=(1.2 + (3.2 if columns > 2 else 4.2) * columns, 1.4 + 2.8 * rows),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )


def finish(
    figure: Any,
    axes: Any,
    labels: tuple[str, str],
    results: LinesOfRace,
    stem: pathlib.Path,
    scale: Callable[[Any, float], None] | None = None,
) -> list[pathlib.Path]:
    """Axes (set_scales(), if there is no other), a legend and a title for drawn panels; writes
    STEM.png and STEM.svg."""
    highest = max(panel.dataLim.ymax for panel in axes.flat if panel.lines)
    for panel in axes.flat:
        (scale or set_scales)(panel, highest)
    for panel in axes[-1]:
        panel.set_xlabel(labels[0])
    for panel in axes[:, 0]:
        panel.set_ylabel(labels[1])
    handles = {}  # a curve may be missing from a panel
    for panel in axes.flat:
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", frameon=False,
                  ncols=min(len(handles), 1 + 2 * axes.shape[1]))  # fmt: skip
    figure.suptitle(results.lines[0]["gpu"])
    return save(figure, stem)


def save(figure: Any, stem: pathlib.Path) -> list[pathlib.Path]:
    """Writes STEM.png and STEM.svg, without a date or a version."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    figure.savefig(paths[0], dpi=144, metadata={"Software": None})
    figure.savefig(paths[1], metadata={"Date": None, "Creator": None})
    pyplot().close(figure)
    return paths


def set_scales(panel: Any, highest: float) -> None:
    """Lengths, or numbers of tokens, by powers of two; speeds from zero to a little above the
    highest; ticks that are plain numbers."""
    set_lengths(panel)
    set_speeds(panel, highest)


def set_lengths(panel: Any) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(LogLocator(base=2, numticks=9))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(lambda x, _: plain_length(x))


def set_speeds(panel: Any, highest: float) -> None:
    from matplotlib.ticker import MaxNLocator

    panel.set_ylim(0, 1.06 * highest)
    panel.yaxis.set_major_locator(MaxNLocator(nbins=9, steps=(1, 2, 5, 10)))
    panel.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    panel.grid(alpha=0.25, linewidth=0.5)


def set_logarithmic(panel: Any, highest: float) -> None:
    """Both axes by powers of ten, with plain numbers, up to a little above the highest."""
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_ylim(top=1.3 * highest)
    panel.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    panel.yaxis.set_major_formatter(lambda y, _: f"{y:g}")
    panel.grid(alpha=0.25, linewidth=0.5)


def plain_length(length: float) -> str:
    """512, 1k, 2k"""
    return f"{length / 1024:g}k" if length >= 1024 else f"{length:g}"


def _draw_panel(panel, results: Results, head_dim: int, causal: bool) -> None:
    colors = colors_of(results)
    dtypes = sorted({row.dtype for row in results.rows})
    for impl in results.impls:
        for dtype, style in zip(dtypes, ("-", "--", ":"), strict=False):
            points = [
                (row.seqlen, results.tflops[row, impl])
                for row in results.rows
                if (row.head_dim, row.causal, row.dtype) == (head_dim, causal, dtype)
                and (row, impl) in results.tflops
            ]
            if points:
                label = impl if len(dtypes) == 1 else f"{impl}, {dtype}"
                marker = marker_of(results, impl)
                panel.plot(*zip(*points, strict=True), style, color=colors[impl], marker=marker,
                           markersize=4.5, fillstyle="none", label=label)  # fmt: skip
    panel.set_title(f"head dim {head_dim}, {'causal' if causal else 'full'}", fontsize="medium")


def marker_of(results: LinesOfRace, impl: str) -> str:
    return MARKERS[results.impls.index(impl) % len(MARKERS)]


def colors_of(results: LinesOfRace) -> dict[str, object]:
    """Ours from dark to light up the ladder, peers in warm colours."""
    import matplotlib

    peers = results.peers
    ladder = [impl for impl in results.impls if impl not in peers]
    ramp = matplotlib.colormaps[OURS_COLORS]
    colors = {impl: ramp(i / max(1, len(ladder))) for i, impl in enumerate(ladder)}
    return colors | {impl: PEER_COLORS[i % len(PEER_COLORS)] for i, impl in enumerate(peers)}
